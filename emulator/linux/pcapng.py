"""Blocks of pcapng files (draft-ietf-opsawg-pcapng): one section, times in nanoseconds.

`packet_capture` imports this module in a bare Python: it needs the standard library only.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

SECTION, INTERFACE, STATISTICS, PACKET = 0x0A0D0D0A, 1, 5, 6
MOST_BLOCK_BYTES: Final = 1 << 20
_MAGIC: Final = 0x1A2B3C4D
_VERSION: Final = 1, 0
_UNKNOWN_LENGTH: Final = -1
_ETHERNET: Final = 1
_END, _COMMENT = 0, 1
_NAME, _DESCRIPTION, _RESOLUTION = 2, 3, 9
_FLAGS, INBOUND, OUTBOUND = 2, 1, 2
_RECEIVED, _DROPPED = 4, 5
_NANOSECONDS: Final = b"\x09"
_PACKET_HEADER: Final = struct.Struct("<IIIII")
_OPTION: Final = struct.Struct("<HH")
_LEAST_BLOCK: Final = 12


class PcapngError(ValueError):
    """A file is no pcapng file as this module reads it."""


@dataclass(frozen=True)
class Packet:
    """A captured packet.

    Attributes:
        interface: Number of its interface in the file.
        time_ns: Time since the epoch.
        data: Its first bytes.
        length: Its length on the wire.
        options: Options as they are in the file, without their end.
    """

    interface: int
    time_ns: int
    data: bytes
    length: int
    options: bytes = b""

    @property
    def comment(self) -> str:
        """The packet's first comment; empty without one."""
        return dict(_options(self.options)).get(_COMMENT, b"").decode("utf-8", "replace")

    def block(self, comment: str = "") -> bytes:
        """Return the enhanced packet block, with a comment besides the options."""
        high, low = divmod(self.time_ns, 1 << 32)
        header = _PACKET_HEADER.pack(self.interface, high, low, len(self.data), self.length)
        options = self.options + (option(_COMMENT, comment.encode()) if comment else b"")
        return block(PACKET, header + _padded(self.data) + (options + _END_OF_OPTIONS))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def option(code: int, value: bytes) -> bytes:
    """Return an option."""
    return _OPTION.pack(code, len(value)) + _padded(value)


_END_OF_OPTIONS: Final = option(_END, b"")


def _options_of(*options: tuple[int, bytes]) -> bytes:
    return b"".join(option(code, value) for code, value in options) + _END_OF_OPTIONS


def block(kind: int, body: bytes) -> bytes:
    """Return a block, whose body is a multiple of four bytes long."""
    length = struct.pack("<I", len(body) + _LEAST_BLOCK)
    return struct.pack("<I", kind) + length + body + length


def section(application: str) -> bytes:
    """Return the block that begins a file."""
    header = struct.pack("<IHHq", _MAGIC, *_VERSION, _UNKNOWN_LENGTH)
    return block(SECTION, header + _options_of((4, application.encode())))


def interface(name: str, description: str, snap_length: int) -> bytes:
    """Return the block of an interface; the first one has number 0."""
    names = (_NAME, name.encode()), (_DESCRIPTION, description.encode())
    header = struct.pack("<HHI", _ETHERNET, 0, snap_length)
    return block(INTERFACE, header + _options_of(*names, (_RESOLUTION, _NANOSECONDS)))


def direction(flag: int) -> bytes:
    """Return the option of a packet that is INBOUND or OUTBOUND."""
    return option(_FLAGS, struct.pack("<I", flag))


def statistics(number: int, time_ns: int, received: int, dropped: int) -> bytes:
    """Return the block with the numbers of packets that an interface received and dropped."""
    counts = (_RECEIVED, struct.pack("<Q", received)), (_DROPPED, struct.pack("<Q", dropped))
    header = struct.pack("<III", number, *divmod(time_ns, 1 << 32))
    return block(STATISTICS, header + _options_of(*counts))


def read_blocks(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield kind and body of each block; a last block that was cut short is left out.

    Raises:
        PcapngError: If the file is none of this byte order, or a block has an impossible length.
    """
    first = True
    while len(header := file.read(8)) == 8:
        kind, length = struct.unpack("<II", header)
        if first and kind != SECTION:
            raise PcapngError("not a pcapng file")
        if not _LEAST_BLOCK <= length <= MOST_BLOCK_BYTES or length % 4:
            raise PcapngError(f"a block of {length} bytes")
        rest = file.read(length - 8)
        if len(rest) < length - 8:
            return
        body = rest[:-4]
        if first and body[:4] != struct.pack("<I", _MAGIC):
            raise PcapngError("not a pcapng file of little-endian numbers")
        first = False
        yield kind, body


def parse_packet(body: bytes) -> Packet:
    """Return the packet of an enhanced packet block.

    Raises:
        PcapngError: If the body is too short.
    """
    if len(body) < _PACKET_HEADER.size:
        raise PcapngError("a packet block without header")
    number, high, low, captured, length = _PACKET_HEADER.unpack_from(body)
    end = _PACKET_HEADER.size + captured
    if end > len(body):
        raise PcapngError("a packet that is longer than its block")
    options = body[end + -captured % 4 :].removesuffix(_END_OF_OPTIONS)
    return Packet(number, high << 32 | low, body[_PACKET_HEADER.size : end], length, options)


def _options(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _OPTION.size:
        code, length = _OPTION.unpack_from(data)
        if code == _END:
            return
        yield code, data[_OPTION.size : _OPTION.size + length]
        data = data[_OPTION.size + length + -length % 4 :]
