"""Byte streams between machines: two connections joined, and the frames of a program's streams."""

import asyncio
import struct
from contextlib import suppress
from enum import Enum
from typing import Final

from moefabric.testbed.cluster.greeting import Connection

_PART_BYTES: Final = 1 << 16
_HEAD: Final = struct.Struct("!cI")


class FrameKind(bytes, Enum):
    """Kinds of the frames of a program's streams."""

    INPUT = b"i"
    INPUT_END = b"e"
    SIGNAL = b"s"
    """Number of a signal, to a program."""
    OUTPUT = b"o"
    ERRORS = b"r"
    FILE = b"f"
    """Contents of a program's file."""
    STATUS = b"x"
    """Exit status of a program."""


async def join(one: Connection, other: Connection) -> None:
    """Carry bytes between two connections until both directions have ended, then close both."""
    try:
        await asyncio.gather(_pump(one[0], other[1]), _pump(other[0], one[1]))
    finally:
        for _, writer in (one, other):
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while part := await reader.read(_PART_BYTES):
            writer.write(part)
            await writer.drain()
    with suppress(OSError):
        writer.write_eof()


async def send_frame(writer: asyncio.StreamWriter, kind: FrameKind, body: bytes = b"") -> None:
    """Send a frame, once the other end has room."""
    writer.write(_HEAD.pack(kind, len(body)) + body)
    await writer.drain()


async def read_frame(reader: asyncio.StreamReader) -> tuple[FrameKind, bytes]:
    """Return kind and body of the next frame.

    Raises:
        EOFError: If the connection ends.
        ValueError: If there is no such kind.
    """
    kind, length = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    return FrameKind(kind), await reader.readexactly(length)


async def send_all(
    writer: asyncio.StreamWriter, kind: FrameKind, source: asyncio.StreamReader
) -> None:
    """Send a program's output as frames of a kind, to its end."""
    while part := await source.read(_PART_BYTES):
        await send_frame(writer, kind, part)
