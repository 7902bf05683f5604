"""Header fields of a frame: reads and rewrites them, and completes checksums.

A field that a packet lacks reads as zero. The fields of a tagged frame are those behind its first
802.1Q tag. The transport ports of a later fragment are 0.
"""

import struct
from collections.abc import Iterable, Mapping
from typing import Final

from moefabric.core.openflow.match import ARP, FIELD_BITS, IPV4, IPV6, TCP, UDP, WITH_PORTS

VLAN_TAGS: Final = (0x8100, 0x88A8)
_ETHERNET: Final = {"eth_dst": slice(0, 6), "eth_src": slice(6, 12), "eth_type": slice(12, 14)}
_ARP: Final = {"arp_op": slice(20, 22), "arp_spa": slice(28, 32), "arp_tpa": slice(38, 42)}
_IPV4: Final = {"ip_proto": slice(23, 24), "ipv4_src": slice(26, 30), "ipv4_dst": slice(30, 34)}
_CHECKSUM_OFFSETS: Final = {TCP: 16, UDP: 6}


def packet_fields(frame: bytes, in_port: int) -> dict[str, int]:
    """Read the fields of a frame that arrived at a port.

    Returns:
        Every field of FIELD_BITS. For IPv6 also `ipv6`: both addresses as one number of 256 bits,
        the source first.
    """
    packet = dict.fromkeys(FIELD_BITS, 0) | {"in_port": in_port}
    if len(frame) < 14:
        return packet
    if int.from_bytes(frame[12:14]) in VLAN_TAGS and len(frame) >= 18:
        frame = frame[:12] + frame[16:]
    packet |= _read(frame, _ETHERNET)
    if packet["eth_type"] == IPV4 and len(frame) >= 34:
        packet |= _read(frame, _IPV4) | {"ip_dscp": frame[15] >> 2} | _transport_ports(frame)
    elif packet["eth_type"] == IPV6 and len(frame) >= 54:
        packet["ipv6"] = int.from_bytes(frame[22:54])
    elif packet["eth_type"] == ARP and len(frame) >= 42:
        packet |= _read(frame, _ARP)
    return packet


def _read(frame: bytes, layout: Mapping[str, slice]) -> dict[str, int]:
    return {name: int.from_bytes(frame[place]) for name, place in layout.items()}


def _transport_ports(frame: bytes) -> dict[str, int]:
    start = 14 + (frame[14] & 0x0F) * 4
    later_fragment = int.from_bytes(frame[20:22]) & 0x1FFF
    if frame[23] not in WITH_PORTS or later_fragment or len(frame) < start + 4:
        return {}
    source, destination = struct.unpack_from(">HH", frame, start)
    return {"tp_src": source, "tp_dst": destination}


def rewritten_frame(frame: bytes, changes: Iterable[tuple[str, int]]) -> bytes:
    """Set fields of a frame (eth_dst, eth_src, ip_dscp).

    The DSCP is set in IPv4 packets only; the header checksum is updated.
    """
    for name, value in changes:
        if name == "ip_dscp":
            frame = _with_dscp(frame, value)
        else:
            place = _ETHERNET[name]
            frame = frame[: place.start] + value.to_bytes(6) + frame[place.stop :]
    return frame


def _with_dscp(frame: bytes, dscp: int) -> bytes:
    at = 18 if int.from_bytes(frame[12:14]) in VLAN_TAGS else 14
    if int.from_bytes(frame[at - 2 : at]) != IPV4 or len(frame) < at + 20:
        return frame
    old = int.from_bytes(frame[at : at + 2])
    new = old & 0xFF03 | dscp << 2
    checksum = ~int.from_bytes(frame[at + 10 : at + 12]) & 0xFFFF
    # RFC 1624, equation 3
    updated = ~_folded(checksum + (~old & 0xFFFF) + new) & 0xFFFF
    head = frame[:at] + new.to_bytes(2) + frame[at + 2 : at + 10]
    return head + updated.to_bytes(2) + frame[at + 12 :]


def complete_checksum(frame: bytes) -> bytes:
    """Complete the TCP or UDP checksum that a sender behind a veth left to hardware.

    A checksum left to hardware covers the pseudo-header alone and is not inverted (Linux's
    CHECKSUM_PARTIAL). Any other checksum, right or wrong, is unchanged.

    Args:
        frame: An untagged frame, as the switch's program sees it. The checksum of a truncated
            frame is unchanged.
    """
    if len(frame) < 34 or int.from_bytes(frame[12:14]) != IPV4:
        return frame
    packet = frame[14:]
    header, length, protocol = (packet[0] & 0x0F) * 4, int.from_bytes(packet[2:4]), packet[9]
    fragment = int.from_bytes(packet[6:8]) & 0x3FFF
    if protocol not in _CHECKSUM_OFFSETS or fragment or length > len(packet):
        return frame
    segment = packet[header:length]
    at = _CHECKSUM_OFFSETS[protocol]
    pseudo = packet[12:20] + struct.pack(">HH", protocol, len(segment))
    left_open = (~internet_checksum(pseudo) & 0xFFFF).to_bytes(2)
    if len(segment) < at + 2 or segment[at : at + 2] != left_open:
        return frame
    checksum = internet_checksum(pseudo + segment[:at] + b"\0\0" + segment[at + 2 :]) or 0xFFFF
    start = 14 + header + at
    return frame[:start] + checksum.to_bytes(2) + frame[start + 2 :]


def internet_checksum(octets: bytes) -> int:
    """Compute the Internet checksum (RFC 1071)."""
    padded = octets + bytes(len(octets) % 2)
    return ~_folded(sum(struct.unpack(f">{len(padded) // 2}H", padded))) & 0xFFFF


def _folded(total: int) -> int:
    """Add the carries of a one's complement sum."""
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total
