"""IPv4 frames with chosen class, ECN bits, length and flow, for tests of links."""

import struct


def internet_checksum(data: bytes) -> int:
    """Return the checksum of RFC 1071; 0 for data that holds its own."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def udp_frame(length: int, *, traffic_class: int = 0, ecn: int = 0, port: int = 1000) -> bytes:
    """Return a frame of so many bytes, with Ethernet header."""
    start = struct.pack("!BBHHHBB", 0x45, traffic_class << 5 | ecn, length - 14, 7, 0, 64, 17)
    addresses = bytes((10, 0, 0, 1, 10, 0, 0, 2))
    checksum = internet_checksum(start + bytes(2) + addresses)
    header = start + struct.pack("!H", checksum) + addresses
    ethernet = bytes(12) + b"\x08\x00"
    return (ethernet + header + struct.pack("!HHHH", port, 9, length - 34, 0)).ljust(length, b"\0")
