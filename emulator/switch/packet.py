"""A packet as a switch sees it: thirteen fields, read from a frame.

One that a packet lacks reads as zero. Of a tagged frame, the fields are those behind its first 802.1Q tag; of a later fragment, the transport
ports are 0.
"""

from collections.abc import Mapping
from typing import Final

ARP, IPV4, IPV6, VLAN_TAGS = 0x0806, 0x0800, 0x86DD, (0x8100, 0x88A8)
TCP, UDP, SCTP = 6, 17, 132
WITH_PORTS: Final = (TCP, UDP, SCTP)

WIDTHS: Final[Mapping[str, int]] = {
    "in_port": 32,
    "eth_dst": 48,
    "eth_src": 48,
    "eth_type": 16,
    "ipv4_src": 32,
    "ipv4_dst": 32,
    "ip_dscp": 6,
    "ip_proto": 8,
    "tp_src": 16,
    "tp_dst": 16,
    "arp_op": 16,
    "arp_spa": 32,
    "arp_tpa": 32,
}
"""The fields of a packet, with their bits."""


def fields(frame: bytes, in_port: int) -> dict[str, int]:
    """The fields of a frame that came in by a port, all of WIDTHS; and of IPv6, `ipv6`: both addresses as one number, source first."""
    found = dict.fromkeys(WIDTHS, 0)
    found["in_port"] = in_port
    if len(frame) < 14:
        return found
    if int.from_bytes(frame[12:14]) in VLAN_TAGS and len(frame) >= 18:
        frame = frame[:12] + frame[16:]
    found["eth_dst"], found["eth_src"] = int.from_bytes(frame[:6]), int.from_bytes(frame[6:12])
    found["eth_type"] = int.from_bytes(frame[12:14])
    if found["eth_type"] == IPV4:
        found |= _ipv4_fields(frame[14:])
    if found["eth_type"] == IPV6 and len(frame) >= 14 + 40:
        found["ipv6"] = int.from_bytes(frame[22:54])
    if found["eth_type"] == ARP and len(frame) >= 14 + 28:
        found["arp_op"] = int.from_bytes(frame[20:22])
        found["arp_spa"], found["arp_tpa"] = int.from_bytes(frame[28:32]), int.from_bytes(frame[38:42])
    return found


def _ipv4_fields(packet: bytes) -> dict[str, int]:
    if len(packet) < 20:
        return {}
    found = {
        "ip_dscp": packet[1] >> 2,
        "ip_proto": packet[9],
        "ipv4_src": int.from_bytes(packet[12:16]),
        "ipv4_dst": int.from_bytes(packet[16:20]),
    }
    start = (packet[0] & 0x0F) * 4
    later_fragment = int.from_bytes(packet[6:8]) & 0x1FFF
    if packet[9] in WITH_PORTS and not later_fragment and len(packet) >= start + 4:
        found["tp_src"] = int.from_bytes(packet[start : start + 2])
        found["tp_dst"] = int.from_bytes(packet[start + 2 : start + 4])
    return found
