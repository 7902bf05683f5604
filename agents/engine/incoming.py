"""Incoming connections: each receives and verifies the transfers of one peer by one path."""

from __future__ import annotations

import socket

from moefabric.agents.engine import wire
from moefabric.agents.engine.payload import Payload, Position, transfer_seed
from moefabric.agents.engine.requests import os_error_text
from moefabric.agents.engine.resources import READ, DataConnection, Resources
from moefabric.agents.engine.sockets import set_dscp
from moefabric.agents.engine.transfers import Receive, TransferKey
from moefabric.runtime.event_loop import BROKEN, IN, NOW, OUT, Timer

BATCH = 128 * 1024  # bytes that wake a receiver, unless the transfer ends earlier
DIRECT = 16 * 1024  # bytes of one piece of ranks' memory that are worth a read of their own
UNEXPECTED = "nobody expects it"
HOLD_NS = 10_000_000_000  # how long a transfer of ranks' bytes waits until it is expected


class IncomingConnection(DataConnection):
    """A connection that a peer opened and that brings its transfers.

    Args:
        greeting: What the peer has said of it.

    Attributes:
        receive: The transfer that is under way; None between two of them.
        payload: The payload of this transfer, or of the one before, which is complete.
        frame: What has come of the header or trailer that comes next, of `frame_size` bytes.
        wrong: What is wrong with the transfer; empty if nothing is.
        hold: Ends the wait of a transfer that came before it was expected; None if none waits.
        unread: Bytes that were read after that transfer's header.
    """

    def __init__(self, resources: Resources, sock: socket.socket, greeting: wire.Greeting) -> None:
        super().__init__(resources)
        self.sock, self.phase = sock, 0
        self.peer, self.path, self.relay = greeting.sender, greeting.path, greeting.relay
        self.frame, self.frame_size = bytearray(), wire.HEADER.size
        self.receive: Receive | None = None
        self.payload = Position(0)
        self.wrong = ""
        self.hold: Timer | None = None
        self.unread = bytearray()
        set_dscp(sock, greeting.dscp)
        earlier = resources.incoming.get((self.peer, self.path))
        if earlier is not None:
            earlier.lose("replaced by a newer one")
        resources.incoming[self.peer, self.path] = self
        self.watch()
        self._acknowledge(0, 0, verdict=True)

    def transfer(self, mask: int) -> None:
        """Send unsent acknowledgements and read received data."""
        if mask & OUT:
            self.send_bytes()
        if self.hold is not None and mask & BROKEN:
            self.lose("closed by the peer")
        elif self.hold is None and mask & (IN | BROKEN):
            self._read()

    def lose(self, why: str) -> None:
        """Close the connection and end the transfers that were to arrive by it."""
        if not self.close():
            return
        if self.hold is not None:
            self.hold.cancel()
            self.hold = None
        resources, key = self.resources, (self.peer, self.path)
        del resources.incoming[key]
        receives = resources.arrivals.expected_from(*key)
        if self.receive is not None:
            receives = [self.receive, *receives]
            if self.wrong:
                resources.counters["corrupt"] += 1
                self.receive.end(self.wrong)
        for receive in receives:
            progress = f"{receive.moved} of {receive.bytes} bytes had come"
            way = f"{receive.peer} by {receive.path}{self.relay and f' over {self.relay}'}"
            receive.end(f"connection from {way}: {why}; {progress}")

    def _read(self) -> None:
        """Read bytes of ranks straight into their memory, and others into the buffer."""
        buffer, is_direct = self.resources.buffer, self.payload.room >= DIRECT
        offset, place = (0, self.payload.view(READ)) if is_direct else buffer.places[self.phase]
        count = self.sock.recv_into(place)
        now_ns = NOW()
        if not count:
            self.lose("closed by the peer")
            return
        self.phase = (self.phase + count) % wire.LINE
        if is_direct:
            self.payload.advance(count)
            self.resources.counters["bytes_received"] += count
            self._wake_for_rest()
        else:
            self._use(buffer.bytes, offset, offset + count, now_ns)

    def _use(self, buffer: bytearray, offset: int, end: int, now_ns: int) -> None:
        """Use received bytes, and keep those after the header of a transfer that has to wait."""
        while offset < end and not self.closed and self.hold is None:
            offset += self._take(buffer, offset, end, now_ns)
        if self.hold is not None:
            self.unread = buffer[offset:end]
        else:
            self._wake_for_rest()

    def _wake_for_rest(self) -> None:
        """Have the kernel wake this process for a batch, or for the rest of a transfer."""
        remaining = self.payload.remaining
        if not self.closed and (remaining < BATCH or self.least < BATCH):
            self.wake_after(min(BATCH, self.frame_size - len(self.frame) + remaining))

    def _take(self, buffer: bytearray, offset: int, end: int, now_ns: int) -> int:
        """Use some of the bytes of a read, from `offset` to `end`; return how many."""
        if remaining := self.payload.remaining:
            count = min(end - offset, remaining)
            wrong = self.payload.accept(buffer, offset, count)
            if wrong is not None and not self.wrong:
                self.wrong = f"byte {wrong} of {self.payload.length} is not the one that was sent"
            self.resources.counters["bytes_received"] += count
            return count
        count = min(self.frame_size - len(self.frame), end - offset)
        self.frame += buffer[offset : offset + count]
        if len(self.frame) == self.frame_size:
            raw = bytes(self.frame)
            self.frame.clear()
            if self.receive is None:
                self._header(raw, now_ns)
            else:
                self._trailer(raw, self.receive, now_ns)
        return count

    def _header(self, raw: bytes, now_ns: int) -> None:
        """Begin to receive the transfer that a header announces."""
        if header := wire.HEADER.unpack(raw):
            self._begin_pattern(now_ns, *header)
        elif header := wire.MESSAGE.unpack(raw):
            self._begin_content(now_ns, *header)
        elif header := wire.CONTENT.unpack(raw):
            self._content(now_ns, *header)
        elif wire.IDLE.unpack(raw):
            # The sender's kernel keeps the old pace until this frame is acknowledged. Without
            # TCP_QUICKACK the acknowledgement may be delayed by 40 ms (tcp(7)).
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        else:
            self.lose(_out_of_step("header is corrupt, so bytes before it were"))

    def _begin_pattern(
        self, now_ns: int, collective: int, sequence: int, length: int, seed: int, identity: int
    ) -> None:
        key = TransferKey(collective, self.peer, self.path, sequence)
        receive, pattern = self.resources.arrivals.begin(key, length), self.resources.pattern
        wrong = ""
        if receive.payload is not None:
            wrong = "a pattern was sent where bytes of ranks are expected"
        elif sizes := receive.size_fault(length):
            wrong = sizes
        elif seed != transfer_seed(self.peer, self.resources.name, self.path, collective, sequence):
            wrong = "its seed is another transfer's"
        elif identity != pattern.identity:
            wrong = f"{self.peer} sends by another pattern than ours"
        self._begin(receive, Payload(pattern, seed, length), wrong, now_ns)

    def _content(self, now_ns: int, collective: int, sequence: int, length: int) -> None:
        """Receive bytes of ranks as soon as they are expected, or have waited for too long."""
        key = TransferKey(collective, self.peer, self.path, sequence)
        arrivals = self.resources.arrivals
        if not arrivals.is_early(key):
            self._begin_content(now_ns, collective, sequence, length, UNEXPECTED)
            return

        def resume() -> None:
            if self.hold is hold:
                self.hold = None
                hold.cancel()
                arrivals.held.pop(key, None)
                self._begin_content(now_ns, collective, sequence, length, UNEXPECTED)
                self._use_unread()

        hold = self.hold = self.loop.call_at(now_ns + HOLD_NS, resume)
        arrivals.held[key] = lambda: self.loop.call_at(NOW(), resume)
        self.watch()

    def _use_unread(self) -> None:
        """Use the bytes that were read after the header of a transfer that has waited."""
        unread, self.unread = self.unread, bytearray()
        try:
            self.watch()
            self._use(unread, 0, len(unread), NOW())
        except OSError as error:
            self.lose(os_error_text(error))

    def _begin_content(
        self, now_ns: int, collective: int, sequence: int, length: int, unexpected: str = ""
    ) -> None:
        """Receive bytes of ranks, or a message, of which an unexpected one is only counted."""
        key = TransferKey(collective, self.peer, self.path, sequence)
        receive, content = self.resources.arrivals.begin_content(key, length, unexpected)
        self._begin(receive, content, receive.why, now_ns)

    def _begin(self, receive: Receive, payload: Position, wrong: str, now_ns: int) -> None:
        receive.first_ns, self.wrong = now_ns, wrong
        self.receive, self.payload = receive, payload
        receive.payload = payload
        self.frame_size = wire.padding(payload.length) + wire.TRAILER.size

    def _trailer(self, raw: bytes, receive: Receive, now_ns: int) -> None:
        """End a transfer and acknowledge it."""
        payload = self.payload
        zeros, raw = raw[: -wire.TRAILER.size], raw[-wire.TRAILER.size :]
        trailer = wire.TRAILER.unpack(raw)
        if trailer is None or any(zeros):
            self.lose(self.wrong or _out_of_step("trailer is corrupt, so bytes were"))
            return
        if trailer != (payload.length, receive.sequence, payload.checksum):
            self.wrong = self.wrong or "its length or checksum is not the one that was sent"
        self.receive, self.frame_size = None, wire.HEADER.size
        receive.last_ns = now_ns
        self.resources.counters["corrupt"] += bool(self.wrong)
        self._acknowledge(receive.collective, receive.sequence, verdict=not self.wrong)
        receive.end(self.wrong, corrupt=bool(self.wrong))

    def _acknowledge(self, collective: int, sequence: int, *, verdict: bool) -> None:
        self.send_bytes(wire.ACKNOWLEDGEMENT.pack(collective, sequence, verdict, 0))

    def watch(self) -> None:
        """Wait for the peer's bytes, unless a transfer waits, and for room for the unsent ones."""
        mask = (OUT if self.unsent else 0) | (IN if self.hold is None else 0)
        self.loop.watch(self.sock.fileno(), mask, self.ready)


def _out_of_step(fault: str) -> str:
    return f"out of step: a transfer's {fault} lost, added or changed"
