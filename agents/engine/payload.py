"""Payloads: slices of one block that all servers know, so that every byte can be compared with what it must be."""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import zlib
from functools import lru_cache

CHUNK = 128 * 1024
STARTS = 127  # a prime, so that every stride visits every start
STEP = 64
KEY = b"moefabric transfer payload 1"


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


@lru_cache(maxsize=1)
def common_pattern() -> Pattern:
    """The one block of this process, and of those that are forked from it: its checksums take longer than all else at an agent's start."""
    return Pattern()


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
