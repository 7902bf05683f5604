"""Match of a flow: the packets that the flow applies to, as a value and on the wire.

On the wire, it is an OpenFlow Extensible Match (OXM; OpenFlow 1.3.5, 7.2.3).

A field that a packet lacks reads as zero, so a match on a field must also require the header that
holds the field (OpenFlow 1.3.5, 7.2.3.8).
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final, Self
from weakref import WeakValueDictionary

from moefabric.core.errors import FabricError
from moefabric.core.openflow.constants import ErrorCode, OpenFlowError, refuse_if

ARP, IPV4, IPV6 = 0x0806, 0x0800, 0x86DD
TCP, UDP, SCTP = 6, 17, 132
WITH_PORTS: Final = (TCP, UDP, SCTP)

_BASIC: Final = 0x8000  # OFPXMC_OPENFLOW_BASIC
_HEADER: Final = struct.Struct("!HBB")  # class, field number and has-mask bit, length

Masked = tuple[int, int]
"""A value, and a mask of the bits that must agree."""


@dataclass(frozen=True)
class OxmField:
    """An OXM field (OpenFlow 1.3.5, 7.2.3.7): number, name, bits, and whether it takes a mask.

    `prerequisite` is another field and what it must be (7.2.3.8).
    """

    number: int
    name: str
    bits: int
    maskable: bool = False
    prerequisite: tuple[str, Masked] | None = None

    def applies(self, masked: Mapping[str, Masked]) -> bool:
        """Return whether packets with these restrictions have the header that holds the field."""
        return not self.prerequisite or masked.get(self.prerequisite[0]) == self.prerequisite[1]

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
        return _HEADER.pack(_BASIC, self.number << 1 | masked, self.octets * (1 + masked))

    def encoded(self, value: int, mask: int | None = None) -> bytes:
        """Return the field with its header, and with the mask unless all bits count."""
        if mask is None or mask == self.ones:
            return self.header() + value.to_bytes(self.octets)
        return self.header(masked=True) + value.to_bytes(self.octets) + mask.to_bytes(self.octets)


_IN_IPV4: Final = ("eth_type", (IPV4, 0xFFFF))
_IN_ARP: Final = ("eth_type", (ARP, 0xFFFF))
_IN_TCP, _IN_UDP, _IN_SCTP = (("ip_proto", (protocol, 0xFF)) for protocol in WITH_PORTS)

FIELDS: Final = (
    OxmField(0, "in_port", 32),
    OxmField(3, "eth_dst", 48, maskable=True),
    OxmField(4, "eth_src", 48, maskable=True),
    OxmField(5, "eth_type", 16),
    OxmField(8, "ip_dscp", 6, prerequisite=_IN_IPV4),
    OxmField(10, "ip_proto", 8, prerequisite=_IN_IPV4),
    OxmField(11, "ipv4_src", 32, maskable=True, prerequisite=_IN_IPV4),
    OxmField(12, "ipv4_dst", 32, maskable=True, prerequisite=_IN_IPV4),
    OxmField(13, "tp_src", 16, prerequisite=_IN_TCP),
    OxmField(14, "tp_dst", 16, prerequisite=_IN_TCP),
    OxmField(15, "tp_src", 16, prerequisite=_IN_UDP),
    OxmField(16, "tp_dst", 16, prerequisite=_IN_UDP),
    OxmField(17, "tp_src", 16, prerequisite=_IN_SCTP),
    OxmField(18, "tp_dst", 16, prerequisite=_IN_SCTP),
    OxmField(21, "arp_op", 16, prerequisite=_IN_ARP),
    OxmField(22, "arp_spa", 32, maskable=True, prerequisite=_IN_ARP),
    OxmField(23, "arp_tpa", 32, maskable=True, prerequisite=_IN_ARP),
)
FIELD_BITS: Final[Mapping[str, int]] = {field.name: field.bits for field in FIELDS}
"""The fields of a packet and their widths in bits."""
_FIELDS_OF: Final = {name: [field for field in FIELDS if field.name == name] for name in FIELD_BITS}


class FlowError(FabricError):
    """A flow, group or action is invalid or does not fit; `str()` names it."""


class Match:
    """The packets of a flow, by restrictions of fields. It isn't changed once it is made.

    Equal matches are one object: flow tables are dictionaries of matches.

    Attributes:
        masked: The fields that the match restricts, in the order of FIELD_BITS.
        mask: The mask of every field in the order of FIELD_BITS; 0 for any value.
    """

    __slots__ = ("__weakref__", "mask", "masked")
    masked: Mapping[str, Masked]
    mask: tuple[int, ...]

    def __new__(cls, **restrictions: Masked | None) -> Self:
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
        key = tuple(masked.items())
        known: Self | None = _MATCHES.get(key)
        if known is not None:
            return known
        for name in masked:
            if not any(field.applies(masked) for field in _FIELDS_OF[name]):
                others = (field.prerequisite for field in _FIELDS_OF[name] if field.prerequisite)
                required = " or ".join(f"{other}={value:#06x}" for other, (value, _) in others)
                raise FlowError(f"match {name} without {required}")
        _MATCHES[key] = match = super().__new__(cls)
        match.masked, match.mask = masked, tuple(masks)
        return match

    @classmethod
    def of(cls, **restrictions: int | Masked) -> "Match":
        """Build a match from numbers, which are exact, or (value, mask) pairs."""
        masked = {
            name: (value, BY_NAME[name].ones) if isinstance(value, int) else value
            for name, value in restrictions.items()
        }
        return cls(**masked)

    def fits(self, packet: Mapping[str, int]) -> bool:
        """Return whether the match includes a packet with these fields (see `packet_fields`)."""
        return all(packet[name] & mask == value for name, (value, mask) in self.masked.items())

    def covers(self, other: "Match") -> bool:
        """Return whether the match includes all packets of `other` (non-strict changes, 6.4)."""
        return all(
            (theirs := other.masked.get(name)) is not None
            and theirs[1] & mask == mask
            and theirs[0] & mask == value
            for name, (value, mask) in self.masked.items()
        )

    def overlaps(self, other: "Match") -> bool:
        """Return whether a packet may fit both matches (OFPFF_CHECK_OVERLAP, 6.4)."""
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
            f"{name}={value:#x}" + ("" if mask == BY_NAME[name].ones else f"/{mask:#x}")
            for name, (value, mask) in self.masked.items()
        )
        return ",".join(restrictions) or "any"

    def __repr__(self) -> str:
        return f"Match({self})"


_MATCHES: Final = WeakValueDictionary[tuple[tuple[str, Masked], ...], Any]()
_STANDARD: Final = 1  # OFPMT_OXM
_OF_IPV6: Final = {"ip_dscp", "ip_proto"}  # which this codec reads in IPv4 only
_MATCH: Final = struct.Struct("!HH")
_BY_NUMBER: Final = {field.number: field for field in FIELDS}
BY_NAME: Final = {field.name: field for field in FIELDS}
_BY_HEADER: Final = {
    field.header(masked=masked): (field, masked) for field in FIELDS for masked in (False, True)
}
IN_PORT_HEADER: Final = BY_NAME["in_port"].header()


def _elements(wire: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield header and payload of each field of a match without its padding."""
    at, length = 4, len(wire)
    while at < length:
        payload = at + 4
        if payload > length or (end := payload + wire[at + 3]) > length:
            raise OpenFlowError(ErrorCode.MATCH_BAD_LEN, "a field longer than its match")
        yield wire[at:payload], wire[payload:end]
        at = end


