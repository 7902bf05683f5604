"""The agent of one server: it sends, receives, verifies and time-stamps collective traffic, as its control channel says.

One file that needs Python 3.8 and nothing else, since it is carried to real hosts. One epoll loop, no threads.

Control: one JSON object a line. `{"id": 1, "op": "hello"}` is answered `{"id": 1, "ok": true, ...}` or
`{"id": 1, "ok": false, "error": "..."}`; a collective armed earlier ends with `{"event": "done", ...}`.
Times are CLOCK_MONOTONIC nanoseconds of this host, rates are bits per second of payload.

Data: one TCP connection per peer and path, always written by its opener. A transfer is a header, a payload and a trailer;
the receiver answers each with an acknowledgement. Payloads are slices of a keyed pseudo-random block. So the sender hands
the kernel pages instead of copies (sendfile), and the receiver knows every byte it must see and compares all of them (memcmp,
seven times as fast as crc32). Each chunk of 128 KiB starts elsewhere in the block, by a seed that sender, receiver, path,
collective and sequence give. The trailer's checksum chains the crc32 of every chunk, in order; the header's names the block.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import fcntl
import hashlib
import heapq
import itertools
import json
import mmap
import os
import platform
import select
import signal
import socket
import struct
import sys
import time
import traceback
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

VERSION = 1
NOW = time.monotonic_ns

CHUNK = 128 * 1024
STARTS = 127  # a prime, so that every stride visits every start
STEP = 64
KEY = b"moefabric transfer payload 1"
TURN = 512 * 1024  # most bytes one connection moves before others have their turn
FIRST_TURN = 512 * 1024  # so that a collective's flows start together
BATCH = 128 * 1024  # a receiver is woken for this much, or for a transfer's end
READ = 256 * 1024  # a read and the block that it is compared with stay in a core's second-level cache
SNDBUF = (
    512 * 1024
)  # bytes on their way are re-used while they are in cache; 40 µs of 100 Gb/s, so long paths need more
SPIN_NS = 60_000  # a sleeping process wakes up to this late
REMEMBERED = 1024  # collectives that ended, whose latecomers are known as such
LONGEST_LINE = 64 * 1024 * 1024

LINE = 64  # a cache line. All that goes over the wire is padded to it, since kernels copy aligned bytes twice as fast
GREETING = struct.Struct("!4sII52x")  # magic, length and crc32 of the JSON that follows
HEADER = struct.Struct(
    "!4sQIQII28xI"
)  # magic, collective, sequence, length, seed, crc32 of the block, crc32 of the above
TRAILER = struct.Struct(
    "!4sQII40xI"
)  # magic, length, sequence, checksum, crc32 of the above; zeros before it fill the line
ANSWER = struct.Struct("!4sQIB43xI")  # magic, collective, sequence, verdict, crc32 of the above

SO_MAX_PACING_RATE = 47  # asm-generic/socket.h; Python doesn't name it
TOTAL_RETRANS = 100  # offset of tcpi_total_retrans in struct tcp_info, linux/tcp.h
UNPACED = struct.pack("=I", 0xFFFFFFFF)
IN, OUT, BROKEN = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR | select.EPOLLHUP


class RefusedError(Exception):
    """A request that can't be done; told in its reply."""


# ---------------------------------------------------------------- payload


class Pattern:
    """The block that all payloads are slices of: the same on every host, without repeats a corruption could hide in."""

    def __init__(self, key: bytes = KEY) -> None:
        block = hashlib.shake_256(key).digest(STARTS * STEP + CHUNK)
        self.fd = os.memfd_create("pattern")
        os.write(self.fd, block)
        self.pages = mmap.mmap(self.fd, len(block), access=mmap.ACCESS_READ)
        self.view = memoryview(self.pages)
        self.identity = zlib.crc32(block)
        self.crcs = [struct.pack("!I", zlib.crc32(self.chunk(start))) for start in range(STARTS)]

    def chunk(self, start: int) -> memoryview:
        """A whole chunk of payload, by the number of its start."""
        return self.view[start * STEP : start * STEP + CHUNK]


