"""Incoming connections: each receives and verifies the transfers of one peer by one path."""

from __future__ import annotations

import socket
from collections.abc import Callable

from moefabric.agents.engine import wire
from moefabric.agents.engine.clock import NOW
from moefabric.agents.engine.payload import Payload, transfer_seed
from moefabric.agents.engine.pieces import Pieces
from moefabric.agents.engine.relays import Relay
from moefabric.agents.engine.requests import RefusedError, os_error_text
from moefabric.agents.engine.resources import READ, DataConnection, Resources
from moefabric.agents.engine.sockets import set_dscp
from moefabric.agents.engine.transfers import Receive, TransferKey
from moefabric.runtime.event_loop import BROKEN, IN, OUT, Timer

BATCH = 128 * 1024  # bytes that wake a receiver, unless the transfer ends earlier
DIRECT = 16 * 1024  # bytes of one piece of ranks' memory that are worth a read of their own
HOLD_NS = 10_000_000_000  # how long a transfer of ranks' bytes waits until it is expected


class IncomingConnection(DataConnection):
    """A connection that a peer opened: a greeting, then transfers.

    Args:
        resources: Resources that the agent's connections share.
        sock: The connection's socket.

    Attributes:
        receive: The transfer that is under way.
        payload: The payload of this transfer, or of the one before, which is complete.
        wrong: What is wrong with the transfer; empty if nothing is.
        hold: Ends the wait of a transfer that came before it was expected; None if none waits.
        unread: Bytes that were read after that transfer's header.
    """

    def __init__(self, resources: Resources, sock: socket.socket) -> None:
        super().__init__(resources)
        self.sock = sock
        self.peer, self.path, self.relay, self.phase = "", "", "", 0
        self.frame = bytearray()
        self.frame_size = wire.GREETING.size
        self.handle_frame: Callable[[bytes, int], None] = self._greeting_head
        self.accepted_ns = NOW()
        self.receive: Receive | None = None
        self.payload: Payload | Pieces = Payload(resources.pattern, 0, 0)
        self.wrong = ""
        self.hold: Timer | None = None
        self.unread = bytearray()
        resources.unnamed[self] = None
        self.loop.watch(sock.fileno(), IN, self.ready)

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
        if self.closed:
            return
        self.closed = True
        if self.hold is not None:
            self.hold.cancel()
            self.hold = None
        self.loop.forget(self.sock.fileno())
        self.sock.close()
        resources, key = self.resources, (self.peer, self.path)
        resources.unnamed.pop(self, None)
        if resources.incoming.get(key) is not self:
            return
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
        if self.payload.room >= DIRECT:
            self._read_in_place()
            return
        buffer = self.resources.buffer
        offset, place = buffer.places[self.phase]
        count = self.sock.recv_into(place)
        now_ns = NOW()
        if not count:
            self.lose("closed by the peer")
        self.phase = (self.phase + count) % wire.LINE
        self._use(buffer.bytes, offset, offset + count, now_ns)

    def _use(self, buffer: bytearray, offset: int, end: int, now_ns: int) -> None:
        """Use received bytes, and keep those after the header of a transfer that has to wait."""
        while offset < end and not self.closed and self.hold is None:
            offset += self._take(buffer, offset, end, now_ns)
        if self.hold is not None:
            self.unread = buffer[offset:end]
        else:
            self._wake_for_rest()

    def _read_in_place(self) -> None:
        """Read bytes of ranks straight into their memory."""
        count = self.sock.recv_into(self.payload.view(READ))
        if not count:
            self.lose("closed by the peer")
            return
        self.phase = (self.phase + count) % wire.LINE
        self.payload.advance(count)
        self._count(count)
        self._wake_for_rest()

    def _count(self, count: int) -> None:
        """Count received bytes of the payload."""
        assert self.receive is not None
        self.receive.moved = self.payload.position
        self.resources.counters["bytes_received"] += count

    def _wake_for_rest(self) -> None:
        """Have the kernel wake this process for a batch, or for the rest of a transfer."""
        remaining = self.payload.remaining
        if not self.closed and (remaining < BATCH or self.least < BATCH):
            self.wake_after(min(BATCH, self.frame_size - len(self.frame) + remaining))

    def _take(self, buffer: bytearray, offset: int, end: int, now_ns: int) -> int:
        """Use some of the bytes of a read, from `offset` to `end`; return how many."""
        if self.payload.remaining:
            return self._verify(buffer, offset, min(end - offset, self.payload.remaining))
        count = min(self.frame_size - len(self.frame), end - offset)
        self.frame += buffer[offset : offset + count]
        if len(self.frame) == self.frame_size:
            raw = bytes(self.frame)
            self.frame.clear()
            self.handle_frame(raw, now_ns)
        return count

    def _verify(self, buffer: bytearray, offset: int, count: int) -> int:
        wrong = self.payload.accept(buffer, offset, count)
        if wrong is not None and not self.wrong:
            self.wrong = f"byte {wrong} of {self.payload.length} is not the one that was sent"
        self._count(count)
        return count

    def _expect(self, size: int, handle: Callable[[bytes, int], None]) -> None:
        self.frame_size, self.handle_frame = size, handle

    def _greeting_head(self, head: bytes, _now_ns: int) -> None:
        try:
            length = wire.greeting_length(head)
        except RefusedError as error:
            self.refuse(str(error))
        else:
            self._expect(length, lambda body, _: self._greeted(head, body))

    def _greeted(self, head: bytes, body: bytes) -> None:
        """Answer a greeting; hand the connection over if this agent is its relay."""
        resources = self.resources
        try:
            names = wire.parse_greeting(head, body)
            names.check(resources.name, resources.secret)
        except RefusedError as error:
            self._acknowledge(0, 0, verdict=False)
            self.refuse(str(error))
            return
        resources.unnamed.pop(self, None)
        if names.relay == resources.name:
            # The sender sends nothing before it has an answer.
            self.closed = True
            self.loop.forget(self.sock.fileno())
            Relay(resources, self.sock, names)
            return
        self.peer, self.path, self.relay = names.sender, names.path, names.relay
        set_dscp(self.sock, names.dscp)
        earlier = resources.incoming.get((self.peer, self.path))
        if earlier is not None:
            earlier.lose("replaced by a newer one")
        resources.incoming[self.peer, self.path] = self
        self._acknowledge(0, 0, verdict=True)
        self._expect(wire.HEADER.size, self._header)

    def refuse(self, why: str) -> None:
        """Close a connection that has not been accepted."""
        self.resources.counters["refused"] += not self.closed
        self.lose(why)

    def _header(self, raw: bytes, now_ns: int) -> None:
        """Begin to receive the transfer that a header announces."""
        if header := wire.HEADER.unpack(raw):
            self._begin_pattern(now_ns, *header)
        elif header := wire.MESSAGE.unpack(raw):
            self._begin_content(now_ns, *header, is_checked=False)
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
        if receive.content is not None:
            wrong = "a pattern was sent where bytes of ranks are expected"
        elif length != receive.bytes:
            wrong = f"{length} bytes were sent where {receive.bytes} are expected"
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
            self._begin_content(now_ns, collective, sequence, length, is_checked=True)
            return

        def resume() -> None:
            if self.hold is hold:
                self.hold = None
                hold.cancel()
                arrivals.held.pop(key, None)
                self._begin_content(now_ns, collective, sequence, length, is_checked=True)
                self._resume()

        hold = self.hold = self.loop.call_at(now_ns + HOLD_NS, resume)
        arrivals.held[key] = lambda: self.loop.call_at(NOW(), resume)
        self.watch()

    def _resume(self) -> None:
        """Use the bytes that were read after the header of a transfer that has waited."""
        unread, self.unread = self.unread, bytearray()
        try:
            self.watch()
            self._use(unread, 0, len(unread), NOW())
        except OSError as error:
            self.lose(os_error_text(error))

    def _begin_content(
        self, now_ns: int, collective: int, sequence: int, length: int, *, is_checked: bool
    ) -> None:
        key = TransferKey(collective, self.peer, self.path, sequence)
        arrivals = self.resources.arrivals
        receive, content = arrivals.begin_content(key, length, is_checked=is_checked)
        self._begin(receive, content, receive.why, now_ns)

    def _begin(self, receive: Receive, payload: Payload | Pieces, wrong: str, now_ns: int) -> None:
        receive.first_ns, self.wrong = now_ns, wrong
        self.receive, self.payload = receive, payload
        self._expect(wire.padding(payload.length) + wire.TRAILER.size, self._trailer)

    def grant(self, run: int, number: int) -> None:
        """Let the peer send a message of a program's run."""
        self.send_bytes(wire.GRANT.pack(run, number))

    def _trailer(self, raw: bytes, now_ns: int) -> None:
        receive, payload = self.receive, self.payload
        assert receive is not None
        zeros, raw = raw[: -wire.TRAILER.size], raw[-wire.TRAILER.size :]
        trailer = wire.TRAILER.unpack(raw)
        if trailer is None or any(zeros):
            self.lose(self.wrong or _out_of_step("trailer is corrupt, so bytes were"))
            return
        if trailer != (payload.length, receive.sequence, payload.checksum):
            self.wrong = self.wrong or "its length or checksum is not the one that was sent"
        self.receive = None
        receive.last_ns = now_ns
        self.resources.counters["corrupt"] += bool(self.wrong)
        self._acknowledge(receive.collective, receive.sequence, verdict=not self.wrong)
        receive.end(self.wrong, corrupt=bool(self.wrong))
        self._expect(wire.HEADER.size, self._header)

    def _acknowledge(self, collective: int, sequence: int, *, verdict: bool) -> None:
        self.send_bytes(wire.ACKNOWLEDGEMENT.pack(collective, sequence, verdict, 0))

    def watch(self) -> None:
        """Wait for the peer's bytes, unless a transfer waits, and for room for the unsent ones."""
        mask = (OUT if self.unsent else 0) | (IN if self.hold is None else 0)
        self.loop.watch(self.sock.fileno(), mask, self.ready)


def _out_of_step(fault: str) -> str:
    return f"out of step: a transfer's {fault} lost, added or changed"