@lru_cache(maxsize=16384)
def match_fields(wire: bytes) -> Mapping[bytes, bytes]:
    """Return the payloads of an `ofp_match` without its padding by OXM header, unchecked.

    Raises:
        OpenFlowError: MATCH_BAD_LEN if a length is wrong.
    """
    return dict(_elements(wire))


@lru_cache(maxsize=16384)  # reconfigurations reuse earlier circuits, and so earlier matches
def decode_match(wire: bytes) -> Match:
    """Decode an `ofp_match` without its padding.

    Raises:
        OpenFlowError: With an error code of type OFPET_BAD_MATCH (7.4.4).
    """
    (kind,) = struct.unpack_from("!H", wire)
    refuse_if(kind != _STANDARD, ErrorCode.MATCH_BAD_TYPE, f"type {kind}")
    decoded = dict[str, Masked]()
    for header, payload in _elements(wire):
        field, masked = _decode_field(header, payload)
        if not field.applies(decoded):  # its prerequisite comes before it (7.2.3.6)
            is_ipv6 = decoded.get("eth_type") == (IPV6, 0xFFFF)
            refuse_if(is_ipv6 and field.name in _OF_IPV6, ErrorCode.MATCH_BAD_FIELD, field.name)
            raise OpenFlowError(ErrorCode.MATCH_BAD_PREREQUISITE, field.name)
        refuse_if(field.name in decoded, ErrorCode.MATCH_DUPLICATE_FIELD, field.name)
        decoded[field.name] = masked
    return Match(**decoded)