class Payload:
    """One transfer's payload, as far as it has got: what comes next, and the checksum of what was."""

    def __init__(self, pattern: Pattern, seed: int, length: int) -> None:
        self.pattern, self.length = pattern, length
        self.first, self.stride = seed % STARTS, 1 + seed // STARTS % (STARTS - 1)
        self.at = 0
        self.checksum = 0

    def start(self, chunk: int) -> int:
        """Which start the chunk of that number has."""
        return (self.first + chunk * self.stride) % STARTS

    def extent(self, most: int) -> tuple[int, int]:
        """The next bytes, at most `most` and within one chunk: where they begin in the block, and how many they are."""
        number, within = divmod(self.at, CHUNK)
        return self.start(number) * STEP + within, min(most, CHUNK - within, self.length - self.at)

    def advance(self, count: int) -> None:
        """Go on by `count` bytes; chunks that are complete by that count in the checksum."""
        before, self.at = self.at, self.at + count
        if before // CHUNK != self.at // CHUNK:
            for number in range(before // CHUNK, self.at // CHUNK):
                self.checksum = zlib.crc32(self.pattern.crcs[self.start(number)], self.checksum)
        rest = self.length % CHUNK
        if count and rest and self.at == self.length:
            tail = zlib.crc32(self.pattern.chunk(self.start(self.length // CHUNK))[:rest])
            self.checksum = zlib.crc32(struct.pack("!I", tail), self.checksum)

    def wrong(self, buffer: bytearray, at: int, count: int) -> int | None:
        """Compare `count` received bytes with the next ones, and go on. Where in the payload the first wrong one is, None if all are right."""
        found, end, view = None, at + count, self.pattern.view
        while at < end:
            begin, size = self.extent(end - at)
            expected = view[begin : begin + size]
            if not buffer.startswith(expected, at) and found is None:
                found = self.at + next(i for i, byte in enumerate(expected) if buffer[at + i] != byte)
            self.advance(size)
            at += size
        return found


def seed_of(sender: str, receiver: str, path: str, collective: int, sequence: int) -> int:
    """The seed of a transfer; both ends know it, so that a transfer delivered to the wrong one is wrong in every byte."""
    return zlib.crc32(f"{sender}>{receiver}/{path}#{collective}.{sequence}".encode())


class Buffer:
    """What a read fills, from the same place within a cache line as the bytes had in their stream."""

    def __init__(self, size: int) -> None:
        self.bytes = bytearray(size + 2 * LINE)
        first = -ctypes.addressof(ctypes.c_char.from_buffer(self.bytes)) % LINE
        view = memoryview(self.bytes)
        self.places = [(first + phase, view[first + phase : first + phase + size]) for phase in range(LINE)]


def filling(length: int) -> int:
    """How many zeros fill a payload's last line."""
    return -length % LINE


def sealed(form: struct.Struct, *fields: Any) -> bytes:
    """Fields packed, followed by their crc32."""
    body = form.pack(*fields, 0)[:-4]
    return body + struct.pack("!I", zlib.crc32(body))


def opened(form: struct.Struct, magic: bytes, raw: bytes) -> tuple[Any, ...] | None:
    """The inverse of `sealed`, without magic and crc32; None if either is wrong."""
    fields = form.unpack(raw)
    if fields[0] != magic or fields[-1] != zlib.crc32(raw[:-4]):
        return None
    return fields[1:-1]


# ---------------------------------------------------------------- transfers and collectives


class Transfer:
    """Bytes to or from one peer by one path, in one collective. `ok` is None until it has ended."""

    def __init__(self, collective: int, peer: str, path: str, sequence: int, size: int) -> None:
        self.collective, self.peer, self.path, self.sequence, self.bytes = (
            collective,
            peer,
            path,
            sequence,
            size,
        )
        self.owner: Collective | None = None
        self.moved = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self.ok: bool | None = None
        self.why = ""

    @property
    def key(self) -> tuple[int, str, str, int]:
        return self.collective, self.peer, self.path, self.sequence

    def end(self, why: str = "") -> None:
        """It has ended, well if there is nothing to say."""
        if self.ok is None:
            self.ok, self.why = not why, why
            if self.owner is not None:
                self.owner.one_less()

    def told(self) -> dict[str, Any]:
        """As the control channel is told."""
        return {
            "peer": self.peer, "path": self.path, "bytes": self.bytes, "first_ns": self.first_ns,
            "last_ns": self.last_ns, "ok": bool(self.ok), "why": self.why,
        }  # fmt: skip


class Send(Transfer):
    """A transfer that leaves. `last_ns` is when its last byte was given to the kernel, `acked_ns` when the receiver had verified all."""

    def __init__(
        self, collective: int, peer: str, path: str, sequence: int, size: int, rate_bps: float | None
    ) -> None:
        super().__init__(collective, peer, path, sequence, size)
        self.rate_bps = rate_bps
        self.acked_ns: int | None = None
        self.retransmits = 0
        self.framed = b""  # what is left of header or trailer
        self.payload: Payload | None = None
        self.trailing = False

    def told(self) -> dict[str, Any]:
        return {
            **super().told(),
            "acked_ns": self.acked_ns,
            "retransmits": self.retransmits,
            "rate_bps": self.rate_bps,
        }

    def missing(self) -> str:
        """What a deadline finds."""
        if self.last_ns is not None:
            return f"sent to {self.peer} by {self.path}, which did not acknowledge it before the deadline"
        return f"{self.moved} of {self.bytes} bytes sent to {self.peer} by {self.path} before the deadline"


class Receive(Transfer):
    """A transfer that arrives. `last_ns` is when its last byte was read."""

    def missing(self, *, connected: bool) -> str:
        """What a deadline finds."""
        if not connected:
            return f"{self.peer} has no connection to here by {self.path}"
        return (
            f"{self.moved} of {self.bytes} bytes had come from {self.peer} by {self.path} before the deadline"
        )


class Collective:
    """What this server sends and receives together; ends when all of it has ended."""

    def __init__(self, number: int, control: Control, start_ns: int | None, deadline_ns: int) -> None:
        self.number, self.control, self.start_ns, self.deadline_ns = number, control, start_ns, deadline_ns
        self.sends: list[Send] = []
        self.receives: list[Receive] = []
        self.left = 0
        self.began_ns: int | None = None
        self.over: Callable[[Collective], None] = lambda _: None

    def own(self, transfer: Transfer) -> None:
        transfer.owner = self
        self.left += transfer.ok is None

    def one_less(self) -> None:
        self.left -= 1
        if not self.left and self.began_ns is not None:
            self.over(self)

    def told(self) -> dict[str, Any]:
        """The event that ends it."""
        late = None if self.began_ns is None or self.start_ns is None else self.began_ns - self.start_ns
        return {
            "event": "done", "collective": self.number, "start_ns": self.began_ns, "start_late_ns": late or 0,
            "sends": [send.told() for send in self.sends], "receives": [receive.told() for receive in self.receives],
        }  # fmt: skip


# ---------------------------------------------------------------- data connections


class Way:
    """How a connection goes: to which peer's listening socket, by which of our NICs."""

    def __init__(self, place: str, asked: dict[str, Any]) -> None:
        self.peer = text(place, asked, "peer")
        self.path = text(place, asked, "path")
        self.address = text(place, asked, "address")
        self.port = whole(place, asked, "port", 1, 65535)
        self.dscp = whole(place, asked, "dscp", 0, 63, 0)
        self.reply_dscp = whole(place, asked, "reply_dscp", 0, 63, 0)
        self.bind = text(place, asked, "bind", "")

    def __str__(self) -> str:
        return f"{self.peer} by {self.path} at {self.address} port {self.port}"

    def socket(self, congestion: str, sndbuf: int) -> socket.socket:
        """A socket on its way there. The send buffer is bounded so that "sent" is never far from "left the server"."""
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            mark(sock, self.dscp)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, sndbuf)
            if self.bind:
                sock.bind((self.bind, 0))
            with suppress(BlockingIOError):  # it is on its way
                sock.connect((self.address, self.port))
        except OSError:
            sock.close()
            raise
        return sock


def mark(sock: socket.socket, dscp: int) -> None:
    """Let packets of this socket carry that DSCP: it says by which NIC they leave."""
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, dscp << 2)
    else:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)


class Outgoing:
    """A connection to one peer by one path. Its transfers leave one after another, each at its own rate."""

    def __init__(
        self, agent: Agent, way: Way, congestion: str, sndbuf: int, settled: Callable[[Outgoing], None]
    ) -> None:
        self.agent, self.way, self.settled = agent, way, settled
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
            agent.watch(self.sock.fileno(), IN | OUT, self.ready)

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
            self.agent.forget(self.sock.fileno())
            if hit:  # a reset, or the kernel would go on sending what it holds, at the old pace
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.sock.close()
            self.sock = None
        self.queue.clear()
        self.unacknowledged.clear()
        for send in hit:
            send.end(f"connection to {self.way}: {why}; {send.moved} of {send.bytes} bytes were sent")
        self.settled(self)

    def _watch(self) -> None:
        if self.sock is not None:
            self.agent.watch(self.sock.fileno(), IN | OUT if self.queue else IN, self.ready)

    def _greet(self) -> None:
        assert self.sock is not None
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        names = {
            "from": self.agent.name,
            "to": self.way.peer,
            "path": self.way.path,
            "dscp": self.way.reply_dscp,
        }
        body = json.dumps({**names, "version": VERSION}).encode()
        body += b" " * filling(len(body))
        self.sock.sendall(GREETING.pack(b"mfGr", len(body), zlib.crc32(body)) + body)
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
        answer = opened(ANSWER, b"mfAn", raw)
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
            self.sock.send(sealed(HEADER, b"mfRe", 0, 0, 0, 0, 0))

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
            count = os.sendfile(self.sock.fileno(), self.agent.pattern.fd, begin, size)
            payload.advance(count)
            send.moved = payload.at
            self.agent.counts["bytes_sent"] += count
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
        seed = seed_of(self.agent.name, send.peer, send.path, send.collective, send.sequence)
        pattern = self.agent.pattern
        send.payload = Payload(pattern, seed, send.bytes)
        send.framed = sealed(
            HEADER, b"mfTx", send.collective, send.sequence, send.bytes, seed, pattern.identity
        )  # fmt: skip
        send.first_ns = NOW()

    def _finish(self, send: Send, payload: Payload) -> None:
        if not send.trailing:
            send.trailing = True
            trailer = sealed(TRAILER, b"mfEn", send.bytes, send.sequence, payload.checksum)
            send.framed = bytes(filling(send.bytes)) + trailer
        else:
            send.last_ns = NOW()
            self.unacknowledged.append(self.queue.popleft())

    def _total_retransmits(self) -> int:
        if self.sock is None:
            return self.retransmits
        info = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TOTAL_RETRANS + 4)
        return int(struct.unpack_from("=I", info, TOTAL_RETRANS)[0])


