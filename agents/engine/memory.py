"""Memory of ranks: adds numbers, fills buffers with the shared pattern, counts wrong numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from moefabric.agents.engine.payload import Pattern, pattern_parts
from moefabric.agents.engine.requests import RefusedError

BLOCK = 16 * 1024  # bytes that are added at a time; larger ones leave the CPU's first cache


@lru_cache(maxsize=64)
def _masks(size: int, element: int) -> tuple[int, int]:
    """Return masks of all bits of a block but the highest of each number, and of the highest."""
    highest = bytearray(size)
    for end in range(element, size + 1, element):
        highest[end - 1] = 0x80
    if size % element:
        highest[-1] = 0x80
    low = int.from_bytes(bytes(byte ^ 0xFF for byte in highest), "little")
    return low, int.from_bytes(highest, "little")


def add(target: memoryview, numbers: bytes | bytearray | memoryview, element: int) -> None:
    """Add unsigned little-endian numbers to those of `target`, modulo 2 to the power of their bits.

    A block is one large integer. Without the highest bit of each number, no carry leaves a number;
    the highest bits follow by exclusive or. Bytes at the end that are no whole number are a shorter
    one.

    Args:
        element: Bytes of a number.
    """
    block = BLOCK - BLOCK % element
    for begin in range(0, len(target), block):
        part, other = target[begin : begin + block], numbers[begin : begin + block]
        low, highest = _masks(len(part), element)
        a, b = int.from_bytes(part, "little"), int.from_bytes(other, "little")
        part[:] = (((a & low) + (b & low)) ^ ((a ^ b) & highest)).to_bytes(len(part), "little")


def available_bytes() -> int:
    """Return the memory that this host can give without swapping; a huge number if unknown."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name == "MemAvailable":
                return int(rest.split()[0]) * 1024
    except (OSError, ValueError):
        pass
    return 1 << 62


def allocate(sizes: Sequence[int], what: str) -> list[bytearray]:
    """Return zeroed buffers.

    Raises:
        RefusedError: if they don't fit into the memory that is free.
    """
    needed, free = sum(sizes), available_bytes()
    if needed > free:
        raise RefusedError(
            f"{what} needs {needed / 1e6:.0f} MB of memory, and {free / 1e6:.0f} MB are free: "
            "use smaller sizes, or a larger byte scale"
        )
    return [bytearray(size) for size in sizes]


class Content(NamedTuple):
    """A range of bytes that is the sum of slices of the pattern.

    Attributes:
        terms: Seed and offset in its endless payload, of each slice.
        element: Bytes of a number, if there are several slices.
    """

    terms: tuple[tuple[int, int], ...]
    element: int

    def write(self, pattern: Pattern, target: memoryview) -> None:
        """Write the bytes."""
        position = 0
        for block in self._blocks(pattern, len(target)):
            target[position : position + len(block)] = block
            position += len(block)

    def wrong(self, pattern: Pattern, ranges: Sequence[memoryview]) -> list[int]:
        """Return how many numbers of each range, all of one size, are not the expected ones."""
        counts, position = [0] * len(ranges), 0
        for block in self._blocks(pattern, len(ranges[0]) if ranges else 0):
            for index, result in enumerate(ranges):
                part = bytes(result[position : position + len(block)])
                if part != block:
                    counts[index] += _different(part, block, self.element)
            position += len(block)
        return counts

    def _blocks(self, pattern: Pattern, size: int) -> Iterator[bytearray]:
        block = BLOCK - BLOCK % self.element
        for begin in range(0, size, block):
            length = min(block, size - begin)
            total = bytearray(0)
            for seed, offset in self.terms:
                part = bytearray().join(pattern_parts(pattern, seed, offset + begin, length))
                if total:
                    add(memoryview(total), part, self.element)
                else:
                    total = part
            yield total or bytearray(length)


def _different(result: bytes, expected: bytearray, element: int) -> int:
    return sum(
        result[begin : begin + element] != expected[begin : begin + element]
        for begin in range(0, len(expected), element)
    )
