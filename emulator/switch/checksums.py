"""Checksums of TCP and UDP, which senders behind a veth leave to hardware that isn't there."""

import struct
from typing import Final

from emulator.switch.packet import IPV4, TCP, UDP

_AT: Final = {TCP: 16, UDP: 6}


def completed(frame: bytes) -> bytes:
    """The frame with its TCP or UDP checksum as the wire would carry it; one that has its own, true or false, as it is.

    A checksum left to hardware is that of the pseudo-header alone, and not inverted (Linux's CHECKSUM_PARTIAL). `frame` is untagged, as a
    switch's program sees it, and whole: of one that is cut, the field stays.
    """
    if len(frame) < 34 or int.from_bytes(frame[12:14]) != IPV4:
        return frame
    packet = frame[14:]
    header, length, protocol = (packet[0] & 0x0F) * 4, int.from_bytes(packet[2:4]), packet[9]
    fragment = int.from_bytes(packet[6:8]) & 0x3FFF
    if protocol not in _AT or fragment or length > len(packet):
        return frame
    segment = packet[header:length]
    at = _AT[protocol]
    pseudo = packet[12:20] + struct.pack(">HH", protocol, len(segment))
    left_open = (~internet_checksum(pseudo) & 0xFFFF).to_bytes(2)
    if len(segment) < at + 2 or segment[at : at + 2] != left_open:
        return frame
    checksum = internet_checksum(pseudo + segment[:at] + b"\0\0" + segment[at + 2 :]) or 0xFFFF
    start = 14 + header + at
    return frame[:start] + checksum.to_bytes(2) + frame[start + 2 :]


def internet_checksum(data: bytes) -> int:
    """RFC 1071."""
    padded = data + b"\0" if len(data) % 2 else data
    total: int = sum(struct.unpack(f">{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
