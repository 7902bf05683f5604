"""Frames: what a data connection carries around payloads, each sealed by its crc32."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

VERSION = 1

LINE = 64  # a cache line. All that goes over the wire is padded to it, since kernels copy aligned bytes twice as fast
GREETING = struct.Struct("!4sII52x")  # magic, length and crc32 of the JSON that follows
HEADER = struct.Struct(
    "!4sQIQII28xI"
)  # magic, collective, sequence, length, seed, crc32 of the block, crc32 of the above
TRAILER = struct.Struct(
    "!4sQII40xI"
)  # magic, length, sequence, checksum, crc32 of the above; zeros before it fill the line
ANSWER = struct.Struct("!4sQIB43xI")  # magic, collective, sequence, verdict, crc32 of the above

GREETS = b"mfGr"
SENDS = b"mfTx"  # a header before a payload
RESTS = b"mfRe"  # a header before nothing
ENDS = b"mfEn"
ANSWERS = b"mfAn"


def greeting(names: dict[str, Any]) -> bytes:
    """Who opens a connection, and whom they look for."""
    body = json.dumps({**names, "version": VERSION}).encode()
    body += b" " * filling(len(body))
    return GREETING.pack(GREETS, len(body), zlib.crc32(body)) + body


def filling(length: int) -> int:
    """How many zeros fill a payload's last line."""
    return -length % LINE


def sealed(form: struct.Struct, *fields: Any) -> bytes:
    """Fields packed, followed by their crc32."""
    body = form.pack(*fields, 0)[:-4]
    return body + struct.pack("!I", zlib.crc32(body))


def opened(form: struct.Struct, magic: bytes, raw: bytes) -> tuple[Any, ...] | None:
    """The inverse of `sealed`, without magic and crc32; None if either is wrong."""
    fields = form.unpack(raw)
    if fields[0] != magic or fields[-1] != zlib.crc32(raw[:-4]):
        return None
    return fields[1:-1]
