"""The wire format of Protocol Buffers: keys, numbers and length-delimited fields.

Source: https://protobuf.dev/programming-guides/encoding. Offsets are those of the whole file, so
that errors name the place.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5

Scalar = float | int | bool | str | bytes
ScalarKind = Literal[
    "double",
    "float",
    "int32",
    "int64",
    "uint32",
    "uint64",
    "sint32",
    "sint64",
    "fixed32",
    "fixed64",
    "sfixed32",
    "sfixed64",
    "bool",
    "string",
    "bytes",
]

_U64: Final = (1 << 64) - 1


class WireError(Exception):
    """Bytes are not in the wire format.

    Attributes:
        offset: Offset of the first byte of the faulty field.
        fault: What is wrong.
    """

    def __init__(self, offset: int, fault: str) -> None:
        self.offset, self.fault = offset, fault
        super().__init__(f"byte {offset}: {fault}")


@dataclass(frozen=True, slots=True)
class Span:
    """Part of a file, from `start` to before `end`."""

    data: bytes
    start: int
    end: int

    def bytes(self) -> bytes:
        """Return the bytes of this part."""
        return self.data[self.start : self.end]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a message.

    Attributes:
        number: Number of the field in the schema.
        wire_type: How the value is encoded.
        number_value: The value as an unsigned number, unless it is length-delimited.
        span: Where the value is, without the length.
        start: Offset of the field's key.
    """

    number: int
    wire_type: int
    number_value: int
    span: Span
    start: int

    def raw(self) -> bytes:
        """Return the field with its key, as it is in the file."""
        return self.span.data[self.start : self.span.end]