def _decode_field(header: bytes, payload: bytes) -> tuple[OxmField, Masked]:
    """Return a field with its value and mask."""
    if header not in _BY_HEADER:
        group, number, _ = _HEADER.unpack(header)
        field = _field(group, number, ErrorCode.MATCH_BAD_FIELD)
        raise OpenFlowError(ErrorCode.MATCH_BAD_LEN, field.name)
    field, has_mask = _BY_HEADER[header]
    value = int.from_bytes(payload[: field.octets])
    mask = int.from_bytes(payload[field.octets :]) if has_mask else field.ones
    refuse_if(value > field.ones, ErrorCode.MATCH_BAD_VALUE, f"{field.name} {value:#x}")
    if mask > field.ones or (mask != field.ones and not field.maskable):
        raise OpenFlowError(ErrorCode.MATCH_BAD_MASK, f"{field.name} mask {mask:#x}")
    refuse_if(value & ~mask, ErrorCode.MATCH_BAD_WILDCARDS, field.name)
    return field, (value, mask)


def _field(group: int, number: int, unknown: ErrorCode) -> OxmField:
    """Return the field of an OXM header; raise OpenFlowError if this codec doesn't know it."""
    field = _BY_NUMBER.get(number >> 1) if group == _BASIC else None
    if field is None:
        raise OpenFlowError(unknown, f"class {group:#x} field {number >> 1}")
    return field


@lru_cache(maxsize=16384)
def encode_match(match: Match) -> bytes:
    """Encode an `ofp_match` with its padding."""
    body = b"".join(
        field.encoded(*masked)
        for field in FIELDS
        if (masked := match.masked.get(field.name)) and field.applies(match.masked)
    )
    return padded_match(body)


def padded_match(fields: bytes) -> bytes:
    """Encode an `ofp_match` with its padding from encoded fields."""
    length = 4 + len(fields)
    return _MATCH.pack(_STANDARD, length) + fields + bytes(-length % 8)


def decode_set_field(wire: bytes) -> tuple[str, int]:
    """Decode the field of a set-field action, which has no mask (7.2.5).

    Returns:
        Name and value of the field.

    Raises:
        OpenFlowError: With an error code of type OFPET_BAD_ACTION (7.4.4).
    """
    group, number, length = _HEADER.unpack_from(wire)
    field = _field(group, number, ErrorCode.ACTION_BAD_SET_TYPE)
    if number & 1 or length != field.octets or len(wire) < 4 + length:
        raise OpenFlowError(ErrorCode.ACTION_BAD_SET_LEN, field.name)
    value = int.from_bytes(wire[4 : 4 + length])
    refuse_if(value > field.ones, ErrorCode.ACTION_BAD_SET_ARGUMENT, f"{field.name} {value:#x}")
    return field.name, value
