"""Bytes of ranks: places in memory, from which transfers are sent or in which they are stored.

A message of a program has one place and no checksum, since results are verified instead. The bytes
that a server owes another in an exchange lie in several pieces, one for each pair of ranks. A
transfer carries consecutive bytes of them, and its trailer their crc32.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from moefabric.agents.engine import wire
from moefabric.agents.engine.memory import add
from moefabric.agents.engine.payload import Position


class Place(Position):
    """Bytes in one place of memory."""

    form = wire.MESSAGE

    def __init__(self, memory: memoryview) -> None:
        self.memory, self.length, self.position = memory, len(memory), 0

    @property
    def room(self) -> int:
        """Number of bytes after the position."""
        return self.length - self.position

    def view(self, most: int) -> memoryview:
        """Return the next bytes, up to `most`."""
        return self.memory[self.position : self.position + most]

    def accept(self, buffer: bytearray, offset: int, count: int) -> None:
        """Store `count` received bytes, which begin at `offset` of the buffer."""
        with memoryview(buffer) as view:
            self.memory[self.position : self.position + count] = view[offset : offset + count]
        self.position += count


class Sum(Place):
    """Place in memory whose numbers are increased by the received ones.

    Args:
        element: Bytes of a number.
    """

    room = 0  # nothing is read into the place

    def __init__(self, memory: memoryview, element: int) -> None:
        super().__init__(memory)
        self.element = element
        self.rest = b""  # the first bytes of a number whose others have not arrived

    def accept(self, buffer: bytearray, offset: int, count: int) -> None:
        """Add received bytes."""
        numbers = self.rest + buffer[offset : offset + count]
        begin = self.position - len(self.rest)
        self.position += count
        size = len(numbers)
        if self.remaining:
            size -= size % self.element
        add(self.memory[begin : begin + size], numbers[:size], self.element)
        self.rest = bytes(numbers[size:])


class Pieces(Position):
    """Bytes in several places of memory, one after another, with a checksum."""

    form = wire.CONTENT

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self.pieces = [piece for piece in pieces if len(piece)]
        super().__init__(sum(map(len, self.pieces)))
        self.index = self.within = 0  # the piece at the position, and the position in it

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
