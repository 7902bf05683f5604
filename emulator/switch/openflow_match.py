"""What packets an entry takes, as OpenFlow writes it: OXM fields (OpenFlow 1.3.5, 7.2.3) read into a `Match`, and written from one."""

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from emulator.switch.match import Masked, Match
from emulator.switch.openflow_numbers import OpenFlowError, Refusal
from emulator.switch.packet import SCTP, TCP, UDP, WIDTHS

_BASIC: Final = 0x8000  # OFPXMC_OPENFLOW_BASIC


@dataclass(frozen=True)
class Field:
    """A header field of OpenFlow, by its number: which one of a match it is, and what must have been matched for it to exist."""

    number: int
    name: str
    maskable: bool = False
    needs: Masked | None = None
    """Value and number of the field that it depends on, as `(value, number)`."""

    @property
    def octets(self) -> int:
        return (WIDTHS[self.name] + 7) // 8

    @property
    def ones(self) -> int:
        """The mask under which every bit counts."""
        return (1 << WIDTHS[self.name]) - 1


_ETH_TYPE, _IP_PROTO = 5, 10
_IPV6: Final = 0x86DD
_IN_IPV4: Final = (0x0800, _ETH_TYPE)
_IN_ARP: Final = (0x0806, _ETH_TYPE)

FIELDS: Final = (
    Field(0, "in_port"),
    Field(3, "eth_dst", maskable=True),
    Field(4, "eth_src", maskable=True),
    Field(_ETH_TYPE, "eth_type"),
    Field(8, "ip_dscp", needs=_IN_IPV4),
    Field(_IP_PROTO, "ip_proto", needs=_IN_IPV4),
    Field(11, "ipv4_src", maskable=True, needs=_IN_IPV4),
    Field(12, "ipv4_dst", maskable=True, needs=_IN_IPV4),
    Field(13, "tp_src", needs=(TCP, _IP_PROTO)),
    Field(14, "tp_dst", needs=(TCP, _IP_PROTO)),
    Field(15, "tp_src", needs=(UDP, _IP_PROTO)),
    Field(16, "tp_dst", needs=(UDP, _IP_PROTO)),
    Field(17, "tp_src", needs=(SCTP, _IP_PROTO)),
    Field(18, "tp_dst", needs=(SCTP, _IP_PROTO)),
    Field(21, "arp_op", needs=_IN_ARP),
    Field(22, "arp_spa", maskable=True, needs=_IN_ARP),
    Field(23, "arp_tpa", maskable=True, needs=_IN_ARP),
)
_BY_NUMBER: Final = {field.number: field for field in FIELDS}


@lru_cache(maxsize=16384)  # light comes back to the same NICs, and with it the same matches
def decoded(wire: bytes) -> Match:
    """The match in an `ofp_match` without its padding. OpenFlowError with one of the codes for a bad match (7.4.4)."""
    kind, length = struct.unpack_from("!HH", wire)
    if kind != 1:
        raise OpenFlowError(Refusal.MATCH_BAD_TYPE, f"type {kind}")
    seen, at = dict[int, Masked](), 4
    while at < length:
        field, masked, at = _field(wire, at, length)
        if field.number in seen:
            raise OpenFlowError(Refusal.MATCH_DUPLICATE_FIELD, field.name)
        # A field comes after those that say that it exists (7.2.3.6).
        if field.needs and (given := seen.get(field.needs[1], (None, 0))[0]) != field.needs[0]:
            if field.needs == _IN_IPV4 and given == _IPV6 and field.name in {"ip_dscp", "ip_proto"}:
                raise OpenFlowError(Refusal.MATCH_BAD_FIELD, f"{field.name} of IPv6")
            raise OpenFlowError(Refusal.MATCH_BAD_PREREQUISITE, field.name)
        seen[field.number] = masked
    return Match(**{_BY_NUMBER[number].name: masked for number, masked in seen.items()})