def pacing(rate_bps: float | None) -> bytes:
    """SO_MAX_PACING_RATE of a rate: bytes per second, in four bytes or, beyond 34 Gb/s, eight (Linux 4.20)."""
    if rate_bps is None:
        return UNPACED
    rate = max(1, round(rate_bps / 8))
    return struct.pack("=I", rate) if rate < 0xFFFFFFFF else struct.pack("=Q", rate)


class Incoming:
    """A connection that a peer opened: a greeting, then transfers, each verified to the last byte."""

    def __init__(self, agent: Agent, sock: socket.socket, where: str) -> None:
        self.agent, self.sock, self.where = agent, sock, where
        self.peer, self.path, self.closed, self.phase = "", "", False, 0
        self.held = bytearray()
        self.wants = GREETING.size
        self.then: Callable[[bytes, int], None] = self._greeting
        self.batch = 1
        self.outbox = b""
        self.greeting_crc = 0
        self.receive: Receive | None = None
        self.payload: Payload | None = None
        self.fault = ""
        agent.watch(sock.fileno(), IN, self.ready)

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
        self.agent.forget(self.sock.fileno())
        self.sock.close()
        self.agent.incoming_lost(self, why)

    def _read(self) -> None:
        buffer = self.agent.buffer
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
        if wrong is not None and not self.fault:
            self.fault = f"byte {wrong} of {payload.length} is not the one that was sent"
        assert self.receive is not None
        self.receive.moved = payload.at
        self.agent.counts["bytes_received"] += count
        return count

    def _greeting(self, raw: bytes, _now: int) -> None:
        magic, length, self.greeting_crc = GREETING.unpack(raw)
        if magic != b"mfGr" or not 0 < length <= 4096:
            self.lose("it opened with something other than an agent's greeting")
            return
        self.wants, self.then = length, self._names

    def _names(self, raw: bytes, _now: int) -> None:
        if zlib.crc32(raw) != self.greeting_crc:
            self.lose("its greeting is corrupt")
            return
        names = json.loads(raw)
        welcome = names["to"] == self.agent.name and names["version"] == VERSION
        if welcome:
            self.peer, self.path = names["from"], names["path"]
            mark(self.sock, names["dscp"])
            self.agent.incoming_up(self)
        self._say(sealed(ANSWER, b"mfAn", 0, 0, welcome))
        if not welcome:
            self.lose(f"it looks for {names['to']} of version {names['version']}")
            return
        self.wants, self.then = HEADER.size, self._header

    def _header(self, raw: bytes, now: int) -> None:
        if opened(HEADER, b"mfRe", raw) is not None:
            self.wants, self.then = HEADER.size, self._header
            return
        header = opened(HEADER, b"mfTx", raw)
        if header is None:
            self.lose(
                "out of step: a transfer's header is corrupt, so bytes before it were lost, added or changed"
            )
            return
        collective, sequence, length, seed, identity = header
        receive = self.agent.arriving(collective, self.peer, self.path, sequence, length)
        receive.first_ns = now
        self.fault = ""
        if length != receive.bytes:
            self.fault = f"{length} bytes were sent where {receive.bytes} are expected"
        elif seed != seed_of(self.peer, self.agent.name, self.path, collective, sequence):
            self.fault = "its seed is another transfer's"
        elif identity != self.agent.pattern.identity:
            self.fault = f"{self.peer} sends by another pattern than ours"
        self.receive, self.payload = receive, Payload(self.agent.pattern, seed, length)
        self.wants, self.then = filling(length) + TRAILER.size, self._trailer

    def _trailer(self, raw: bytes, now: int) -> None:
        receive, payload = self.receive, self.payload
        assert receive is not None
        assert payload is not None
        zeros, raw = raw[: -TRAILER.size], raw[-TRAILER.size :]
        trailer = opened(TRAILER, b"mfEn", raw)
        if trailer is None or any(zeros):
            self.lose(
                self.fault
                or "out of step: a transfer's trailer is corrupt, so bytes were lost, added or changed"
            )
            return
        if trailer != (payload.length, receive.sequence, payload.checksum):
            self.fault = self.fault or "its length or checksum is not the one that was sent"
        self.receive = self.payload = None
        receive.last_ns = now
        self.agent.counts["corrupt"] += bool(self.fault)
        self._say(sealed(ANSWER, b"mfAn", receive.collective, receive.sequence, not self.fault))
        receive.end(self.fault)
        self.wants, self.then = HEADER.size, self._header

    def _say(self, words: bytes) -> None:
        self.outbox += words
        try:
            while self.outbox:
                self.outbox = self.outbox[self.sock.send(self.outbox) :]
        except BlockingIOError:
            pass
        self.agent.watch(self.sock.fileno(), IN | OUT if self.outbox else IN, self.ready)


