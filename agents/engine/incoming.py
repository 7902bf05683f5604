"""Incoming connections: one that a peer opened, over which transfers arrive and are verified."""

from __future__ import annotations

import json
import socket
import zlib
from collections.abc import Callable

from agents.engine.arrivals import Arrivals
from agents.engine.clock import NOW
from agents.engine.errors import said
from agents.engine.loop import BROKEN, IN, OUT, Watcher
from agents.engine.payload import Payload, seed_of
from agents.engine.server import Server
from agents.engine.tcp import mark
from agents.engine.transfers import Receive
from agents.engine.wire import (
    ANSWER,
    ANSWERS,
    ENDS,
    GREETING,
    GREETS,
    HEADER,
    LINE,
    RESTS,
    SENDS,
    TRAILER,
    VERSION,
    filling,
    opened,
    sealed,
)

BATCH = 128 * 1024  # a receiver is woken for this much, or for a transfer's end


class Incoming(Watcher):
    """A connection that a peer opened: a greeting, then transfers, each verified to the last byte."""

    def __init__(
        self, server: Server, arrivals: Arrivals, sock: socket.socket,
        up: Callable[[Incoming], None], lost: Callable[[Incoming, str], None],
    ) -> None:  # fmt: skip
        """`up` is told when the peer has said who it is, `lost` when the connection is gone, and why."""
        self.server, self.loop, self.arrivals, self.sock = server, server.loop, arrivals, sock
        self.up, self.lost = up, lost
        self.peer, self.path, self.closed, self.phase = "", "", False, 0
        self.held = bytearray()
        self.wants = GREETING.size
        self.then: Callable[[bytes, int], None] = self._greeting
        self.batch = 1
        self.outbox = b""
        self.greeting_crc = 0
        self.receive: Receive | None = None
        self.payload: Payload | None = None
        self.wrong = ""
        self.loop.watch(sock.fileno(), IN, self.ready)

    def ready(self, mask: int) -> None:
        """Its socket can be read or written, or is broken."""
        try:
            if mask & OUT:
                self._say(b"")
            if mask & (IN | BROKEN):
                self._read()
        except BlockingIOError:
            return
        except OSError as error:
            self.lose(said(error))

    def lose(self, why: str) -> None:
        """The connection is gone, and all that was to come by it."""
        if self.closed:
            return
        self.closed = True
        self.loop.forget(self.sock.fileno())
        self.sock.close()
        self.lost(self, why)

    def fault(self, error: Exception) -> None:
        """It is lost, and nothing else."""
        self.lose(f"a fault of the agent {self.server.name}: {error!r}")

    def _read(self) -> None:
        buffer = self.server.buffer
        at, place = buffer.places[self.phase]
        count = self.sock.recv_into(place)
        now = NOW()
        if not count:
            self.lose("closed by the peer")
        self.phase = (self.phase + count) % LINE
        end = at + count
        while at < end and not self.closed:
            at += self._take(buffer.bytes, at, end, now)
        payload = self.payload
        if not self.closed and (payload is None or payload.length - payload.at < BATCH or self.batch < BATCH):
            self._wake_at(
                self.wants - len(self.held) + (payload.length - payload.at if payload is not None else 0)
            )

    def _wake_at(self, left: int) -> None:
        """Be woken when there is a batch to read, or the end of what is being read: `left` bytes."""
        batch = min(left, BATCH)
        if batch != self.batch:
            self.batch = batch
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, batch)

    def _take(self, buffer: bytearray, at: int, end: int, now: int) -> int:
        """Use the next bytes of a read; how many were used."""
        payload = self.payload
        if payload is not None and payload.at < payload.length:
            return self._verify(payload, buffer, at, min(end - at, payload.length - payload.at))
        count = min(self.wants - len(self.held), end - at)
        self.held += buffer[at : at + count]
        if len(self.held) == self.wants:
            field = bytes(self.held)
            self.held.clear()
            self.then(field, now)
        return count

    def _verify(self, payload: Payload, buffer: bytearray, at: int, count: int) -> int:
        wrong = payload.wrong(buffer, at, count)
        if wrong is not None and not self.wrong:
            self.wrong = f"byte {wrong} of {payload.length} is not the one that was sent"
        assert self.receive is not None
        self.receive.moved = payload.at
        self.server.counts["bytes_received"] += count
        return count

    def _greeting(self, raw: bytes, _now: int) -> None:
        magic, length, self.greeting_crc = GREETING.unpack(raw)
        if magic != GREETS or not 0 < length <= 4096:
            self.lose("it opened with something other than an agent's greeting")
            return
        self.wants, self.then = length, self._names

    def _names(self, raw: bytes, _now: int) -> None:
        if zlib.crc32(raw) != self.greeting_crc:
            self.lose("its greeting is corrupt")
            return
        names = json.loads(raw)
        welcome = names["to"] == self.server.name and names["version"] == VERSION
        if welcome:
            self.peer, self.path = names["from"], names["path"]
            mark(self.sock, names["dscp"])
            self.up(self)
        self._say(sealed(ANSWER, ANSWERS, 0, 0, welcome))
        if not welcome:
            self.lose(f"it looks for {names['to']} of version {names['version']}")
            return
        self.wants, self.then = HEADER.size, self._header

    def _header(self, raw: bytes, now: int) -> None:
        if opened(HEADER, RESTS, raw) is not None:
            # Until this is acknowledged the sender's kernel keeps its old pace: 40 ms, if acknowledging is put off (tcp(7)).
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            self.wants, self.then = HEADER.size, self._header
            return
        header = opened(HEADER, SENDS, raw)
        if header is None:
            self.lose(
                "out of step: a transfer's header is corrupt, so bytes before it were lost, added or changed"
            )
            return
        collective, sequence, length, seed, identity = header
        receive = self.arrivals.arriving(collective, self.peer, self.path, sequence, length)
        receive.first_ns = now
        self.wrong = ""
        if length != receive.bytes:
            self.wrong = f"{length} bytes were sent where {receive.bytes} are expected"
        elif seed != seed_of(self.peer, self.server.name, self.path, collective, sequence):
            self.wrong = "its seed is another transfer's"
        elif identity != self.server.pattern.identity:
            self.wrong = f"{self.peer} sends by another pattern than ours"
        self.receive, self.payload = receive, Payload(self.server.pattern, seed, length)
        self.wants, self.then = filling(length) + TRAILER.size, self._trailer

    def _trailer(self, raw: bytes, now: int) -> None:
        receive, payload = self.receive, self.payload
        assert receive is not None
        assert payload is not None
        zeros, raw = raw[: -TRAILER.size], raw[-TRAILER.size :]
        trailer = opened(TRAILER, ENDS, raw)
        if trailer is None or any(zeros):
            self.lose(
                self.wrong
                or "out of step: a transfer's trailer is corrupt, so bytes were lost, added or changed"
            )
            return
        if trailer != (payload.length, receive.sequence, payload.checksum):
            self.wrong = self.wrong or "its length or checksum is not the one that was sent"
        self.receive = self.payload = None
        receive.last_ns = now
        self.server.counts["corrupt"] += bool(self.wrong)
        self._say(sealed(ANSWER, ANSWERS, receive.collective, receive.sequence, not self.wrong))
        receive.end(self.wrong)
        self.wants, self.then = HEADER.size, self._header

    def _say(self, words: bytes) -> None:
        self.outbox += words
        try:
            while self.outbox:
                self.outbox = self.outbox[self.sock.send(self.outbox) :]
        except BlockingIOError:
            pass
        self.loop.watch(self.sock.fileno(), IN | OUT if self.outbox else IN, self.ready)
