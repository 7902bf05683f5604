"""The ring in which a switch's program leaves packets for the controller, as its reader sees it (Linux's bpf_ringbuf)."""

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator

from emulator import bpf_calls

RING_BYTES = 1 << 17  # a power of two, of pages
_BUSY, _DISCARDED = 1 << 31, 1 << 30
_HEADER = struct.Struct("=II")  # length and the two bits above; where the page is, for the kernel
_POSITION = struct.Struct("=Q")


def create_ring(name: str) -> int:
    """A descriptor of a new ring. Raises BpfError where the kernel has none (before Linux 5.8) or the caller no right to one."""
    return bpf_calls.create_map(bpf_calls.MAP_TYPE_RINGBUF, name, 0, 0, RING_BYTES)


class Ring:
    """A ring's reader, of which there is one. `fd` is readable while it holds records; what finds no room in it is lost."""

    def __init__(self, fd: int) -> None:
        """Read the ring behind `fd`, which this object then owns."""
        self.fd = fd
        page = mmap.PAGESIZE
        self._consumer = mmap.mmap(self.fd, page, mmap.MAP_SHARED)
        # The records stand there twice in a row, so that none is broken by the end.
        self._producer = mmap.mmap(
            self.fd, page + 2 * RING_BYTES, mmap.MAP_SHARED, mmap.PROT_READ, offset=page
        )
        self._read = ctypes.c_uint64.from_buffer(self._consumer)

    def records(self) -> Iterator[bytes]:
        """What has come since the last call; each is taken as it is given."""
        while self._read.value < _POSITION.unpack_from(self._producer)[0]:
            at = mmap.PAGESIZE + self._read.value % RING_BYTES
            length, _ = _HEADER.unpack_from(self._producer, at)
            if length & _BUSY:
                return
            start, size = at + _HEADER.size, length & ~_DISCARDED
            record = None if length & _DISCARDED else self._producer[start : start + size]
            self._read.value += (size + _HEADER.size + 7) // 8 * 8
            if record is not None:
                yield record

    def close(self) -> None:
        """Let go of the ring; twice is no fault."""
        if self.fd < 0:
            return
        del self._read
        self._consumer.close()
        self._producer.close()
        os.close(self.fd)
        self.fd = -1
