"""A channel of the bounded-loss transport: a UDP socket around its sender and receiver."""

import socket
import struct
from typing import Final

from moefabric.api.links import IN, NOW, OUT, EventLoop, Timer
from moefabric_studies.tensors import packets
from moefabric_studies.tensors.channel import OnTensor, Tensor, service_byte
from moefabric_studies.tensors.receiver import Received, Receiver
from moefabric_studies.tensors.sender import REORDERING, Sender

_LARGEST: Final = 2048
_CONGESTION: Final = 0b11
"""ECN field of a packet with a congestion mark (RFC 3168, section 5)."""
_SERVICE: Final = struct.Struct("=i")
_BUFFER_BYTES: Final = 1 << 20
_BATCH: Final = 64
"""Packets read before the loop turns to other channels."""


class DatagramChannel:
    """End of a channel over UDP."""

    def __init__(
        self,
        loop: EventLoop,
        sock: socket.socket,
        on_tensor: OnTensor,
        *,
        prioritized: bool = True,
        reordering: int = REORDERING,
    ) -> None:
        """Watch a connected UDP socket.

        Args:
            loop: Calls back when packets arrive.
            sock: A non-blocking socket, connected to that of the other end.
            on_tensor: Called with each tensor that is complete.
            prioritized: Whether packets carry their class; if not, all are of the lowest.
            reordering: Packets by which the network reorders packets at most.
        """
        self._loop, self._sock, self._on_tensor = loop, sock, on_tensor
        self._prioritized = prioritized
        self._sender, self._receiver = Sender(reordering=reordering), Receiver()
        self._held: packets.Data | packets.Probe | None = None
        self._timer: Timer | None = None
        self._timer_ns = 0
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        loop.watch(sock.fileno(), IN, self._on_ready)

    def send(self, tensor: Tensor) -> None:
        """Send a tensor."""
        self._sender.send(tensor)
        self._send_due()

    def close(self) -> None:
        """Close the socket."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.forget(self._sock.fileno())
        self._sock.close()

    def _on_ready(self, mask: int) -> None:
        if mask & OUT:
            self._loop.watch(self._sock.fileno(), IN, self._on_ready)
        if mask & IN:
            self._receive()
        self._send_due()

    def _receive(self) -> None:
        """Read arrived packets, acknowledge their chunks at once, and report complete tensors."""
        numbers: list[int] = []
        marked = 0
        complete: list[Received] = []
        for _ in range(_BATCH):
            try:
                packet, ancillary, _, _ = self._sock.recvmsg(_LARGEST, 64)
            except (BlockingIOError, ConnectionRefusedError):
                break
            message = packets.decode(packet)
            if isinstance(message, packets.Data):
                numbers.append(message.number)
                marked += any(data[0] & 0b11 == _CONGESTION for _, _, data in ancillary)
                values = memoryview(packet)[packets.HEADER_BYTES :]
                if (received := self._receiver.on_data(message, values)) is not None:
                    self._signal(packets.Stop(received.tensor))
                    complete.append(received)
            elif isinstance(message, packets.Probe):
                self._signal(self._receiver.on_probe(message))
            else:
                self._sender.on_signal(message, NOW() / 1e9)
        if numbers:
            self._signal(packets.Ack(tuple(numbers), marked))
        for received in complete:
            self._on_tensor(received)

    def _signal(self, signal: packets.Ack | packets.Stop | packets.Missing) -> None:
        """Send a signal; one that the socket refuses counts as lost."""
        try:
            self._write(signal.encode(), b"", -1, ecn_capable=True)
        except (BlockingIOError, ConnectionRefusedError):
            return

    def _send_due(self) -> None:
        """Send due packets, as far as the socket takes them, and wake at the next instant."""
        now_ns = NOW()
        if self._held is not None and not self._send_packet(self._held):
            return
        for packet in self._sender.due(now_ns / 1e9):
            if not self._send_packet(packet):
                break
        self._wake_at(self._sender.wake_at(), now_ns)

    def _send_packet(self, packet: packets.Data | packets.Probe) -> bool:
        """Send a packet; hold it until the socket is writable if it takes no more."""
        self._held = None
        tensor = self._sender.tensor(packet.tensor)
        if tensor is None:
            return True  # the receiver has stopped it
        values, important = memoryview(b""), True
        if isinstance(packet, packets.Data):
            end = packet.offset + packets.CHUNK_BYTES
            values = memoryview(tensor.values)[packet.offset : end]
            important = packet.offset // packets.CHUNK_BYTES in tensor.important
        try:
            self._write(packet.encode(), values, tensor.priority, ecn_capable=important)
        except BlockingIOError:
            self._held = packet
            self._loop.watch(self._sock.fileno(), IN | OUT, self._on_ready)
            return False
        except ConnectionRefusedError:
            pass  # an earlier packet found no socket; this one counts as lost
        return True

    def _write(
        self, header: bytes, values: bytes | memoryview, priority: int, *, ecn_capable: bool
    ) -> None:
        service = service_byte(priority if self._prioritized else 6, ecn_capable=ecn_capable)
        options = [(socket.IPPROTO_IP, socket.IP_TOS, _SERVICE.pack(service))]
        self._sock.sendmsg([header, values], options)

    def _wake_at(self, instant_s: float | None, now_ns: int) -> None:
        if instant_s is None:
            return
        instant_ns = max(now_ns, int(instant_s * 1e9))
        if self._timer is not None:
            if self._timer_ns <= instant_ns:
                return
            self._timer.cancel()
        self._timer_ns = instant_ns
        self._timer = self._loop.call_at(instant_ns, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._send_due()
