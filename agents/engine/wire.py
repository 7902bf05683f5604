"""Frames around payloads on data connections, each sealed by its crc32."""

from __future__ import annotations

import struct
import zlib
from typing import Any

VERSION = 2

LINE = 64  # a cache line; all is padded to lines, since kernels copy aligned bytes twice as fast


class Frame:
    """A kind of frame: a magic number, fields, and the crc32 of both.

    Args:
        magic: The first four bytes.
        fields: The format of the fields in the notation of `struct`.
    """

    def __init__(self, magic: bytes, fields: str) -> None:
        self.magic, self.form = magic, struct.Struct(f"!4s{fields}I")
        self.size = self.form.size

    def pack(self, *fields: Any) -> bytes:
        """Return a frame with these fields."""
        body = self.form.pack(self.magic, *fields, 0)[:-4]
        return body + struct.pack("!I", zlib.crc32(body))

    def unpack(self, raw: bytes) -> tuple[Any, ...] | None:
        """Return a frame's fields; None if its magic number or its crc32 is wrong."""
        magic, *fields, crc32 = self.form.unpack(raw)
        right = magic == self.magic and crc32 == zlib.crc32(raw[:-4])
        return tuple(fields) if right else None


# collective, sequence, length, seed, crc32 of the block
HEADER = Frame(b"mfTx", "QIQII28x")  # a payload follows
MESSAGE = Frame(b"mfMs", "QIQ36x")  # run, number, length; a message of a program follows
CONTENT = Frame(b"mfCo", "QIQ36x")  # collective, sequence, length; bytes of ranks follow
IDLE = Frame(b"mfRe", "QIQII28x")  # a header that no payload follows
# length, sequence, checksum; zeros before it fill the payload's line
TRAILER = Frame(b"mfEn", "QII40x")
# collective, sequence, verdict, segments that relays sent again
ACKNOWLEDGEMENT = Frame(b"mfAn", "QIBI39x")
GRANT = Frame(b"mfGo", "QI44x")  # run and number of a message that may be sent
LONGEST_REASON = 56
LOSS = Frame(b"mfLo", f"{LONGEST_REASON}s")  # in place of an acknowledgement: why a relay ends


def padding(length: int) -> int:
    """Return the number of bytes that fill the last cache line of a payload."""
    return -length % LINE


def framed_size(length: int) -> int:
    """Return the bytes of a transfer on its connection: header, payload, padding and trailer."""
    return HEADER.size + length + padding(length) + TRAILER.size