# ---------------------------------------------------------------- requests


MISSING = object()


def _asked(place: str, asked: dict[str, Any], field: str, default: Any) -> Any:
    value = asked.get(field, default)
    if value is MISSING:
        raise RefusedError(f"{place}{field} is missing")
    return value


def text(place: str, asked: dict[str, Any], field: str, default: Any = MISSING) -> str:
    """A string of a request."""
    value = _asked(place, asked, field, default)
    if not isinstance(value, str):
        raise RefusedError(f"{place}{field}: {value!r} is not a text")
    return value


def whole(
    place: str, asked: dict[str, Any], field: str, least: int, most: int, default: Any = MISSING
) -> int:
    """A whole number of a request, within bounds."""
    value = _asked(place, asked, field, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise RefusedError(f"{place}{field}: {value!r} is not a whole number from {least} to {most}")
    return value


def rate(place: str, asked: dict[str, Any]) -> float | None:
    """A transfer's rate in bits per second; None is as fast as it goes."""
    value = asked.get("rate_bps")
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        raise RefusedError(f"{place}rate_bps: {value!r} is not a rate")
    return float(value)


def parts(place: str, asked: dict[str, Any], field: str) -> list[tuple[str, dict[str, Any]]]:
    """A list of objects of a request, each with its place."""
    value = asked.get(field, [])
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        raise RefusedError(f"{place}{field}: a list of objects is needed")
    return [(f"{place}{field}[{i}].", part) for i, part in enumerate(value)]


def whole_object(line: bytes) -> dict[str, Any]:
    """A line as a JSON object. ValueError if it isn't JSON."""
    said = json.loads(line)
    if not isinstance(said, dict):
        raise RefusedError("a request is a JSON object")
    return said


def operation(asked: dict[str, Any]) -> Callable[[Agent, Control, dict[str, Any]], dict[str, Any] | None]:
    """What does the op that is asked for."""
    name = text("", asked, "op")
    if name not in OPS:
        raise RefusedError(f"op: does not know {name!r}; knows {', '.join(OPS)}")
    return OPS[name]


class Connecting:
    """A connect request that waits until all its connections are up, or one can't be."""

    def __init__(self, control: Control, number: Any) -> None:
        self.control, self.number = control, number
        self.waiting: set[Outgoing] = set()
        self.all: list[Outgoing] = []
        self.answered = False

    def settled(self, connection: Outgoing) -> None:
        self.waiting.discard(connection)
        self.answer_if_over()

    def answer_if_over(self) -> None:
        if self.waiting or self.answered:
            return
        self.answered = True
        down = [f"{out.way}: {out.why}" for out in self.all if out.state != "up"]
        facts = [out.facts() for out in self.all]
        if down:
            error = f"{self.control.agent.name}: no connection to " + "; ".join(down)
            self.control.say({"id": self.number, "ok": False, "error": error, "paths": facts})
        else:
            self.control.say({"id": self.number, "ok": True, "paths": facts})

    def deadline(self) -> None:
        for connection in list(self.waiting):
            connection.lose(f"still {connection.state} at the deadline")


class Control:
    """A control channel: lines of JSON, in and out."""

    def __init__(self, agent: Agent, reads: int, writes: int, ended: Callable[[], None]) -> None:
        self.agent, self.reads, self.writes, self.ended = agent, reads, writes, ended
        self.inbox, self.outbox = bytearray(), bytearray()
        self.open = True
        for fd in (reads, writes):
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NONBLOCK)
        agent.watch(reads, IN, self.ready)

    def ready(self, mask: int) -> None:
        """Something came, or more can be said."""
        try:
            if mask & OUT:
                self.flush()
            if mask & (IN | BROKEN) and self.open:
                came = os.read(self.reads, 1 << 20)
                if not came:
                    self.close()
                self.inbox += came
        except BlockingIOError:
            return
        except OSError:
            self.close()
        *lines, rest = self.inbox.split(b"\n")
        self.inbox = rest
        if len(rest) > LONGEST_LINE:
            self.close()
        for line in lines:
            if line.strip():
                self.agent.request(self, bytes(line))

    def say(self, words: dict[str, Any]) -> None:
        """Say one line."""
        if self.open:
            self.outbox += json.dumps(words).encode() + b"\n"
            self.flush()

    def flush(self) -> None:
        try:
            while self.outbox:
                del self.outbox[: os.write(self.writes, self.outbox)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        mask = OUT if self.outbox else 0
        if self.writes == self.reads:
            self.agent.watch(self.writes, IN | mask, self.ready)
        elif mask:
            self.agent.watch(self.writes, mask, self.ready)
        else:
            self.agent.forget(self.writes)

    def close(self) -> None:
        if self.open:
            self.open = False
            self.agent.forget(self.reads)
            self.agent.forget(self.writes)
            self.ended()


# ---------------------------------------------------------------- the agent


class Timer:
    """Something to do at an instant; `precise` ones are waited for with the processor, at the very end."""

    def __init__(self, when_ns: int, do: Callable[[], None], *, precise: bool) -> None:
        self.when_ns, self.do, self.precise = when_ns, do, precise
        self.cancelled = False


class Agent:
    """One server's sender and receiver."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoll = select.epoll()
        self.masks: dict[int, int] = {}
        self.watchers: dict[int, Callable[[int], None]] = {}
        self.timers: list[tuple[int, int, Timer]] = []
        self.tie = itertools.count()
        self.pattern = Pattern()
        self.buffer = Buffer(READ)
        self.listening: socket.socket | None = None
        self.outgoing: dict[tuple[str, str], Outgoing] = {}
        self.incoming: dict[tuple[str, str], Incoming] = {}
        self.strangers: set[Incoming] = set()
        self.collectives: dict[int, tuple[Collective, list[Timer]]] = {}
        self.expected: dict[tuple[int, str, str, int], Receive] = {}
        self.early: OrderedDict[tuple[int, str, str, int], Receive] = OrderedDict()
        self.ended: OrderedDict[int, None] = OrderedDict()
        self.counts = {"bytes_sent": 0, "bytes_received": 0, "corrupt": 0, "strays": 0, "faults": 0}
        self.running = True

    # -- the loop

    def watch(self, fd: int, mask: int, watcher: Callable[[int], None]) -> None:
        """Call `watcher` when the descriptor is ready for what `mask` says."""
        before = self.masks.get(fd)
        self.watchers[fd] = watcher
        if before == mask:
            return
        self.masks[fd] = mask
        if before is None:
            self.epoll.register(fd, mask)
        else:
            self.epoll.modify(fd, mask)

    def forget(self, fd: int) -> None:
        """No longer watch the descriptor."""
        if self.masks.pop(fd, None) is not None:
            del self.watchers[fd]
            self.epoll.unregister(fd)

    def at(self, when_ns: int, do: Callable[[], None], *, precise: bool = False) -> Timer:
        """Do something at an instant."""
        timer = Timer(when_ns, do, precise=precise)
        heapq.heappush(self.timers, (when_ns, next(self.tie), timer))
        return timer

    def run(self) -> None:
        """Serve until told to stop."""
        while self.running:
            for fd, mask in self._wait():
                watcher = self.watchers.get(fd)
                if watcher is not None:
                    self._guard(watcher, mask)
            while self.timers and (self.timers[0][2].cancelled or self.timers[0][0] <= NOW()):
                timer = heapq.heappop(self.timers)[2]
                if not timer.cancelled:
                    self._guard(timer.do)

    def _wait(self) -> list[tuple[int, int]]:
        while self.timers and self.timers[0][2].cancelled:
            heapq.heappop(self.timers)
        if not self.timers:
            return self.epoll.poll(-1)
        when_ns, _, timer = self.timers[0]
        ahead = when_ns - NOW() - (SPIN_NS if timer.precise else 0)
        if ahead > 5_000_000 or not timer.precise:
            # epoll rounds up to milliseconds
            return self.epoll.poll(max(0, ahead - 2_000_000 * timer.precise) / 1e9)
        if ahead > 0:
            select.select([self.epoll], [], [], ahead / 1e9)
        return self.epoll.poll(0)

    def _guard(self, do: Callable[..., None], *arguments: Any) -> None:
        """A fault of ours costs the connection it happened on, never the agent; it is told, not swallowed."""
        try:
            do(*arguments)
        except Exception as error:  # noqa: BLE001 - an unforeseen fault must not end the agent of a server
            self.counts["faults"] += 1
            traceback.print_exc()
            owner = getattr(do, "__self__", None)
            if isinstance(owner, (Outgoing, Incoming)):
                owner.lose(f"a fault of the agent {self.name}: {error!r}")
            elif isinstance(owner, Control):
                owner.say({"event": "fault", "error": repr(error)})

    # -- requests

    def request(self, control: Control, line: bytes) -> None:
        """Do what a line asks, and reply."""
        number = None
        try:
            asked = whole_object(line)
            number = asked.get("id")
            reply = operation(asked)(self, control, asked)
        except (RefusedError, OSError, ValueError) as error:
            why = said(error) if isinstance(error, OSError) else str(error)
            control.say({"id": number, "ok": False, "error": f"{self.name}: {why}"})
            return
        if reply is not None:
            control.say({"id": number, "ok": True, **reply})

    def hello(self, _control: Control, _asked: dict[str, Any]) -> dict[str, Any]:
        """Who this is."""
        return {
            "name": self.name, "version": VERSION, "pid": os.getpid(), "python": platform.python_version(),
            "monotonic_ns": NOW(), "clock": clock_identity(),
        }  # fmt: skip

    def clock(self, _control: Control, _asked: dict[str, Any]) -> dict[str, Any]:
        """What time it is here."""
        return {"monotonic_ns": NOW()}

    def listen(self, _control: Control, asked: dict[str, Any]) -> dict[str, Any]:
        """Open the data port; port 0 lets the kernel choose. Asked again, the same port is told."""
        address, port = text("", asked, "address"), whole("", asked, "port", 0, 65535, 0)
        if self.listening is None:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((address, port))
                sock.listen(1024)
            except OSError as error:
                sock.close()
                raise RefusedError(f"can't listen on {address} port {port}: {said(error)}") from error
            self.listening = sock
            self.watch(sock.fileno(), IN, self._accept)
        where = self.listening.getsockname()
        if where[0] != address or port not in (0, where[1]):
            raise RefusedError(
                f"can't listen on {address} port {port}: listens on {where[0]} port {where[1]} already"
            )
        return {"address": where[0], "port": where[1]}

    def connect(self, control: Control, asked: dict[str, Any]) -> None:
        """Open connections. The reply comes when all are up, or names those that aren't."""
        congestion = text("", asked, "congestion", "cubic")
        sndbuf = whole("", asked, "sndbuf", 4096, 1 << 30, SNDBUF)
        deadline = whole("", asked, "deadline_ns", 0, 1 << 63, NOW() + 10_000_000_000)
        ways = [Way(place, part) for place, part in parts("", asked, "paths")]
        request = Connecting(control, asked.get("id"))
        for way in ways:
            old = self.outgoing.pop((way.peer, way.path), None)
            if old is not None:
                old.lose("replaced by a newer one")
            connection = Outgoing(self, way, congestion, sndbuf, request.settled)
            self.outgoing[way.peer, way.path] = connection
            request.all.append(connection)
        request.waiting = {out for out in request.all if out.state not in ("up", "lost")}
        self.at(deadline, request.deadline)
        request.answer_if_over()

    def collective(self, control: Control, asked: dict[str, Any]) -> dict[str, Any]:
        """Arm a collective; it starts by itself and ends with an event."""
        number = whole("", asked, "collective", 0, (1 << 64) - 1)
        if number in self.collectives:
            raise RefusedError(f"collective {number} is armed already")
        start = None if asked.get("start_ns") is None else whole("", asked, "start_ns", 0, 1 << 63)
        deadline = whole("", asked, "deadline_ns", 0, 1 << 63)
        made = Collective(number, control, start, deadline)
        made.sends = self._sends(number, asked)
        made.receives = self._receives(number, asked)
        self.ended.pop(number, None)
        for receive in made.receives:
            if receive.ok is None:
                self.expected[receive.key] = receive
        for transfer in (*made.sends, *made.receives):
            made.own(transfer)
        made.over = self._over
        begin = self.at(
            NOW() if start is None else start, lambda: self._begin(made), precise=start is not None
        )
        self.collectives[number] = made, [begin, self.at(deadline, lambda: self._deadline(made))]
        return {"armed": number}

    def stats(self, _control: Control, _asked: dict[str, Any]) -> dict[str, Any]:
        """What this agent has done."""
        return {
            **self.counts, "cpu_ns": time.process_time_ns(), "monotonic_ns": NOW(), "armed": list(self.collectives),
            "connections": [out.facts() for out in self.outgoing.values()],
            "from": [{"peer": peer, "path": path} for peer, path in self.incoming],
        }  # fmt: skip

    def close(self, _control: Control, _asked: dict[str, Any]) -> dict[str, Any]:
        """Close every data connection and the data port; collectives under way end as they are."""
        for out in list(self.outgoing.values()):
            out.lose("closed by request")
        for into in [*self.incoming.values(), *self.strangers]:
            into.lose("closed by request")
        for made, _ in list(self.collectives.values()):
            self._deadline(made)
        self.outgoing.clear()
        if self.listening is not None:
            self.forget(self.listening.fileno())
            self.listening.close()
            self.listening = None
        return {}

    def stop(self, control: Control, asked: dict[str, Any]) -> dict[str, Any]:
        """Close all and end."""
        self.close(control, asked)
        self.running = False
        return {}

    # -- collectives

    def _sends(self, number: int, asked: dict[str, Any]) -> list[Send]:
        found: list[Send] = []
        for place, part, sequence in self._numbered("sends", asked):
            peer, path = text(place, part, "peer"), text(place, part, "path")
            size = whole(place, part, "bytes", 0, 1 << 62)
            found.append(Send(number, peer, path, sequence, size, rate(place, part)))
        return found

    def _receives(self, number: int, asked: dict[str, Any]) -> list[Receive]:
        found: list[Receive] = []
        for place, part, sequence in self._numbered("receives", asked):
            receive = Receive(
                number, text(place, part, "peer"), text(place, part, "path"), sequence,
                whole(place, part, "bytes", 0, 1 << 62),
            )  # fmt: skip
            early = self.early.pop(receive.key, None)
            if early is not None:
                if early.bytes != receive.bytes:
                    early.ok, early.why = (
                        False,
                        f"{early.bytes} bytes were sent where {receive.bytes} are expected",
                    )
                receive = early
            found.append(receive)
        return found

    @staticmethod
    def _numbered(field: str, asked: dict[str, Any]) -> list[tuple[str, dict[str, Any], int]]:
        """Transfers of a request; those of one peer and path are numbered in order, at both ends alike."""
        seen: dict[tuple[Any, Any], int] = {}
        found = []
        for place, part in parts("", asked, field):
            way = (str(part.get("peer")), str(part.get("path")))
            found.append((place, part, seen.get(way, 0)))
            seen[way] = seen.get(way, 0) + 1
        return found

    def _begin(self, made: Collective) -> None:
        made.began_ns = NOW()
        made.left += 1  # it can't be over before all its sends were queued
        for send in made.sends:
            connection = self.outgoing.get((send.peer, send.path))
            if connection is None:
                send.end(f"no connection to {send.peer} by {send.path}; connect first")
            else:
                connection.send(send)
        made.one_less()

    def _deadline(self, made: Collective) -> None:
        if made.number not in self.collectives:
            return
        made.began_ns = made.began_ns or NOW()
        made.left += 1
        for send in made.sends:
            if send.ok is None:
                why, connection = send.missing(), self.outgoing.get((send.peer, send.path))
                send.end(why)
                if connection is not None:
                    connection.abandon(send)
        for receive in made.receives:
            if receive.ok is None:
                receive.end(receive.missing(connected=(receive.peer, receive.path) in self.incoming))
        made.one_less()

    def _over(self, made: Collective) -> None:
        _, timers = self.collectives.pop(made.number)
        for timer in timers:
            timer.cancelled = True
        for receive in made.receives:
            self.expected.pop(receive.key, None)
        self.ended[made.number] = None
        while len(self.ended) > REMEMBERED:
            self.ended.popitem(last=False)
        made.control.say(made.told())

    # -- connections of peers

    def _accept(self, _mask: int) -> None:
        assert self.listening is not None
        try:
            sock, where = self.listening.accept()
        except BlockingIOError:
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.strangers.add(Incoming(self, sock, where[0]))

    def incoming_up(self, connection: Incoming) -> None:
        """A peer has said who it is."""
        self.strangers.discard(connection)
        old = self.incoming.get((connection.peer, connection.path))
        if old is not None:
            old.lose("replaced by a newer one")
        self.incoming[connection.peer, connection.path] = connection

    def incoming_lost(self, connection: Incoming, why: str) -> None:
        """A peer's connection is gone; what was expected by it won't come."""
        self.strangers.discard(connection)
        came_by = (connection.peer, connection.path)
        if self.incoming.get(came_by) is not connection:
            return
        del self.incoming[came_by]
        under_way = connection.receive
        if under_way is not None and connection.fault:
            self.counts["corrupt"] += 1
            under_way.end(connection.fault)
        waiting = [receive for receive in self.expected.values() if (receive.peer, receive.path) == came_by]
        for receive in [under_way, *waiting] if under_way is not None else waiting:
            come = f"{receive.moved} of {receive.bytes} bytes had come"
            receive.end(f"connection from {receive.peer} by {receive.path}: {why}; {come}")

    def arriving(self, collective: int, peer: str, path: str, sequence: int, length: int) -> Receive:
        """The transfer that a header announces: an expected one, one that is early, or a stray."""
        key = (collective, peer, path, sequence)
        expected = self.expected.get(key)
        if expected is not None and expected.ok is None and expected.first_ns is None:
            return expected
        receive = Receive(collective, peer, path, sequence, length)
        if expected is not None or collective in self.ended:
            self.counts["strays"] += 1
            return receive
        self.early[key] = receive
        while len(self.early) > 16 * REMEMBERED:
            self.early.popitem(last=False)
        return receive


OPS: dict[str, Callable[[Agent, Control, dict[str, Any]], dict[str, Any] | None]] = {
    "hello": Agent.hello, "clock": Agent.clock, "listen": Agent.listen, "connect": Agent.connect,
    "collective": Agent.collective, "stats": Agent.stats, "close": Agent.close, "stop": Agent.stop,
}  # fmt: skip


def clock_identity() -> str:
    """Two processes that say the same read the very same CLOCK_MONOTONIC: one boot of one kernel, one time namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/time')}"  # noqa: PTH115 - Path.readlink is of Python 3.9
    except OSError:
        return ""  # a kernel before 5.6, or no /proc: nobody's clock is known to be this one


def said(error: OSError) -> str:
    """An error of the system, without its number."""
    return error.strerror or str(error)


# ---------------------------------------------------------------- the door


def serve_socket(agent: Agent, path: str) -> socket.socket:
    """Listen for control channels at a unix socket that only its owner may open."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        Path(path).unlink(missing_ok=True)
    else:
        raise RefusedError(f"{path}: an agent answers there already; stop it, or choose another path")
    finally:
        probe.close()
    umask = os.umask(0o177)
    try:
        sock.bind(path)
    finally:
        os.umask(umask)
    sock.listen(16)

    def accept(_mask: int) -> None:
        try:
            channel, _ = sock.accept()
        except BlockingIOError:
            return
        Control(agent, channel.fileno(), channel.fileno(), channel.close)

    agent.watch(sock.fileno(), IN, accept)
    return sock


def stop_by_end(agent: Agent) -> Callable[[], None]:
    """Over stdin and stdout, the end of the channel is the end of the agent: nothing stays behind on a host."""

    def stop() -> None:
        agent.running = False

    return stop


def quiet_end(_signal: int, _frame: Any) -> None:
    raise SystemExit(0)


def main() -> int:
    """`agent.py --name s0 --control PATH` or `agent.py --name s0 --stdio`."""
    parser = argparse.ArgumentParser(prog="agent.py", description="the agent of one server")
    parser.add_argument("--name", required=True, help="the server's name, such as s0")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--control", metavar="PATH", help="take commands at this unix socket")
    where.add_argument("--stdio", action="store_true", help="take commands from stdin")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, quiet_end)
    signal.signal(signal.SIGINT, quiet_end)
    with suppress(OSError):  # an older kernel wakes us up to 50 µs late, which SPIN_NS covers
        Path("/proc/self/timerslack_ns").write_text("1000")
    agent = Agent(chosen.name)
    sock: socket.socket | None = None
    try:
        if chosen.stdio:
            Control(agent, 0, 1, stop_by_end(agent))
        else:
            sock = serve_socket(agent, chosen.control)
        agent.run()
    except (RefusedError, OSError) as error:
        sys.stderr.write(f"agent {chosen.name}: {error}\n")
        return 1
    finally:
        if sock is not None:
            sock.close()
            Path(chosen.control).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
