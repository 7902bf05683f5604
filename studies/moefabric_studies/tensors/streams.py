"""A channel over TCP, which sends tensors in slices: first in first out, or by priority."""

import heapq
import socket
import struct
from itertools import count
from typing import Final

from moefabric.api.links import IN, OUT, EventLoop
from moefabric_studies.tensors.channel import OnTensor, Tensor
from moefabric_studies.tensors.receiver import Received

_HEADER: Final = struct.Struct("!IIII")
"""Tensor, its bytes, offset of the slice and its bytes."""
_SLICE_BYTES: Final = 16 * 1024
_READ_BYTES: Final = 1 << 18
_TCP_NOTSENT_LOWAT: Final = 25
"""Socket option: bytes waiting in the socket above which it isn't writable (linux/tcp.h)."""


class StreamChannel:
    """End of a channel over a TCP connection, which loses nothing.

    With priorities, a slice of a front layer overtakes those of other layers that have not entered
    the socket, as in P3 (MLSys 2019) and ByteScheduler (SOSP 2019).
    """

    def __init__(
        self, loop: EventLoop, connection: socket.socket, on_tensor: OnTensor, *, prioritized: bool
    ) -> None:
        """Watch a connected TCP socket.

        Args:
            loop: Calls back when bytes arrive.
            connection: A non-blocking connection.
            on_tensor: Called with each tensor that is complete.
            prioritized: Whether slices of front layers are sent first.
        """
        self._loop, self._sock, self._on_tensor = loop, connection, on_tensor
        self._prioritized = prioritized
        self._turns = count()
        self._waiting: list[tuple[int, int, bytes]] = []
        self._writing = memoryview(b"")
        self._arrived = bytearray()
        self._tensors: dict[int, tuple[bytearray, int]] = {}
        if prioritized:
            connection.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _SLICE_BYTES)
        loop.watch(connection.fileno(), IN, self._on_ready)

    def send(self, tensor: Tensor) -> None:
        """Send a tensor."""
        size = len(tensor.values)
        for offset in range(0, size, _SLICE_BYTES):
            values = tensor.values[offset : offset + _SLICE_BYTES]
            frame = _HEADER.pack(tensor.number, size, offset, len(values)) + values
            rank = tensor.priority if self._prioritized else 0
            heapq.heappush(self._waiting, (rank, next(self._turns), frame))
        self._loop.watch(self._sock.fileno(), IN | OUT, self._on_ready)

    def close(self) -> None:
        """Close the connection."""
        self._loop.forget(self._sock.fileno())
        self._sock.close()

    def _on_ready(self, mask: int) -> None:
        if mask & OUT:
            self._write()
        if mask & IN:
            self._read()

    def _write(self) -> None:
        """Write at most one slice, so that a later one of a front layer comes next."""
        if not self._writing and self._waiting:
            self._writing = memoryview(heapq.heappop(self._waiting)[2])
        if self._writing:
            self._writing = self._writing[self._sock.send(self._writing) :]
        if not self._writing and not self._waiting:
            self._loop.watch(self._sock.fileno(), IN, self._on_ready)

    def _read(self) -> None:
        self._arrived += self._sock.recv(_READ_BYTES)
        while len(self._arrived) >= _HEADER.size:
            number, size, offset, length = _HEADER.unpack_from(self._arrived)
            end = _HEADER.size + length
            if len(self._arrived) < end:
                return
            self._put(number, size, offset, self._arrived[_HEADER.size : end])
            del self._arrived[:end]

    def _put(self, number: int, size: int, offset: int, values: bytearray) -> None:
        tensor, present = self._tensors.pop(number, (bytearray(size), 0))
        tensor[offset : offset + len(values)] = values
        if present + len(values) < size:
            self._tensors[number] = tensor, present + len(values)
        else:
            self._on_tensor(Received(number, tensor))
