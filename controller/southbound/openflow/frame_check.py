"""Checks a switch's messages before the framework decodes them (OpenFlow 1.3.5, section 7).

Ryu 4.34 and os-ken 3 and 4 step from one element of a message to the next by the length that the
element gives, and stay at an element of length zero forever. All green threads of a controller then
stand still. The framework therefore gets only the few types of messages that a controller expects,
and only with lengths that add up.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Final

HEADER: Final = struct.Struct("!BBHI")  # version, type, length, transaction number
VERSION: Final = 4
"""OpenFlow 1.3, as messages have it."""
HELLO, ERROR, ECHO_REQUEST, ECHO_REPLY, EXPERIMENTER = range(5)
FEATURES_REPLY, PACKET_IN, FLOW_REMOVED, PORT_STATUS = 6, 10, 11, 12
MULTIPART_REPLY, BARRIER_REPLY = 19, 21
FLOW_STATISTICS, PORT_DESCRIPTIONS = 1, 13
_OLDEST_VERSION: Final = 1
_VERSION_BITMAP: Final = 1
_HELLO_FAILED: Final = 0
_TLV: Final = struct.Struct("!HH")
_FEATURES_BYTES, _PORT_STATUS_BYTES, _PORT_BYTES, _MULTIPART_BYTES = 32, 80, 64, 16
_FLOW_BYTES: Final = 48
"""struct ofp_flow_stats without its match."""
_ERROR_BYTES: Final = 12


class FrameError(Exception):
    """A message that no switch sends; nothing after it can be trusted."""


def length_of(received: bytes, at: int) -> int:
    """Return the length of the message at an offset; 0 if its header is incomplete.

    Raises:
        FrameError: For a length below that of a header.
    """
    if len(received) - at < HEADER.size:
        return 0
    length: int = HEADER.unpack_from(received, at)[2]
    if length < HEADER.size:
        raise FrameError(f"a message of {length} bytes")
    return length


def check(message: bytes) -> bytes | None:
    """Check a complete message.

    Returns:
        The message as the framework reads it; None for one that the controller reads by itself.

    Raises:
        FrameError: If its version, its type, or any length in it is wrong.
    """
    version, kind, _, _ = HEADER.unpack_from(message)
    if version != VERSION and kind != HELLO:
        raise FrameError(f"version {version}")
    if kind not in _CHECKS:
        raise FrameError(f"type {kind}, which a controller doesn't expect")
    return _CHECKS[kind](message)


def flow_statistics(message: bytes) -> Iterator[bytes]:
    """Yield each entry (struct ofp_flow_stats) of a reply with flow statistics.

    Raises:
        FrameError: If a length is wrong.
    """
    at = _MULTIPART_BYTES
    while at < len(message):
        if len(message) - at < _FLOW_BYTES + _TLV.size:
            raise FrameError("flow statistics that are cut off")
        length = int.from_bytes(message[at : at + 2])
        match_length = int.from_bytes(message[at + _FLOW_BYTES + 2 : at + _FLOW_BYTES + 4])
        if not _FLOW_BYTES + max(match_length, _TLV.size) <= length <= len(message) - at:
            raise FrameError(f"flow statistics of {length} bytes, with a match of {match_length}")
        yield message[at : at + length]
        at += length


def match_fields(wire: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Yield OXM header and payload of each field of the match at an offset (7.2.3).

    Raises:
        FrameError: If a length is wrong.
    """
    if len(wire) - at < _TLV.size:
        raise FrameError("a match that is cut off")
    length = _TLV.unpack_from(wire, at)[1]
    end = at + length
    if length < _TLV.size or end > len(wire):
        raise FrameError(f"a match of {length} bytes")
    at += _TLV.size
    while at < end:
        if end - at < 4 or end - at < 4 + wire[at + 3]:
            raise FrameError("a match field that is cut off")
        yield int.from_bytes(wire[at : at + 4]), wire[at + 4 : at + 4 + wire[at + 3]]
        at += 4 + wire[at + 3]


def _hello(message: bytes) -> bytes:
    """Return a hello of 1.3 without elements if the switch supports 1.3, else one of 1.0.

    The version bitmap decides if there is one, otherwise the version of the message (6.3.1). The
    frameworks don't skip the padding of elements, nor know all versions.
    """
    version, kind, _, xid = HEADER.unpack_from(message)
    at, supports = HEADER.size, version >= VERSION
    while at < len(message):
        if len(message) - at < _TLV.size:
            raise FrameError("a hello element that is cut off")
        element, length = _TLV.unpack_from(message, at)
        if not _TLV.size <= length <= len(message) - at:
            raise FrameError(f"a hello element of {length} bytes")
        if element == _VERSION_BITMAP:
            word = message[at + _TLV.size : at + min(length, _TLV.size + 4)]
            supports = bool(int.from_bytes(word) >> VERSION & 1)
        at += (length + 7) // 8 * 8
    return HEADER.pack(VERSION if supports else _OLDEST_VERSION, kind, HEADER.size, xid)


def _error(message: bytes) -> None:
    """Check that an error names the request that failed, at least by its header (7.5.4)."""
    _require(message, _ERROR_BYTES)
    if _TLV.unpack_from(message, HEADER.size)[0] != _HELLO_FAILED:
        _require(message, _ERROR_BYTES + HEADER.size)


def _multipart(message: bytes) -> bytes | None:
    _require(message, _MULTIPART_BYTES)
    kind = int.from_bytes(message[HEADER.size : HEADER.size + 2])
    if kind == PORT_DESCRIPTIONS:
        if (len(message) - _MULTIPART_BYTES) % _PORT_BYTES:
            raise FrameError(f"port descriptions of {len(message)} bytes")
        return message
    if kind != FLOW_STATISTICS:
        raise FrameError(f"a multipart reply of type {kind}, which a controller doesn't expect")
    return None


def _require(message: bytes, length: int) -> None:
    if len(message) < length:
        raise FrameError(f"type {message[1]} of {len(message)} bytes instead of {length} or more")


def _exactly(length: int) -> Callable[[bytes], bytes]:
    def check_length(message: bytes) -> bytes:
        if len(message) != length:
            raise FrameError(f"type {message[1]} of {len(message)} bytes instead of {length}")
        return message

    return check_length


def _whole(message: bytes) -> bytes:
    """Return a message whose body has no structure."""
    return message


def _unread(_message: bytes) -> None:
    """Leave a message to the controller, which checks it while it reads it."""


_CHECKS: Final[Mapping[int, Callable[[bytes], bytes | None]]] = {
    HELLO: _hello,
    ERROR: _error,
    ECHO_REQUEST: _whole,
    ECHO_REPLY: _whole,
    EXPERIMENTER: _unread,
    FEATURES_REPLY: _exactly(_FEATURES_BYTES),
    PACKET_IN: _unread,
    FLOW_REMOVED: _unread,
    PORT_STATUS: _exactly(_PORT_STATUS_BYTES),
    MULTIPART_REPLY: _multipart,
    BARRIER_REPLY: _unread,
}
