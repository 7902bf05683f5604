"""Bytes of ranks: places in memory, from which transfers are sent or in which they are stored.

The bytes that a server owes another lie in several pieces, one for each pair of ranks. A transfer
carries consecutive bytes of them, and its trailer their crc32. A message of a program has one place
and no checksum, since results are verified instead.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from moefabric.agents.engine.memory import add


class Pieces:
    """Bytes in several places of memory, one after another; a position in them, and a checksum.

    Args:
        pieces: The places.
        is_checked: Whether the bytes have a checksum.

    Attributes:
        length: Number of all bytes.
        position: Number of bytes that have moved.
        checksum: The crc32 of the bytes that have moved; 0 without a checksum.
    """

    def __init__(self, pieces: Sequence[memoryview], *, is_checked: bool = True) -> None:
        self.pieces = [piece for piece in pieces if len(piece)]
        self.is_checked = is_checked
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
        if self.is_checked:
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


class Sum(Pieces):
    """One place in memory, to whose numbers those that are received are added.

    Args:
        place: The place.
        element: Bytes of a number.
    """

    room = 0  # nothing is read into the place

    def __init__(self, place: memoryview, element: int) -> None:
        super().__init__([place], is_checked=False)
        self.place, self.element = place, element
        self.rest = b""  # the first bytes of a number whose others have not arrived

    def accept(self, buffer: bytearray, offset: int, count: int) -> None:
        """Add received bytes."""
        numbers = self.rest + buffer[offset : offset + count]
        begin = self.position - len(self.rest)
        self.position += count
        size = len(numbers)
        if self.remaining:
            size -= size % self.element
        add(self.place[begin : begin + size], numbers[:size], self.element)
        self.rest = bytes(numbers[size:])


class Discarded(Pieces):
    """Bytes that nobody expects: counted, perhaps checked, and dropped."""

    def __init__(self, length: int, *, is_checked: bool) -> None:
        super().__init__([], is_checked=is_checked)
        self.length = length

    def accept(self, buffer: bytearray, offset: int, count: int) -> None:
        """Add received bytes to the checksum."""
        if self.is_checked:
            with memoryview(buffer) as view:
                self.checksum = zlib.crc32(view[offset : offset + count], self.checksum)
        self.position += count
