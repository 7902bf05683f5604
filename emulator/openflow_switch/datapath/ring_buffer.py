"""Reader of a BPF ring buffer, in which the program leaves packets for the controller.

See Documentation/bpf/ringbuf.rst of the Linux kernel.
"""

import ctypes
import mmap
import os
import struct
from collections.abc import Iterator

RING_BYTES = 1 << 17  # a power of two, of pages; the kernel has rings since Linux 5.8
_BUSY, _DISCARDED = 1 << 31, 1 << 30  # BPF_RINGBUF_BUSY_BIT, BPF_RINGBUF_DISCARD_BIT
_HEADER = struct.Struct("=II")  # length and the bits above; page offset, for the kernel
_POSITION = struct.Struct("=Q")


class RingReader:
    """The only reader of a ring buffer. `fd` is readable while the ring holds records.

    A record that doesn't fit in the ring is lost.
    """

    def __init__(self, fd: int) -> None:
        """Take ownership of the ring's descriptor."""
        self.fd = fd
        page = mmap.PAGESIZE
        self._consumer = mmap.mmap(self.fd, page, mmap.MAP_SHARED)
        # The kernel maps the data twice in a row, so that no record is split at the end.
        self._producer = mmap.mmap(
            self.fd, page + 2 * RING_BYTES, mmap.MAP_SHARED, mmap.PROT_READ, offset=page
        )
        self._position = ctypes.c_uint64.from_buffer(self._consumer)

    def records(self) -> Iterator[bytes]:
        """Take the records that have arrived."""
        while self._position.value < _POSITION.unpack_from(self._producer)[0]:
            at = mmap.PAGESIZE + self._position.value % RING_BYTES
            length, _ = _HEADER.unpack_from(self._producer, at)
            if length & _BUSY:
                return
            start, size = at + _HEADER.size, length & ~_DISCARDED
            record = None if length & _DISCARDED else self._producer[start : start + size]
            self._position.value += (size + _HEADER.size + 7) // 8 * 8
            if record is not None:
                yield record

    def close(self) -> None:
        """Close the ring; may be repeated."""
        if self.fd < 0:
            return
        del self._position
        self._consumer.close()
        self._producer.close()
        os.close(self.fd)
        self.fd = -1
