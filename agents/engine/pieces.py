"""Bytes in several places of memory, which transfers send or store one after another."""

from __future__ import annotations

import zlib
from collections.abc import Sequence


class Pieces:
    """Bytes in several places of memory, one after another; a position in them, and a checksum.

    Args:
        pieces: The places.

    Attributes:
        length: Number of all bytes.
        position: Number of bytes that have moved.
        checksum: The crc32 of the bytes that have moved.
    """

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self.pieces = [piece for piece in pieces if len(piece)]
        self.length = sum(map(len, self.pieces))
        self.position = self.checksum = 0
        self.index = self.within = 0  # the piece at the position, and the position in it

    @property
    def remaining(self) -> int:
        """Number of bytes after the position."""
        return self.length - self.position

    @property
    def room(self) -> int:
        """Number of bytes after the position in the piece there; 0 if there is none."""
        return len(self.pieces[self.index]) - self.within if self.index < len(self.pieces) else 0

    def view(self, most: int) -> memoryview:
        """Return the next bytes: up to `most`, of one piece."""
        return self.pieces[self.index][self.within : self.within + most]

    def advance(self, count: int) -> None:
        """Advance by `count` bytes of one piece and add them to the checksum."""
        piece = self.pieces[self.index]
        self.checksum = zlib.crc32(piece[self.within : self.within + count], self.checksum)
        self.position += count
        self.within += count
        if self.within == len(piece):
            self.index, self.within = self.index + 1, 0

    def accept(self, buffer: bytearray, offset: int, count: int) -> None:
        """Store `count` received bytes, which begin at `offset` of the buffer."""
        end = offset + count
        with memoryview(buffer) as view:
            while offset < end:
                place = self.view(end - offset)
                size = len(place)
                place[:] = view[offset : offset + size]
                self.advance(size)
                offset += size


class Discarded(Pieces):
    """Bytes that nobody expects: counted, checked and dropped."""

    def __init__(self, length: int) -> None:
        super().__init__([])
        self.length = length

    def accept(self, buffer: bytearray, offset: int, count: int) -> None:
        """Add received bytes to the checksum."""
        with memoryview(buffer) as view:
            self.checksum = zlib.crc32(view[offset : offset + count], self.checksum)
        self.position += count
