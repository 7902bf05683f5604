"""Fields of an Ethernet frame that queues use: class, ECN and flow of an IPv4 packet."""

from typing import Final

_ETHERTYPE, _IPV4 = slice(12, 14), b"\x08\x00"
_TOS: Final = 15
_PROTOCOL: Final = 23
_CHECKSUM: Final = slice(24, 26)
_ADDRESSES: Final = slice(26, 34)
_PORTS: Final = slice(34, 38)
_FRAGMENT: Final = slice(20, 22)
_HAS_PORTS: Final = (6, 17)
_VERSION, _PLAIN_HEADER = 14, 0x45
_CE: Final = 3
_HIGHEST_CLASS: Final = 7


def traffic_class(frame: bytes) -> int:
    """Return the class selector, 0 to 7; packets other than IPv4, such as ARP, have the highest."""
    return frame[_TOS] >> 5 if frame[_ETHERTYPE] == _IPV4 else _HIGHEST_CLASS


def is_ecn_capable(frame: bytes) -> bool:
    """Return whether the flow of a frame reacts to marks: ECT(0), ECT(1) or CE (RFC 3168)."""
    return frame[_ETHERTYPE] == _IPV4 and bool(frame[_TOS] & _CE)


def with_congestion_mark(frame: bytes) -> bytes:
    """Return an IPv4 frame with the mark Congestion Experienced.

    The header's checksum follows without a sum over all of it (RFC 1624, equation 3).
    """
    before = frame[_TOS]
    checksum = int.from_bytes(frame[_CHECKSUM])
    # The type-of-service octet is the lower half of its 16-bit word.
    total = (~checksum & 0xFFFF) + (~before & 0xFFFF) + (before | _CE)
    total = (total & 0xFFFF) + (total >> 16)
    total = (total & 0xFFFF) + (total >> 16)
    changed = bytearray(frame)
    changed[_TOS] = before | _CE
    changed[_CHECKSUM] = (~total & 0xFFFF).to_bytes(2)
    return bytes(changed)


def flow_of(frame: bytes) -> bytes:
    """Return the identity of a frame's flow: protocol, addresses, and ports if there are any."""
    if frame[_ETHERTYPE] != _IPV4:
        return frame[_ETHERTYPE]
    flow = frame[_PROTOCOL : _PROTOCOL + 1] + frame[_ADDRESSES]
    has_ports = frame[_PROTOCOL] in _HAS_PORTS and frame[_VERSION] == _PLAIN_HEADER
    is_fragment = int.from_bytes(frame[_FRAGMENT]) & 0x3FFF
    return flow + frame[_PORTS] if has_ports and not is_fragment else flow
