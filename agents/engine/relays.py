"""Relays: connections of a peer whose transfers this agent receives and sends on to their receiver.

A relay is one connection from the sender and one to the receiver. Bytes pass unchanged, from the
sender's greeting to the receiver's acknowledgements, so that both ends verify and time what they
would without a relay. A relay holds one read at most: it does not read on one connection while
the other takes nothing. Each pair of servers has connections of its own over each relay, so that
no transfer waits for another one's and relays never wait for each other in a ring.
"""

from __future__ import annotations

import os
import socket
from abc import abstractmethod

from moefabric.agents.engine import wire
from moefabric.agents.engine.requests import os_error_text
from moefabric.agents.engine.resources import DataConnection, Resources
from moefabric.agents.engine.sockets import set_dscp, total_retransmits
from moefabric.runtime.event_loop import BROKEN, IN, NOW, OUT

PIECES = 128  # parts in which a transfer passes, if they are no larger than PIECE
PIECE = 128 * 1024
LINGER_NS = 5_000_000_000  # how long a sender may take to close a connection that its relay ended


class Relay:
    """The two connections of a relay.

    Args:
        near: The connection that the sender opened; its greeting has been read.
    """

    def __init__(self, resources: Resources, near: socket.socket, greeting: wire.Greeting) -> None:
        self.resources = resources
        self.key = (greeting.sender, greeting.receiver, greeting.path)
        earlier = resources.relays.get(self.key)
        if earlier is not None:
            earlier.lose("replaced by a newer one")
        self.near = resources.relays[self.key] = NearEnd(self, near)
        self.far: FarEnd | None = None
        destination = resources.destinations.get(greeting.receiver)
        if destination is None:
            self.lose(f"has no connection to {greeting.receiver}")
            return
        set_dscp(near, greeting.dscp)
        try:
            self.far = FarEnd(self, destination.start_connecting(resources.network, dscp=0))
        except OSError as error:
            self.lose(self.far_lost(os_error_text(error)))
            return
        self.near.other, self.far.other = self.far, self.near
        self.far.watch()
        self.far.send_bytes(greeting.to_bytes())

    def far_lost(self, why: str) -> str:
        """Return why the connection to the receiver is lost."""
        return f"lost {self.key[1]}: {why}"

    def lose(self, why: str) -> None:
        """Tell the sender why the relay ends, and close both connections."""
        if not self.near.unsent:  # else the frame would not begin where frames begin
            self.near.end(wire.LOSS.pack(why.encode()[: wire.LONGEST_REASON]))
        self.close()

    def close(self) -> None:
        """Close both connections; the receiver's is reset, since it may be in mid-transfer."""
        if self.resources.relays.get(self.key) is self.near:
            del self.resources.relays[self.key]
        self.near.close()
        if self.far is not None:
            self.far.close(reset=True)


class RelayEnd(DataConnection):
    """Connection of a relay, whose received bytes leave by the relay's other connection.

    Attributes:
        unsent: Bytes that this connection has still to send. The other isn't read meanwhile.
    """

    def __init__(self, relay: Relay, sock: socket.socket) -> None:
        super().__init__(relay.resources)
        self.relay, self.sock = relay, sock
        self.other: RelayEnd | None = None

    def transfer(self, mask: int) -> None:
        """Send unsent bytes and read arrived ones; raise OSError if the connection broke."""
        if mask & BROKEN:
            code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            raise OSError(code, os.strerror(code) if code else "closed by the peer")
        if mask & OUT:
            self.send_bytes()
        if mask & IN and not self.closed:
            self._read()

    def watch(self) -> None:
        """Wait, at both ends, for room for unsent bytes and for bytes that the other can take."""
        for end, other in ((self, self.other), (self.other, self)):
            if end is not None and not end.closed:
                reads = IN if other is not None and not other.unsent else 0
                mask = (OUT if end.unsent else 0) | reads
                self.loop.watch(end.sock.fileno(), mask, end.ready)

    @abstractmethod
    def _read(self) -> None:
        """Read the arrived bytes, and send them by the other connection."""


