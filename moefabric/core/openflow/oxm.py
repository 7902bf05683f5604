"""Matches on the wire: OpenFlow Extensible Match (OXM; OpenFlow 1.3.5, 7.2.3)."""

import struct
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from moefabric.core.openflow.constants import ErrorCode, OpenFlowError
from moefabric.core.openflow.match import (
    BASIC,
    FIELDS,
    IP_PROTO,
    IPV6,
    OXM_HEADER,
    Masked,
    Match,
    OxmField,
)

_STANDARD: Final = 1  # OFPMT_OXM
_MATCH: Final = struct.Struct("!HH")
_BY_NUMBER: Final = {field.number: field for field in FIELDS}
BY_NAME: Final = {field.name: field for field in FIELDS}
_BY_HEADER: Final = {
    field.header(masked=masked): (field, masked) for field in FIELDS for masked in (False, True)
}
IN_PORT: Final = BY_NAME["in_port"].header()


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
    if kind != _STANDARD:
        raise OpenFlowError(ErrorCode.MATCH_BAD_TYPE, f"type {kind}")
    decoded = dict[int, Masked]()
    for header, payload in _elements(wire):
        field, masked = _decode_field(header, payload)
        if field.number in decoded:
            raise OpenFlowError(ErrorCode.MATCH_DUPLICATE_FIELD, field.name)
        _check_prerequisite(field, decoded)
        decoded[field.number] = masked
    return Match(**{_BY_NUMBER[number].name: masked for number, masked in decoded.items()})


def _check_prerequisite(field: OxmField, decoded: dict[int, Masked]) -> None:
    """Raise OpenFlowError if the fields that this field depends on are absent (7.2.3.6)."""
    if field.prerequisite is None:
        return
    number, required = field.prerequisite
    value, _ = decoded.get(number, (None, 0))
    if value == required:
        return
    if value == IPV6 and field.name in {"ip_dscp", "ip_proto"}:
        raise OpenFlowError(ErrorCode.MATCH_BAD_FIELD, f"{field.name} of IPv6")
    raise OpenFlowError(ErrorCode.MATCH_BAD_PREREQUISITE, field.name)


def _decode_field(header: bytes, payload: bytes) -> tuple[OxmField, Masked]:
    """Return a field with its value and mask."""
    if header not in _BY_HEADER:
        group, number, _ = OXM_HEADER.unpack(header)
        field = _field(group, number, ErrorCode.MATCH_BAD_FIELD)
        raise OpenFlowError(ErrorCode.MATCH_BAD_LEN, field.name)
    field, has_mask = _BY_HEADER[header]
    value = int.from_bytes(payload[: field.octets])
    mask = int.from_bytes(payload[field.octets :]) if has_mask else field.ones
    if value > field.ones:
        raise OpenFlowError(ErrorCode.MATCH_BAD_VALUE, f"{field.name} {value:#x}")
    if mask > field.ones or (mask != field.ones and not field.maskable):
        raise OpenFlowError(ErrorCode.MATCH_BAD_MASK, f"{field.name} mask {mask:#x}")
    if value & ~mask:
        raise OpenFlowError(ErrorCode.MATCH_BAD_WILDCARDS, field.name)
    return field, (value, mask)


def _field(group: int, number: int, unknown: ErrorCode) -> OxmField:
    """Return the field of an OXM header; raise OpenFlowError if this codec doesn't know it."""
    field = _BY_NUMBER.get(number >> 1) if group == BASIC else None
    if field is None:
        raise OpenFlowError(unknown, f"class {group:#x} field {number >> 1}")
    return field


@lru_cache(maxsize=16384)
def encode_match(match: Match) -> bytes:
    """Encode an `ofp_match` with its padding."""
    body = b"".join(
        field.encoded(*masked)
        for field in FIELDS
        if (masked := match.masked.get(field.name)) and _applies(field, match)
    )
    return padded_match(body)


def padded_match(fields: bytes) -> bytes:
    """Encode an `ofp_match` with its padding from encoded fields."""
    length = 4 + len(fields)
    return _MATCH.pack(_STANDARD, length) + fields + bytes(-length % 8)


def _applies(field: OxmField, match: Match) -> bool:
    """Whether a field fits the match's protocol; transport ports have a field per protocol."""
    if field.prerequisite is None or field.prerequisite[0] != IP_PROTO:
        return True
    ip_proto, _ = match.masked.get("ip_proto", (None, 0))
    return ip_proto == field.prerequisite[1]


def decode_set_field(wire: bytes) -> tuple[str, int]:
    """Decode the field of a set-field action, which has no mask (7.2.5).

    Returns:
        Name and value of the field.

    Raises:
        OpenFlowError: With an error code of type OFPET_BAD_ACTION (7.4.4).
    """
    group, number, length = OXM_HEADER.unpack_from(wire)
    field = _field(group, number, ErrorCode.ACTION_BAD_SET_TYPE)
    if number & 1 or length != field.octets or len(wire) < 4 + length:
        raise OpenFlowError(ErrorCode.ACTION_BAD_SET_LEN, field.name)
    value = int.from_bytes(wire[4 : 4 + length])
    if value > field.ones:
        raise OpenFlowError(ErrorCode.ACTION_BAD_SET_ARGUMENT, f"{field.name} {value:#x}")
    return field.name, value


def encode_set_field(name: str, value: int) -> bytes:
    """Encode the field of a set-field action without padding."""
    field = BY_NAME[name]
    return field.encoded(value, field.ones)
