"""The wire format of Protocol Buffers. Literal bytes are those of protobuf's documentation."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.traces import protobuf
from moefabric.traces.protobuf import Field, Scalar, ScalarKind, Span, WireError

U64 = st.integers(0, (1 << 64) - 1)


def only_field(data: bytes) -> Field:
    (field,) = protobuf.fields(Span(data, 0, len(data)))
    return field


@given(U64)
def test_a_varint_comes_back(value: int) -> None:
    data = protobuf.varint(value)
    assert protobuf.read_varint(data, 0, len(data)) == (value, len(data))


@pytest.mark.parametrize(
    ("kind", "value", "encoded"),
    [
        ("uint64", 150, "089601"),
        ("int32", -2, "08feffffffffffffffff01"),
        ("int64", -1, "08ffffffffffffffffff01"),
        ("sint32", -1, "0801"),
        ("sint64", -(1 << 63), "08ffffffffffffffffff01"),
        ("sint64", 1, "0802"),
        ("fixed32", 1, "0d01000000"),
        ("sfixed64", -1, "09ffffffffffffffff"),
        ("double", 1.0, "09000000000000f03f"),
        ("float", -2.0, "0d000000c0"),
        ("bool", True, "0801"),
        ("string", "testing", "0a0774657374696e67"),
        ("bytes", b"\x00", "0a0100"),
    ],
)
def test_each_kind_has_its_encoding(kind: ScalarKind, value: Scalar, encoded: str) -> None:
    data = protobuf.scalar_field(1, value, kind)
    assert data.hex() == encoded
    assert protobuf.scalar(only_field(data), kind) == value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int32", 1 << 31),
        ("uint32", -1),
        ("uint64", 1 << 64),
        ("sint32", -(1 << 31) - 1),
        ("fixed32", 1 << 32),
        ("float", 1e39),
    ],
)
def test_a_value_that_does_not_fit_its_kind_is_refused(kind: ScalarKind, value: Scalar) -> None:
    with pytest.raises(ValueError, match=r"is not between|does not fit"):
        protobuf.scalar_field(1, value, kind)


def test_packed_and_unpacked_numbers_are_the_same() -> None:
    assert protobuf.packed_field(4, [3, 270, 86942], "uint64").hex() == "2206038e029ea705"
    packed = only_field(bytes.fromhex("2206038e029ea705"))
    assert protobuf.scalars(packed, "uint64") == [3, 270, 86942]
    assert protobuf.scalars(only_field(bytes.fromhex("208e02")), "uint64") == [270]


def test_packed_fixed_numbers_come_back() -> None:
    data = protobuf.packed_field(1, [1.5, math.inf], "double")
    assert data == b"\x0a\x10" + struct.pack("<dd", 1.5, math.inf)
    assert protobuf.scalars(only_field(data), "double") == [1.5, math.inf]


@pytest.mark.parametrize(
    ("data", "offset", "fault"),
    [
        (b"\x08", 1, "cut off"),
        (b"\x08\x80", 1, "cut off"),
        (b"\x08" + b"\xff" * 11, 1, "more than 10 bytes"),
        (b"\x08" + b"\xff" * 9 + b"\x02", 1, "more than 64 bits"),
        (b"\x0a\xff\xff\xff\xff\x0f", 1, "4294967295 bytes are announced, but 0 follow"),
        (b"\x09\x00", 0, "field 1 is cut off"),
        (b"\x0b", 0, "wire type 3"),
        (b"\x00\x00", 0, "0 is not the number of a field"),
    ],
)
def test_broken_fields_are_faults_with_the_offset(data: bytes, offset: int, fault: str) -> None:
    with pytest.raises(WireError, match=fault) as caught:
        list(protobuf.fields(Span(data, 0, len(data))))
    assert caught.value.offset == offset


def test_packed_fixed_numbers_that_are_cut_off_are_a_fault() -> None:
    with pytest.raises(WireError, match="byte 2: packed numbers of 4 bytes are cut off"):
        protobuf.scalars(only_field(b"\x0a\x06abcdef"), "fixed32")


def test_a_string_that_is_not_text_is_a_fault_with_the_offset() -> None:
    with pytest.raises(WireError, match="byte 3: a string is not in UTF-8"):
        protobuf.text(only_field(b"\x0a\x02a\xff"))


def test_numbers_and_lengths_are_not_mistaken_for_each_other() -> None:
    with pytest.raises(WireError, match="wire type 0 instead of 2"):
        protobuf.text(only_field(b"\x08\x01"))
    with pytest.raises(WireError, match="wire type 2 instead of 0"):
        protobuf.unsigned(only_field(b"\x0a\x00"))