def read_varint(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Return a number of at most 64 bits and the offset after it.

    Raises:
        WireError: If the data end within the number, or it has more than 64 bits.
    """
    value = shift = 0
    for offset in range(start, min(end, start + 10)):
        byte = data[offset]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > _U64:
                raise WireError(start, "a number has more than 64 bits")
            return value, offset + 1
        shift += 7
    fault = "a number has more than 10 bytes" if end - start >= 10 else "a number is cut off"
    raise WireError(start, fault)


def read_delimited(data: bytes, start: int, end: int) -> Span:
    """Return what follows a length.

    Raises:
        WireError: If there are fewer bytes than the length says.
    """
    length, begin = read_varint(data, start, end)
    if length > end - begin:
        raise WireError(start, f"{length} bytes are announced, but {end - begin} follow")
    return Span(data, begin, begin + length)


def fields(message: Span) -> Iterator[Field]:
    """Yield the fields of a message in the order of the file.

    Raises:
        WireError: If a field is cut off, or has number 0 or an unknown wire type.
    """
    data, start, end = message.data, message.start, message.end
    while start < end:
        key, begin = read_varint(data, start, end)
        number, wire_type = key >> 3, key & 7
        if not 0 < number < 1 << 29:
            raise WireError(start, f"{number} is not the number of a field")
        value = 0
        if wire_type == VARINT:
            value, after = read_varint(data, begin, end)
            span = Span(data, begin, after)
        elif wire_type == LENGTH:
            span = read_delimited(data, begin, end)
        elif wire_type in {FIXED32, FIXED64}:
            span = Span(data, begin, begin + (4 if wire_type == FIXED32 else 8))
            if span.end > end:
                raise WireError(start, f"field {number} is cut off")
            value = int.from_bytes(span.bytes(), "little")
        else:
            raise WireError(start, f"field {number} has wire type {wire_type}, which is unknown")
        yield Field(number, wire_type, value, span, start)
        start = span.end


def text(field: Field) -> str:
    """Return the value of a string field.

    Raises:
        WireError: If the field is no string in UTF-8.
    """
    try:
        return submessage(field).bytes().decode()
    except UnicodeDecodeError as error:
        raise WireError(field.span.start + error.start, "a string is not in UTF-8") from error


def submessage(field: Field) -> Span:
    """Return the bytes of a field with a length.

    Raises:
        WireError: If the field has no length.
    """
    _expect(field, LENGTH)
    return field.span


def unsigned(field: Field) -> int:
    """Return the value of a uint64 field or of an enumeration.

    Raises:
        WireError: If the field is no number.
    """
    _expect(field, VARINT)
    return field.number_value


def scalar(field: Field, kind: ScalarKind) -> Scalar:
    """Return the value of a field of a kind.

    Raises:
        WireError: If the field is encoded otherwise.
    """
    if kind == "string":
        return text(field)
    if kind == "bytes":
        return submessage(field).bytes()
    _expect(field, _NUMBERS[kind].wire_type)
    return _NUMBERS[kind].decode(field.number_value)


def scalars(field: Field, kind: ScalarKind) -> list[Scalar]:
    """Return the values of one occurrence of a repeated field, packed or not.

    Raises:
        WireError: If the values are encoded otherwise, or one is cut off.
    """
    if field.wire_type != LENGTH or kind in {"string", "bytes"}:
        return [scalar(field, kind)]
    number = _NUMBERS[kind]
    return [number.decode(value) for value in _packed(field.span, number.wire_type)]


def _packed(span: Span, wire_type: int) -> Iterator[int]:
    start, width = span.start, {FIXED32: 4, FIXED64: 8}.get(wire_type, 0)
    if width and (span.end - start) % width:
        raise WireError(start, f"packed numbers of {width} bytes are cut off")
    while start < span.end:
        if width:
            value, after = int.from_bytes(span.data[start : start + width], "little"), start + width
        else:
            value, after = read_varint(span.data, start, span.end)
        yield value
        start = after


def _expect(field: Field, wire_type: int) -> None:
    if field.wire_type != wire_type:
        fault = f"field {field.number} has wire type {field.wire_type} instead of {wire_type}"
        raise WireError(field.start, fault)


def varint(value: int) -> bytes:
    """Return the encoding of an unsigned number."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def delimited(content: bytes) -> bytes:
    """Return bytes with their length in front."""
    return varint(len(content)) + content


def number_field(number: int, value: int) -> bytes:
    """Return a uint64 or enumeration field; nothing for 0, which is the default."""
    return varint(number << 3 | VARINT) + varint(value) if value else b""


def bytes_field(number: int, content: bytes) -> bytes:
    """Return a field with a length, also if it is empty."""
    return varint(number << 3 | LENGTH) + delimited(content)


def text_field(number: int, content: str) -> bytes:
    """Return a string field; nothing for the empty string, which is the default."""
    return bytes_field(number, content.encode()) if content else b""


def packed_field(number: int, values: list[Scalar], kind: ScalarKind) -> bytes:
    """Return a repeated field as proto3 writes it; nothing for no values."""
    if kind in {"string", "bytes"}:
        return b"".join(scalar_field(number, value, kind) for value in values)
    content = b"".join(_NUMBERS[kind].encode(value) for value in values)
    return bytes_field(number, content) if values else b""


def scalar_field(number: int, value: Scalar, kind: ScalarKind) -> bytes:
    """Return a field of a oneof, which is there also if it has the default value.

    Raises:
        ValueError: If the kind can't hold the value.
    """
    if isinstance(value, str):
        return bytes_field(number, value.encode())
    if isinstance(value, bytes):
        return bytes_field(number, value)
    coding = _NUMBERS[kind]
    return varint(number << 3 | coding.wire_type) + coding.encode(value)


@dataclass(frozen=True, slots=True)
class _Number:
    wire_type: int
    decode: Callable[[int], Scalar]
    encode: Callable[[Scalar], bytes]


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _ranged(value: Scalar, low: int, high: int) -> int:
    number = int(value)
    if not low <= number <= high:
        raise ValueError(f"{number} is not between {low} and {high}")
    return number


def _integer(bits: int, *, signed: bool) -> _Number:
    """Return the coding of a number; negative ones have 64 bits, as in protobuf."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return _Number(
        VARINT,
        (lambda raw: _signed(raw, bits)) if signed else (lambda raw: raw & high),
        lambda value: varint(_ranged(value, low, high) & _U64),
    )


def _zigzag(bits: int) -> _Number:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    mask = (1 << bits) - 1

    def encode(value: Scalar) -> bytes:
        number = _ranged(value, low, high)
        return varint((number << 1 ^ number >> bits - 1) & mask)

    return _Number(VARINT, lambda raw: (raw & mask) >> 1 ^ -(raw & 1), encode)


def _fixed(layout: str) -> _Number:
    size = struct.calcsize(layout)

    def decode(raw: int) -> Scalar:
        value: Scalar = struct.unpack(layout, raw.to_bytes(size, "little"))[0]
        return value

    def encode(value: Scalar) -> bytes:
        try:
            return struct.pack(layout, value)
        except (struct.error, OverflowError) as error:
            raise ValueError(f"{value!r} does not fit: {error}") from error

    return _Number(FIXED32 if size == 4 else FIXED64, decode, encode)


_NUMBERS: Final[Mapping[ScalarKind, _Number]] = {
    "double": _fixed("<d"),
    "float": _fixed("<f"),
    "int32": _integer(32, signed=True),
    "int64": _integer(64, signed=True),
    "uint32": _integer(32, signed=False),
    "uint64": _integer(64, signed=False),
    "sint32": _zigzag(32),
    "sint64": _zigzag(64),
    "fixed32": _fixed("<I"),
    "fixed64": _fixed("<Q"),
    "sfixed32": _fixed("<i"),
    "sfixed64": _fixed("<q"),
    "bool": _Number(VARINT, bool, lambda value: varint(int(bool(value)))),
}
