"""Payloads: slices of one block that all agents know, so that every byte can be verified."""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import zlib
from collections.abc import Iterator
from functools import lru_cache

CHUNK = 128 * 1024
STARTS = 127  # a prime, so that every stride reaches every start
STEP = 64
KEY = b"moefabric transfer payload 1"


class Pattern:
    """The block: the same on every host, and without repetitions, which could hide a corruption."""

    def __init__(self, key: bytes = KEY) -> None:
        block = hashlib.shake_256(key).digest(STARTS * STEP + CHUNK)
        self.fd = os.memfd_create("pattern")
        os.write(self.fd, block)
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


class Payload:
    """Position in one transfer's payload, and the checksum up to there."""

    def __init__(self, pattern: Pattern, seed: int, length: int) -> None:
        self.pattern, self.length = pattern, length
        self.first, self.stride = seed % STARTS, 1 + seed // STARTS % (STARTS - 1)
        self.position = 0
        self.checksum = 0

    @property
    def remaining(self) -> int:
        """Number of bytes after the position."""
        return self.length - self.position

    def start(self, chunk: int) -> int:
        """Return the number of a chunk's start in the block."""
        return (self.first + chunk * self.stride) % STARTS

    def extent(self, most: int) -> tuple[int, int]:
        """Return offset in the block and number of the next bytes: up to `most`, of one chunk."""
        number, within = divmod(self.position, CHUNK)
        return self.start(number) * STEP + within, min(most, CHUNK - within, self.remaining)

    def advance(self, count: int) -> None:
        """Advance by `count` bytes and add chunks that are now complete to the checksum."""
        before, self.position = self.position, self.position + count
        for number in range(before // CHUNK, self.position // CHUNK):
            self.checksum = zlib.crc32(self.pattern.crcs[self.start(number)], self.checksum)
        rest = self.length % CHUNK
        if count and rest and self.position == self.length:
            tail = zlib.crc32(self.pattern.chunk(self.start(self.length // CHUNK))[:rest])
            self.checksum = zlib.crc32(struct.pack("!I", tail), self.checksum)

    def view(self, most: int) -> memoryview:
        """Return the next bytes: up to `most`, of one chunk."""
        begin, size = self.extent(most)
        return self.pattern.view[begin : begin + size]

    def accept(self, buffer: bytearray, offset: int, count: int) -> int | None:
        """Compare received bytes with the expected ones and advance the position.

        Args:
            buffer: Buffer with the received bytes.
            offset: Where they begin in the buffer.
            count: Number of received bytes.

        Returns:
            Position of the first wrong byte in the payload; None if all are right.
        """
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


class MessagePayload:
    """The bytes of a message that is sent, and the position in them.

    Args:
        content: The bytes, in the sender's buffer.
    """

    checksum = 0  # results are verified instead

    def __init__(self, content: memoryview) -> None:
        self.content, self.length, self.position = content, len(content), 0

    @property
    def remaining(self) -> int:
        """Number of bytes after the position."""
        return self.length - self.position

    def view(self, most: int) -> memoryview:
        """Return the next bytes, up to `most`."""
        return self.content[self.position : self.position + most]

    def advance(self, count: int) -> None:
        """Advance by `count` bytes."""
        self.position += count


def pattern_parts(pattern: Pattern, seed: int, offset: int, size: int) -> Iterator[memoryview]:
    """Yield `size` bytes of a seed's endless payload from an offset, in parts of one chunk each."""
    payload = Payload(pattern, seed, offset + size)
    while offset < payload.length:
        payload.position = offset
        part = payload.view(payload.remaining)
        offset += len(part)
        yield part


def transfer_seed(sender: str, receiver: str, path: str, collective: int, sequence: int) -> int:
    """Return a transfer's seed, by which bytes of another transfer are recognised as wrong."""
    return zlib.crc32(f"{sender}>{receiver}/{path}#{collective}.{sequence}".encode())
