"""Messages to a controller, encoded (OpenFlow 1.3.5, section 7)."""

import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from moefabric.emulator.openflow_switch.flows.match import Match
from moefabric.emulator.openflow_switch.protocol import constants as ofp
from moefabric.emulator.openflow_switch.protocol import decoder
from moefabric.emulator.openflow_switch.protocol.oxm import encode_match

_ERROR_DATA_BYTES: Final = 256  # of the refused request; OpenFlow requires at least 64
_PACKET_IN: Final = struct.Struct("!IHBBQ")
_MULTIPART: Final = struct.Struct("!" + decoder.MULTIPART)


def message(kind: ofp.MessageType, xid: int, body: bytes = b"") -> bytes:
    """Encode a message with an encoded body."""
    return decoder.HEADER.pack(ofp.VERSION, kind, decoder.HEADER.size + len(body), xid) + body


def reply(request: decoder.Message, kind: ofp.MessageType, layout: str, *fields: int) -> bytes:
    """Encode a reply whose body has these fields, in the format of `struct`."""
    return message(kind, request.xid, struct.pack("!" + layout, *fields))


def hello(xid: int) -> bytes:
    """Encode a hello that offers OpenFlow 1.3 only (7.5.1)."""
    return message(
        ofp.MessageType.HELLO, xid, struct.pack("!HHI", decoder.VERSION_BITMAP, 8, 1 << ofp.VERSION)
    )


def error(code: ofp.ErrorCode, request: decoder.Message) -> bytes:
    """Encode an error with the start of the request that caused it (7.4.4)."""
    return message(ofp.MessageType.ERROR, request.xid, code.wire + request.wire[:_ERROR_DATA_BYTES])


def hello_failed(xid: int) -> bytes:
    """Encode the error that no common version was found; its data is text (7.4.4)."""
    text = b"this switch speaks OpenFlow 1.3 alone"
    return message(ofp.MessageType.ERROR, xid, ofp.ErrorCode.HELLO_INCOMPATIBLE.wire + text)


def packet_in(
    reason: int, table: int, cookie: int, in_port: int, frame: bytes, length: int
) -> bytes:
    """Encode a packet-in (7.4.1); `length` is the length of the whole frame in bytes."""
    head = _PACKET_IN.pack(ofp.NO_BUFFER, length, reason, table, cookie)
    return message(ofp.MessageType.PACKET_IN, 0, head + _port_match(in_port) + frame)


@lru_cache(maxsize=1024)
def _port_match(in_port: int) -> bytes:
    """Encode the match of a packet-in, and the padding behind it."""
    return encode_match(Match.of(in_port=in_port)) + bytes(2)


def multipart_replies(kind: ofp.MultipartType, xid: int, bodies: Iterable[bytes]) -> list[bytes]:
    """Encode the replies to a multipart request; each takes as many bodies as fit (7.3.5)."""
    limit = ofp.MAX_LENGTH - decoder.HEADER.size - _MULTIPART.size
    parts = [bytearray()]
    for body in bodies:
        if len(parts[-1]) + len(body) > limit and parts[-1]:
            parts.append(bytearray())
        parts[-1] += body
    flags = [decoder.MORE] * (len(parts) - 1) + [0]
    return [
        message(ofp.MessageType.MULTIPART_REPLY, xid, _MULTIPART.pack(kind, flag) + part)
        for flag, part in zip(flags, parts, strict=True)
    ]
