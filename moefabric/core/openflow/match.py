"""Match of a flow: the packets that the flow applies to.

A field that a packet lacks reads as zero, so a match on a field must also require the header that
holds the field (OpenFlow 1.3.5, 7.2.3.8).
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from moefabric.core.errors import FabricError

ARP, IPV4, IPV6 = 0x0806, 0x0800, 0x86DD
TCP, UDP, SCTP = 6, 17, 132
WITH_PORTS: Final = (TCP, UDP, SCTP)

BASIC: Final = 0x8000  # OFPXMC_OPENFLOWBASIC
OXM_HEADER: Final = struct.Struct("!HBB")  # class, field number and has-mask bit, length
ETH_TYPE, IP_PROTO = 5, 10


@dataclass(frozen=True)
class OxmField:
    """An OXM field (OpenFlow 1.3.5, 7.2.3.7): number, name, bits, and whether it takes a mask.

    `prerequisite` is the number of another field and the value that it must have (7.2.3.8).
    """

    number: int
    name: str
    bits: int
    maskable: bool = False
    prerequisite: tuple[int, int] | None = None

    @cached_property
    def octets(self) -> int:
        """Length of the value on the wire."""
        return (self.bits + 7) // 8

    @cached_property
    def ones(self) -> int:
        """The mask of an exact match, and the largest value."""
        return (1 << self.bits) - 1

    def header(self, *, masked: bool = False) -> bytes:
        """Return the OXM header, which table features list by itself (7.3.5.5.2)."""
        return OXM_HEADER.pack(BASIC, self.number << 1 | masked, self.octets * (1 + masked))

    def encoded(self, value: int, mask: int) -> bytes:
        """Return the field with its header, and with the mask unless all bits count."""
        if mask == self.ones:
            return self.header() + value.to_bytes(self.octets)
        return self.header(masked=True) + value.to_bytes(self.octets) + mask.to_bytes(self.octets)


_IN_IPV4: Final = (ETH_TYPE, IPV4)
_IN_ARP: Final = (ETH_TYPE, ARP)

FIELDS: Final = (
    OxmField(0, "in_port", 32),
    OxmField(3, "eth_dst", 48, maskable=True),
    OxmField(4, "eth_src", 48, maskable=True),
    OxmField(ETH_TYPE, "eth_type", 16),
    OxmField(8, "ip_dscp", 6, prerequisite=_IN_IPV4),
    OxmField(IP_PROTO, "ip_proto", 8, prerequisite=_IN_IPV4),
    OxmField(11, "ipv4_src", 32, maskable=True, prerequisite=_IN_IPV4),
    OxmField(12, "ipv4_dst", 32, maskable=True, prerequisite=_IN_IPV4),
    OxmField(13, "tp_src", 16, prerequisite=(IP_PROTO, TCP)),
    OxmField(14, "tp_dst", 16, prerequisite=(IP_PROTO, TCP)),
    OxmField(15, "tp_src", 16, prerequisite=(IP_PROTO, UDP)),
    OxmField(16, "tp_dst", 16, prerequisite=(IP_PROTO, UDP)),
    OxmField(17, "tp_src", 16, prerequisite=(IP_PROTO, SCTP)),
    OxmField(18, "tp_dst", 16, prerequisite=(IP_PROTO, SCTP)),
    OxmField(21, "arp_op", 16, prerequisite=_IN_ARP),
    OxmField(22, "arp_spa", 32, maskable=True, prerequisite=_IN_ARP),
    OxmField(23, "arp_tpa", 32, maskable=True, prerequisite=_IN_ARP),
)
FIELD_BITS: Final[Mapping[str, int]] = {field.name: field.bits for field in FIELDS}
"""The fields of a packet and their widths in bits."""

Masked = tuple[int, int]
"""A value, and a mask of the bits that must agree."""
_EXACT_WITH_PORTS: Final = frozenset((protocol, 0xFF) for protocol in WITH_PORTS)


class FlowError(FabricError):
    """A flow, group or action is invalid or does not fit; `str()` names it."""


class Match:
    """The packets of a flow, by restrictions of fields. It isn't changed once it is made.

    Attributes:
        masked: The fields that the match restricts, in the order of FIELD_BITS.
        mask: The mask of every field in the order of FIELD_BITS; 0 for any value.
    """

    __slots__ = ("_hash", "mask", "masked")

    def __init__(self, **restrictions: Masked | None) -> None:
        """Take a value and a mask for each field of FIELD_BITS; None is any value.

        The bits of a value outside its mask are cleared.
        """
        masked: dict[str, Masked] = {}
        masks = []
        for name, bits in FIELD_BITS.items():
            value, mask = restrictions.pop(name, None) or (0, 0)
            if not (0 <= mask < 1 << bits and 0 <= value < 1 << bits):
                raise FlowError(f"match {name}={value:#x}/{mask:#x}: the field has {bits} bits")
            if mask:
                masked[name] = value & mask, mask
            masks.append(mask)
        if restrictions:
            raise TypeError(f"a match has no fields {', '.join(restrictions)}")
        self.masked: Mapping[str, Masked] = masked
        self.mask = tuple(masks)
        for name in masked:
            self._check_prerequisite(name)
        self._hash = hash(tuple(masked.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Match) and self.masked == other.masked

    def __hash__(self) -> int:
        return self._hash  # computed once: flow tables are dictionaries of matches

    def _check_prerequisite(self, name: str) -> None:
        eth_type, ip_proto = self.masked.get("eth_type"), self.masked.get("ip_proto")
        if name.startswith("arp") and eth_type != (ARP, 0xFFFF):
            raise FlowError(f"match {name} without eth_type={ARP:#06x}")
        if name.startswith("ip") and eth_type != (IPV4, 0xFFFF):
            raise FlowError(f"match {name} without eth_type={IPV4:#06x}")
        if name.startswith("tp") and ip_proto not in _EXACT_WITH_PORTS:
            raise FlowError(f"match {name} without ip_proto {', '.join(map(str, WITH_PORTS))}")

    @classmethod
    def of(cls, **restrictions: int | Masked) -> "Match":
        """Build a match from numbers, which are exact, or (value, mask) pairs."""
        return cls(
            **{
                name: (value, (1 << FIELD_BITS[name]) - 1) if isinstance(value, int) else value
                for name, value in restrictions.items()
            }
        )

    def fits(self, packet: Mapping[str, int]) -> bool:
        """Whether the match includes a packet with these fields (see `packet_fields`)."""
        return all(packet[name] & mask == value for name, (value, mask) in self.masked.items())

    def covers(self, other: "Match") -> bool:
        """Whether the match includes all packets of `other` (non-strict modify and delete, 6.4)."""
        return all(
            (theirs := other.masked.get(name)) is not None
            and theirs[1] & mask == mask
            and theirs[0] & mask == value
            for name, (value, mask) in self.masked.items()
        )

    def overlaps(self, other: "Match") -> bool:
        """Whether a packet may fit both matches (OFPFF_CHECK_OVERLAP, 6.4)."""
        return all(
            (theirs := other.masked.get(name)) is None
            or (theirs[0] ^ value) & theirs[1] & mask == 0
            for name, (value, mask) in self.masked.items()
        )

    def intersection(self, other: "Match") -> "Match | None":
        """Return the match of the packets that fit both matches; None if there are none."""
        if not self.overlaps(other):
            return None
        both = dict(self.masked)
        for name, (value, mask) in other.masked.items():
            own_value, own_mask = both.get(name, (0, 0))
            both[name] = (own_value | value, own_mask | mask)
        return Match(**both)

    def __str__(self) -> str:
        restrictions = (
            f"{name}={value:#x}" + ("" if mask == (1 << FIELD_BITS[name]) - 1 else f"/{mask:#x}")
            for name, (value, mask) in self.masked.items()
        )
        return ",".join(restrictions) or "any"

    def __repr__(self) -> str:
        return f"Match({self})"
