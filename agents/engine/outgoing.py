"""Outgoing connections: one to a peer by a path, over which transfers leave."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from agents.engine.clock import NOW
from agents.engine.errors import said
from agents.engine.loop import BROKEN, IN, OUT, Watcher
from agents.engine.payload import Payload, seed_of
from agents.engine.server import Server
from agents.engine.tcp import SO_MAX_PACING_RATE, pacing, total_retransmits
from agents.engine.transfers import Send
from agents.engine.ways import Way
from agents.engine.wire import (
    ANSWER,
    ANSWERS,
    ENDS,
    HEADER,
    RESTS,
    SENDS,
    TRAILER,
    filling,
    greeting,
    opened,
    sealed,
)

TURN = 512 * 1024  # most bytes one connection moves before others have their turn
FIRST_TURN = 512 * 1024  # so that a collective's flows start together
SNDBUF = (
    512 * 1024
)  # bytes on their way are re-used while they are in cache; 40 µs of 100 Gb/s, so long paths need more


class Outgoing(Watcher):
    """A connection to one peer by one path. Its transfers leave one after another, each at its own rate."""

    def __init__(
        self, server: Server, way: Way, congestion: str, sndbuf: int, settled: Callable[[Outgoing], None]
    ) -> None:
        self.server, self.loop, self.way, self.settled = server, server.loop, way, settled
        self.state, self.why = "connecting", ""
        self.queue: deque[Send] = deque()
        self.unacknowledged: deque[Send] = deque()
        self.held = b""
        self.retransmits = 0
        self.sock: socket.socket | None = None
        try:
            self.sock = way.socket(congestion, sndbuf)
        except OSError as error:
            self.lose(said(error))
        else:
            self.loop.watch(self.sock.fileno(), IN | OUT, self.ready)

    def facts(self) -> dict[str, Any]:
        """What the kernel says of it."""
        facts: dict[str, Any] = {
            "peer": self.way.peer,
            "path": self.way.path,
            "state": self.state,
            "why": self.why,
        }
        if self.sock is not None:
            congestion = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            facts["congestion"] = congestion.split(b"\0")[0].decode()
            facts["sndbuf"] = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            facts["retransmits"] = self._total_retransmits()
            facts["local"] = list(self.sock.getsockname()[:2])
        return facts

    def ready(self, mask: int) -> None:
        """Its socket can be read or written, or is broken."""
        try:
            if self.state == "connecting" and mask & (OUT | BROKEN):
                self._greet()
            if mask & (IN | BROKEN) and self.sock is not None:
                self._answers()
            if mask & OUT and self.state == "up":
                self.push(TURN)
        except BlockingIOError:
            return
        except OSError as error:
            self.lose(said(error))

    def send(self, send: Send) -> None:
        """Queue a transfer; it starts now if the connection is idle."""
        if self.state != "up":
            send.end(f"no connection to {self.way}: {self.why or self.state}")
            return
        self.queue.append(send)
        if len(self.queue) == 1:
            try:
                self.push(FIRST_TURN)
            except OSError as error:
                self.lose(said(error))

    def push(self, most: int) -> None:
        """Give the kernel up to about `most` bytes. OSError if the connection broke."""
        try:
            while self.queue and most > 0:
                most -= self._offer(self.queue[0], most)
        except BlockingIOError:
            pass
        self._watch()

    def abandon(self, send: Send) -> None:
        """A deadline has passed. What has begun can't be taken back, so the connection goes with it."""
        if send in self.queue and send.first_ns is None:
            self.queue.remove(send)
            self._watch()
        elif send in self.queue:
            self.lose(f"closed in mid-transfer at the deadline of collective {send.collective}")

    def lose(self, why: str) -> None:
        """The connection is gone, and all that waited for it."""
        if self.state == "lost":
            return
        self.state, self.why = "lost", why
        hit = [*self.unacknowledged, *self.queue]
        if self.sock is not None:
            self.loop.forget(self.sock.fileno())
            if hit:  # a reset, or the kernel would go on sending what it holds, at the old pace
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.sock.close()
            self.sock = None
        self.queue.clear()
        self.unacknowledged.clear()
        for send in hit:
            send.end(f"connection to {self.way}: {why}; {send.moved} of {send.bytes} bytes were sent")
        self.settled(self)

    def fault(self, error: Exception) -> None:
        """It is lost, and nothing else."""
        self.lose(f"a fault of the agent {self.server.name}: {error!r}")

    def _watch(self) -> None:
        if self.sock is not None:
            self.loop.watch(self.sock.fileno(), IN | OUT if self.queue else IN, self.ready)

    def _greet(self) -> None:
        assert self.sock is not None
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        names = {
            "from": self.server.name,
            "to": self.way.peer,
            "path": self.way.path,
            "dscp": self.way.reply_dscp,
        }
        self.sock.sendall(greeting(names))
        self.state = "greeting"
        self._watch()

    def _answers(self) -> None:
        assert self.sock is not None
        came = self.sock.recv(64 * ANSWER.size)
        if not came:
            raise ConnectionResetError(errno.ECONNRESET, "closed by the peer")
        self.held += came
        while len(self.held) >= ANSWER.size and self.sock is not None:
            raw, self.held = self.held[: ANSWER.size], self.held[ANSWER.size :]
            self._answer(raw)

    def _answer(self, raw: bytes) -> None:
        answer = opened(ANSWER, ANSWERS, raw)
        if answer is None:
            self.lose("the peer's answer is not an agent's")
        elif self.state == "greeting":
            if answer[2]:
                self.state = "up"
                self.settled(self)
            else:
                self.lose(f"the agent there is not {self.way.peer}, or is of another version")
        else:
            self._acknowledged(*answer)

    def _acknowledged(self, collective: int, sequence: int, verdict: int) -> None:
        for send in self.unacknowledged:
            if (send.collective, send.sequence) == (collective, sequence):
                self.unacknowledged.remove(send)
                send.acked_ns = NOW()
                send.retransmits = self._total_retransmits() - self.retransmits
                send.end("" if verdict else f"{self.way.peer} found it corrupt")
                self._rest()
                return

    def _rest(self) -> None:
        """Forget the pace of what was sent. The kernel keeps a lower pace until something is acknowledged, so something is sent."""
        if self.sock is not None and not self.queue and not self.unacknowledged:
            self.sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, pacing(None))
            self.sock.send(sealed(HEADER, RESTS, 0, 0, 0, 0, 0))

    def _offer(self, send: Send, most: int) -> int:
        """Give the kernel what comes next of this transfer; how many bytes it took."""
        assert self.sock is not None
        if send.payload is None:
            self._begin(send)
        payload = send.payload
        assert payload is not None
        if send.framed:
            count = self.sock.send(send.framed, 0 if send.trailing else socket.MSG_MORE)
            send.framed = send.framed[count:]
        elif payload.at < payload.length:
            begin, size = payload.extent(most)
            count = os.sendfile(self.sock.fileno(), self.server.pattern.fd, begin, size)
            payload.advance(count)
            send.moved = payload.at
            self.server.counts["bytes_sent"] += count
        else:
            count = 0
        if not send.framed and payload.at == payload.length:
            self._finish(send, payload)
        return count

    def _begin(self, send: Send) -> None:
        assert self.sock is not None
        self.sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, pacing(send.rate_bps))
        if not self.unacknowledged:
            self.retransmits = self._total_retransmits()
        seed = seed_of(self.server.name, send.peer, send.path, send.collective, send.sequence)
        pattern = self.server.pattern
        send.payload = Payload(pattern, seed, send.bytes)
        send.framed = sealed(
            HEADER, SENDS, send.collective, send.sequence, send.bytes, seed, pattern.identity
        )  # fmt: skip
        send.first_ns = NOW()

    def _finish(self, send: Send, payload: Payload) -> None:
        if not send.trailing:
            send.trailing = True
            trailer = sealed(TRAILER, ENDS, send.bytes, send.sequence, payload.checksum)
            send.framed = bytes(filling(send.bytes)) + trailer
        else:
            send.last_ns = NOW()
            self.unacknowledged.append(self.queue.popleft())

    def _total_retransmits(self) -> int:
        if self.sock is None:
            return self.retransmits
        return total_retransmits(self.sock)
