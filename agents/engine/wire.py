"""Greetings and frames: what data connections carry around payloads, each with its crc32.

The first bytes of a connection name its ends and prove that it is expected.
"""

from __future__ import annotations

import hmac
import json
import struct
import zlib
from contextlib import suppress
from typing import Any, NamedTuple

from moefabric.agents.engine.requests import RefusedError, parse_request

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


GREETING = struct.Struct("!4sII52x")  # magic, length and crc32 of the JSON object that follows
_LONGEST_GREETING = 4096
_GREETING_MAGIC = b"mfGr"


class Greeting(NamedTuple):
    """Names of a connection's ends, and the secrets of the agents that accept it.

    Attributes:
        sender: The server that opens the connection.
        receiver: The server that receives its transfers.
        secret: The receiver's secret.
        relay: The server that sends transfers on; empty without one.
        dscp: Mark of the receiver's packets.
    """

    sender: str
    receiver: str
    path: str
    secret: str = ""
    relay: str = ""
    relay_secret: str = ""
    dscp: int = 0

    def to_bytes(self) -> bytes:
        """Return the first bytes of the connection."""
        body = json.dumps({**self._asdict(), "version": VERSION}).encode()
        body += b" " * padding(len(body))
        return GREETING.pack(_GREETING_MAGIC, len(body), zlib.crc32(body)) + body

    def admits(self, name: str, secret: str) -> bool:
        """Return whether the sender may send to an agent with this name and secret, or over it."""
        presented = self.relay_secret if name == self.relay else self.secret
        knows = hmac.compare_digest(presented.encode(errors="replace"), secret.encode())
        return knows and name in (self.relay, self.receiver)


def greeting_size(raw: bytes) -> int:
    """Return how long a greeting is that begins with these bytes; 0 if none does."""
    if len(raw) < GREETING.size:
        return GREETING.size
    magic, length, _ = GREETING.unpack_from(raw)
    is_greeting = magic == _GREETING_MAGIC and 0 < length <= _LONGEST_GREETING
    return GREETING.size + int(length) if is_greeting else 0


def parse_greeting(raw: bytes) -> Greeting | None:
    """Return a greeting; None if it is corrupt, malformed or of another version."""
    body = raw[GREETING.size :]
    if zlib.crc32(body) != GREETING.unpack_from(raw)[2]:
        return None
    with suppress(RefusedError, ValueError):
        fields = parse_request(body)
        texts = {name: fields.text(name) for name in Greeting._fields if name != "dscp"}
        greeting = Greeting(**texts, dscp=fields.integer("dscp", 0, 63))
        if fields.values.get("version") == VERSION:
            return greeting
    return None
