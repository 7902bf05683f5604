"""OpenFlow 1.3 messages to a controller: what a switch says, written to bytes. Sections are those of OpenFlow 1.3.5."""

import struct
from collections.abc import Iterable
from typing import Final

from emulator.switch import openflow_match as match
from emulator.switch.match import Match
from emulator.switch.messages import HEADER, MORE, MULTIPART, VERSION_BITMAP, Message
from emulator.switch.openflow_numbers import MAX_LENGTH, NO_BUFFER, VERSION, Multipart, Refusal, Type

_ERROR_DATA_BYTES: Final = 256  # of the request that was refused; OpenFlow wants 64 at least


def message(kind: Type, xid: int, body: bytes = b"") -> bytes:
    """Any message."""
    return HEADER.pack(VERSION, kind, HEADER.size + len(body), xid) + body


def hello(xid: int) -> bytes:
    """OpenFlow 1.3 and no other (A.5.1)."""
    return message(Type.HELLO, xid, struct.pack("!HHI", VERSION_BITMAP, 8, 1 << VERSION))


def error(refusal: Refusal, asked: Message) -> bytes:
    """A refusal of a request, with its beginning, by which the controller knows it again (A.4.4)."""
    body = struct.pack("!HH", refusal.type, refusal.code) + asked.wire[:_ERROR_DATA_BYTES]
    return message(Type.ERROR, asked.xid, body)


def incompatible(xid: int) -> bytes:
    """The other side speaks no OpenFlow 1.3; data is text for people (A.4.4)."""
    refusal = Refusal.HELLO_INCOMPATIBLE
    return message(
        Type.ERROR,
        xid,
        struct.pack("!HH", refusal.type, refusal.code) + b"this switch speaks OpenFlow 1.3 alone",
    )


def features_reply(xid: int, datapath_id: int, tables: int, capabilities: int) -> bytes:
    """No buffers: a packet that goes to the controller goes whole, unless it asks for less (A.3.1)."""
    return message(
        Type.FEATURES_REPLY, xid, struct.pack("!QIBB2xII", datapath_id, 0, tables, 0, capabilities, 0)
    )


def packet_in(reason: int, table: int, cookie: int, in_port: int, frame: bytes, length: int) -> bytes:
    """A frame of which `length` bytes were whole, or less of it, for the controller (A.4.1)."""
    head = struct.pack("!IHBBQ", NO_BUFFER, length, reason, table, cookie)
    return message(
        Type.PACKET_IN,
        0,
        head + match.encoded(Match.of(in_port=in_port)) + bytes(2) + frame,
    )


def parts(kind: Multipart, xid: int, bodies: Iterable[bytes]) -> list[bytes]:
    """The replies to one request: as many bodies in each as a message can hold (A.3.5)."""
    limit = MAX_LENGTH - HEADER.size - MULTIPART.size
    held = [bytearray()]
    for body in bodies:
        if len(held[-1]) + len(body) > limit and held[-1]:
            held.append(bytearray())
        held[-1] += body
    filled = len(held) - 1
    return [
        message(Type.MULTIPART_REPLY, xid, MULTIPART.pack(kind, MORE if number < filled else 0) + bytes(part))
        for number, part in enumerate(held)
    ]
