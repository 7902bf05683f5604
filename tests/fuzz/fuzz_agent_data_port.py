"""Data connections of an agent: what a sender, a relay and a receiver read from each other.

The first line of an input has a word and the number of bytes that one read returns. After `raw`,
the rest is read as it is. After `sealed`, the second line is the body of the greeting, and greeting
and frames get their checksums, so that mutations reach what lies behind them.
"""

import os
import socket
import struct
import zlib
from typing import cast

from moefabric.agents.engine import wire
from moefabric.agents.engine.connections import UnnamedConnection
from moefabric.agents.engine.outgoing import OutgoingConnection
from moefabric.agents.engine.pieces import Pieces
from moefabric.agents.engine.requests import Fields
from moefabric.agents.engine.resources import Arrivals, Resources
from moefabric.agents.engine.sockets import Destination, Network
from moefabric.agents.engine.transfers import Receive, Send, TransferKey
from moefabric.runtime.event_loop import IN, OUT, EventLoop
from tests.support.fuzzing import FuzzTarget

_FRAMES = (
    wire.HEADER, wire.MESSAGE, wire.CONTENT, wire.IDLE, wire.TRAILER, wire.ACKNOWLEDGEMENT,
    wire.GRANT, wire.LOSS,
)  # fmt: skip
_CRC32_PLACES = {frame.magic: frame.form.size - 4 for frame in _FRAMES}
_LOOP = EventLoop()
_RESOURCES = Resources("s1", _LOOP)
_RESOURCES.secret = "secret"


class MemorySocket:
    """A connected socket with bytes to read; it takes what is sent and ignores options.

    Args:
        unread: The bytes.
        most: Bytes that one call reads at most.
    """

    family = socket.AF_INET

    def __init__(self, unread: bytes = b"", most: int = 1 << 20) -> None:
        self.unread, self.most = memoryview(unread), max(1, most)
        self._descriptor = os.eventfd(0)

    def fileno(self) -> int:
        """Return a descriptor that is never ready."""
        return self._descriptor

    def recv_into(self, place: memoryview) -> int:
        """Read bytes; return how many."""
        count = min(len(place), len(self.unread), self.most)
        place[:count] = self.unread[:count]
        self.unread = self.unread[count:]
        return count

    def recv(self, size: int) -> bytes:
        """Read bytes."""
        place = bytearray(size)
        return bytes(place[: self.recv_into(memoryview(place))])

    def send(self, data: bytes, _flags: int = 0) -> int:
        """Take all bytes."""
        return len(data)

    def sendall(self, data: bytes) -> None:
        """Take all bytes."""

    def setsockopt(self, *_option: object) -> None:
        """Ignore an option."""

    def getsockopt(self, _level: int, option: int, size: int = 0) -> int | bytes:
        """Return zeros, or a usual segment size."""
        if size:
            return bytes(size)
        return 1448 if option == socket.TCP_MAXSEG else 0

    def shutdown(self, _how: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Release the descriptor; nothing can be read then."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor, self.unread = -1, memoryview(b"")


class MemoryDestination(Destination):
    """A peer whose answers are known."""

    def __init__(self, answers: bytes, most: int) -> None:
        super().__init__(
            Fields({"peer": "s2", "path": "o0", "address": "", "port": 1}), "cubic", 4096
        )
        self.socket = MemorySocket(answers, most)

    def start_connecting(self, _network: Network, dscp: int | None = None) -> socket.socket:
        """Return the connection."""
        return cast(socket.socket, self.socket)


def read_at_receiver(data: bytes) -> None:
    """Have an agent read a connection by which a pattern and bytes of ranks are to come."""
    resources, (stream, most) = _RESOURCES, _stream(data)
    resources.arrivals = Arrivals(resources.counters)
    resources.arrivals.expect(Receive(TransferKey(1, "s0", "o0", 0), 64))
    memory = Pieces([memoryview(bytearray(64))])
    resources.arrivals.expect(Receive(TransferKey(2, "s0", "o0", 0), 64, memory))
    near = MemorySocket(stream, most)
    destination = resources.destinations["s2"] = MemoryDestination(b"", 1)
    UnnamedConnection(resources, cast(socket.socket, near), "198.18.0.2")
    _serve(near)
    for connection in [
        *resources.incoming.values(), *resources.unnamed, *resources.relays.values()
    ]:  # fmt: skip
        connection.lose("the input has ended")
    _release(near, destination.socket)


def read_at_sender(data: bytes) -> None:
    """Have an agent read the answers to a greeting and a transfer."""
    destination = MemoryDestination(*_stream(data))
    connection = OutgoingConnection(_RESOURCES, destination)
    connection.ready(OUT)
    connection.ready(IN)
    connection.send(Send(TransferKey(1, "s2", "o0", 0), 64, None))
    _serve(destination.socket)
    connection.lose("the input has ended")
    _release(destination.socket)


def _stream(data: bytes) -> tuple[bytes, int]:
    """Return the bytes to read, and how many a read returns."""
    words, _, rest = data.partition(b"\n")
    kind, _, most = words.partition(b" ")
    size = min(int(most), 1 << 16) if most.isascii() and most.isdigit() else 1 << 16
    if kind != b"sealed":
        return rest, size
    body, _, frames = rest.partition(b"\n")
    head = wire.GREETING.pack(b"mfGr", len(body), zlib.crc32(body)) + body if body else b""
    return head + _sealed(frames), size


def _sealed(data: bytes) -> bytes:
    """Return frames with the checksums that belong to them."""
    frames = bytearray(data)
    for begin in range(0, len(frames) - wire.LINE + 1, wire.LINE):
        if place := _CRC32_PLACES.get(bytes(frames[begin : begin + 4])):
            crc32 = zlib.crc32(frames[begin : begin + place])
            struct.pack_into("!I", frames, begin + place, crc32)
    return bytes(frames)


def _serve(sock: MemorySocket) -> None:
    """Call back as the loop does until all is read, or nobody waits for it."""
    while sock.unread and _LOOP.masks.get(sock.fileno(), 0) & IN:
        _LOOP.callbacks[sock.fileno()](IN)


def _release(*sockets: MemorySocket) -> None:
    for sock in sockets:
        _LOOP.forget(sock.fileno())
        sock.close()
    _LOOP.timers.clear()


TARGETS = (
    FuzzTarget("agent-data-port", read_at_receiver),
    FuzzTarget("agent-answers", read_at_sender),
)
