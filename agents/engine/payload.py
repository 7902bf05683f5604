"""Payloads: slices of one block that all agents know, so that every byte can be verified."""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache

from moefabric.agents.engine import wire

CHUNK = 128 * 1024
STARTS = 127  # a prime, so that every stride reaches every start
STEP = 64
_KEY = b"moefabric transfer payload 1"


def unnamed_file(content: bytes) -> int:
    """Return the descriptor of a file without a name that holds some bytes.

    Linux sends pages of a disk's file with a fifth less CPU time than those of a file in memory,
    since it locks each page of the latter. A file in memory serves where there is no room on a
    disk, or its file system has no files without names.
    """
    for folder in ("/var/tmp", "/tmp"):  # noqa: S108 - nobody else can open a file without a name
        try:
            fd = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError:
            continue
        with suppress(OSError):
            if os.write(fd, content) == len(content):
                return fd
        os.close(fd)
    fd = os.memfd_create("pattern")
    os.write(fd, content)
    return fd


class Pattern:
    """The block: the same on every host, and without repetitions, which could hide a corruption."""

    def __init__(self) -> None:
        block = hashlib.shake_256(_KEY).digest(STARTS * STEP + CHUNK)
        self.fd = unnamed_file(block)
        self.pages = mmap.mmap(self.fd, len(block), access=mmap.ACCESS_READ)
        self.view = memoryview(self.pages)
        self.identity = zlib.crc32(block)
        self.crcs = [struct.pack("!I", zlib.crc32(self.chunk(start))) for start in range(STARTS)]

    def chunk(self, start: int) -> memoryview:
        """Return the chunk that begins at a start, given by its number."""
        return self.view[start * STEP : start * STEP + CHUNK]


@lru_cache(maxsize=1)
def shared_pattern() -> Pattern:
    """Return the block, computed once for this process and its forks because that takes long."""
    return Pattern()


class Position:
    """Position in the bytes of a transfer. By itself, it counts and drops bytes that it receives.

    Attributes:
        length: Number of all bytes.
        position: Number of bytes that have moved.
        checksum: Checksum of the bytes that have moved; 0 for bytes without one.
        form: Frame that announces such bytes.
    """

    checksum = 0
    form = wire.HEADER

    def __init__(self, length: int) -> None:
        self.length, self.position = length, 0

    @property
    def remaining(self) -> int:
        """Number of bytes after the position."""
        return self.length - self.position

    @property
    def room(self) -> int:
        """Number of bytes that may be read straight into memory at the position."""
        return 0

    def view(self, _most: int) -> memoryview:
        """Return the next bytes in memory, up to `_most`."""
        return memoryview(b"")

    def advance(self, count: int) -> None:
        """Advance by `count` bytes."""
        self.position += count

    def accept(self, _buffer: bytearray, _offset: int, count: int) -> int | None:
        """Take `count` received bytes, which begin at `_offset` of the buffer.

        Returns:
            Position of the first wrong byte; None if all are right, or if that isn't known yet.
        """
        self.position += count
        return None


class Payload(Position):
    """Position in the payload of a transfer that carries a pattern.

    Received bytes are compared, and stored nowhere.
    """

    def __init__(self, pattern: Pattern, seed: int, length: int, position: int = 0) -> None:
        self.pattern, self.length, self.position = pattern, length, position
        self.first, self.stride = seed % STARTS, 1 + seed // STARTS % (STARTS - 1)
        self._enter_chunk()

    def _enter_chunk(self) -> None:
        """Compute the place of the position's chunk in the block and its end in the payload."""
        number = self.position // CHUNK
        self.start = (self.first + number * self.stride) % STARTS
        self.shift = self.start * STEP - number * CHUNK
        self.chunk_end = min((number + 1) * CHUNK, self.length)

    def extent(self, most: int) -> tuple[int, int]:
        """Return offset in the block and number of the next bytes: up to `most`, of one chunk."""
        position = self.position
        rest = self.chunk_end - position
        return position + self.shift, min(rest, most)

    def advance(self, count: int) -> None:
        """Advance by `count` bytes, of one chunk, and add it to the checksum if it is complete."""
        self.position += count
        if count and self.position == self.chunk_end:
            rest = self.length % CHUNK
            crc = self.pattern.crcs[self.start]
            if rest and self.position == self.length:
                crc = struct.pack("!I", zlib.crc32(self.pattern.chunk(self.start)[:rest]))
            self.checksum = zlib.crc32(crc, self.checksum)
            self._enter_chunk()

    def view(self, most: int) -> memoryview:
        """Return the next bytes: up to `most`, of one chunk."""
        begin, size = self.extent(most)
        return self.pattern.view[begin : begin + size]

    def accept(self, buffer: bytearray, offset: int, count: int) -> int | None:
        """Compare received bytes with the expected ones and advance the position."""
        wrong, end, view = None, offset + count, self.pattern.view
        while offset < end:
            begin, size = self.extent(end - offset)
            expected = view[begin : begin + size]
            if not buffer.startswith(expected, offset) and wrong is None:
                wrong = self.position + next(
                    i for i, byte in enumerate(expected) if buffer[offset + i] != byte
                )
            self.advance(size)
            offset += size
        return wrong


def pattern_parts(pattern: Pattern, seed: int, offset: int, size: int) -> Iterator[memoryview]:
    """Yield `size` bytes of a seed's endless payload from an offset, in parts of one chunk each."""
    end = offset + size
    while offset < end:
        payload = Payload(pattern, seed, end, offset)
        part = payload.view(payload.remaining)
        offset += len(part)
        yield part


def transfer_seed(sender: str, receiver: str, path: str, collective: int, sequence: int) -> int:
    """Return a transfer's seed, by which bytes of another transfer are recognised as wrong."""
    return zlib.crc32(f"{sender}>{receiver}/{path}#{collective}.{sequence}".encode())