class NearEnd(RelayEnd):
    """The connection from the sender, which brings transfers."""

    def __init__(self, relay: Relay, sock: socket.socket) -> None:
        super().__init__(relay, sock)
        self.header = b""
        self.length = self.left = 0  # bytes of the payload, and of the transfer after its header
        self.wake_after(wire.HEADER.size)

    def lose(self, why: str) -> None:  # noqa: ARG002 - there is no sender who could be told
        """Close both connections."""
        self.relay.close()

    def end(self, frame: bytes) -> None:
        """Send a last frame, and discard arriving bytes until the sender closes the connection.

        The kernel resets a connection that is closed with unread bytes, and a sender that gets a
        reset may lose the frame.
        """
        if self.closed:
            return
        try:
            self.sock.send(frame)
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            return
        self.closed = True
        self.wake_after(1)
        self.loop.watch(self.sock.fileno(), IN, self._discard)
        self.linger = self.loop.call_at(NOW() + LINGER_NS, self._release)

    def _discard(self, _mask: int) -> None:
        try:
            ended = not self.sock.recv_into(self.resources.buffer.places[0][1])
        except BlockingIOError:
            return
        except OSError:
            ended = True
        if ended:
            self.linger.cancel()
            self._release()

    def _release(self) -> None:
        self.loop.forget(self.sock.fileno())
        self.sock.close()

    def _read(self) -> None:
        _, place = self.resources.buffer.places[0]
        count = self.sock.recv_into(place)
        if not count:
            self.lose("closed by the sender")
            return
        data = place[:count]
        if not self._follow(data):
            self.relay.lose("is out of step: a transfer's header is corrupt")
            return
        assert self.other is not None
        self.other.send_bytes(data)
        if not self.closed:
            self.wake_after(
                min(self.left, PIECE, max(1, self.length // PIECES))
                or wire.HEADER.size - len(self.header)
            )

    def _follow(self, data: memoryview) -> bool:
        """Follow the transfers in received bytes; return False if a header is corrupt."""
        offset = 0
        while offset < len(data):
            if self.left:
                step = min(self.left, len(data) - offset)
                self.left -= step
                self.resources.counters["bytes_forwarded"] += 0 if self.left else self.length
            else:
                step = min(wire.HEADER.size - len(self.header), len(data) - offset)
                self.header += data[offset : offset + step]
                if len(self.header) == wire.HEADER.size and not self._begin():
                    return False
            offset += step
        return True

    def _begin(self) -> bool:
        """Begin the transfer that a header announces; return False if the header is corrupt."""
        raw, self.header = self.header, b""
        if wire.IDLE.unpack(raw) is not None:
            # As where transfers end, or the sender would keep its old pace (incoming.py).
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            return True
        fields = wire.HEADER.unpack(raw) or wire.CONTENT.unpack(raw)
        if fields is None:
            return False
        self.length = fields[2]
        self.left = wire.framed_size(self.length) - wire.HEADER.size
        return True


class FarEnd(RelayEnd):
    """The connection to the receiver, which brings acknowledgements.

    Each gets the number of segments that this connection sent again, so that the sender knows them.
    """

    retransmits = 0  # segments that were sent again until the last acknowledgement

    def lose(self, why: str) -> None:
        """Tell the sender that its receiver is lost."""
        self.relay.lose(self.relay.far_lost(why))

    def _read(self) -> None:
        assert self.other is not None
        self.other.send_bytes(b"".join(map(self._counted, self.read_answers())))

    def _counted(self, raw: bytes) -> bytes:
        """Return an acknowledgement with the segments sent again since the one before."""
        fields = wire.ACKNOWLEDGEMENT.unpack(raw)
        if fields is None:
            return raw
        before, self.retransmits = self.retransmits, total_retransmits(self.sock)
        *others, resent = fields
        return wire.ACKNOWLEDGEMENT.pack(*others, resent + self.retransmits - before)