def _field(wire: bytes, at: int, end: int) -> tuple[Field, Masked, int]:
    """The field at `at`, its value and mask, and where the next one is."""
    if end - at < 4:
        raise OpenFlowError(Refusal.MATCH_BAD_LEN, "half a field")
    group, number, length = struct.unpack_from("!HBB", wire, at)
    has_mask, at = number & 1, at + 4
    if at + length > end:
        raise OpenFlowError(Refusal.MATCH_BAD_LEN, "a field longer than its match")
    field = _BY_NUMBER.get(number >> 1) if group == _BASIC else None
    if field is None:
        raise OpenFlowError(Refusal.MATCH_BAD_FIELD, f"class {group:#x} field {number >> 1}")
    if length != field.octets * (1 + has_mask):
        raise OpenFlowError(Refusal.MATCH_BAD_LEN, field.name)
    value = int.from_bytes(wire[at : at + field.octets], "big")
    mask = int.from_bytes(wire[at + field.octets : at + length], "big") if has_mask else field.ones
    _check(field, value, mask)
    return field, (value, mask), at + length


def _check(field: Field, value: int, mask: int) -> None:
    if value > field.ones:
        raise OpenFlowError(Refusal.MATCH_BAD_VALUE, f"{field.name} {value:#x}")
    if mask > field.ones or (mask != field.ones and not field.maskable):
        raise OpenFlowError(Refusal.MATCH_BAD_MASK, f"{field.name} mask {mask:#x}")
    if value & ~mask:
        raise OpenFlowError(Refusal.MATCH_BAD_WILDCARDS, field.name)


@lru_cache(maxsize=16384)
def encoded(match: Match) -> bytes:
    """An `ofp_match` with its padding."""
    body = b"".join(
        _oxm(field, *held)
        for field in FIELDS
        if (held := match.masked.get(field.name)) and _is_in(field, match)
    )
    length = 4 + len(body)
    return struct.pack("!HH", 1, length) + body + bytes(-length % 8)


def _is_in(field: Field, match: Match) -> bool:
    """Ports have another number for each protocol."""
    return (
        field.needs is None
        or field.needs[1] != _IP_PROTO
        or bool(match.ip_proto and match.ip_proto[0] == field.needs[0])
    )


def _oxm(field: Field, value: int, mask: int) -> bytes:
    masked = mask != field.ones
    head = struct.pack("!HBB", _BASIC, field.number << 1 | masked, field.octets * (1 + masked))
    written = head + value.to_bytes(field.octets, "big")
    return written + mask.to_bytes(field.octets, "big") if masked else written


def set_field(wire: bytes) -> tuple[str, int]:
    """The field and value of a set-field action, which has no mask (7.2.5). OpenFlowError with one of the codes for a bad action."""
    group, number, length = struct.unpack_from("!HBB", wire)
    field = _BY_NUMBER.get(number >> 1) if group == _BASIC else None
    if field is None:
        raise OpenFlowError(Refusal.ACTION_BAD_SET_TYPE, f"class {group:#x} field {number >> 1}")
    if number & 1 or length != field.octets or len(wire) < 4 + length:
        raise OpenFlowError(Refusal.ACTION_BAD_SET_LEN, field.name)
    value = int.from_bytes(wire[4 : 4 + length], "big")
    if value > field.ones:
        raise OpenFlowError(Refusal.ACTION_BAD_SET_ARGUMENT, f"{field.name} {value:#x}")
    return field.name, value


def set_field_oxm(name: str, value: int) -> bytes:
    """The field and value as a set-field action has them, without padding."""
    field = next(field for field in FIELDS if field.name == name)
    return _oxm(field, value, field.ones)


def meet(one: Match, other: Match) -> Match | None:
    """The packets of both; None if no packet can be."""
    if not one.overlaps(other):
        return None
    both = dict(one.masked)
    for name, (value, mask) in other.masked.items():
        known, under = both.get(name, (0, 0))
        both[name] = (known | value, under | mask)
    return Match(**both)
