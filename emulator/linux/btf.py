"""BTF, the kernel's description of its own types: where a structure has its members.

Programs that read structures of the kernel, and those that replace its functions, need the numbers
of types and the offsets of members of the kernel that runs (Documentation/bpf/btf.rst).
"""

import struct
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from moefabric.core.errors import UnsupportedError

KERNEL_TYPES: Final = Path("/sys/kernel/btf/vmlinux")
_MAGIC: Final = 0xEB9F
_HEADER: Final = struct.Struct("=HBBIIIII")
_TYPE: Final = struct.Struct("=III")  # name, kind with number of members, size or type
_MEMBER: Final = struct.Struct("=III")  # name, type, offset in bits
_KIND_FLAG: Final = 1 << 31
_BITS_OF_OFFSET: Final = 0xFFFFFF


class Kind(IntEnum):
    """Kinds of types."""

    INT, POINTER, ARRAY, STRUCT, UNION, ENUM, FORWARD, TYPEDEF, VOLATILE, CONST = range(1, 11)
    RESTRICT, FUNCTION, PROTOTYPE, VARIABLE, SECTION, FLOAT = range(11, 17)
    DECLARATION_TAG, TYPE_TAG, ENUM64 = range(17, 20)


_FIXED_TAIL: Final = {Kind.INT: 4, Kind.ARRAY: 12, Kind.VARIABLE: 4, Kind.DECLARATION_TAG: 4}
_TAIL_OF_EACH: Final = {
    **dict.fromkeys((Kind.STRUCT, Kind.UNION, Kind.SECTION, Kind.ENUM64), 12),
    **dict.fromkeys((Kind.ENUM, Kind.PROTOTYPE), 8),
}
_ALIASES: Final = {Kind.TYPEDEF, Kind.VOLATILE, Kind.CONST, Kind.RESTRICT, Kind.TYPE_TAG}


class Member(NamedTuple):
    """A member of a structure or union: its name, its type's number and its offset in bytes."""

    name: str
    type: int
    offset: int


class _Type(NamedTuple):
    kind: Kind
    members: list[Member]
    size_or_type: int


def _missing(what: str) -> UnsupportedError:
    return UnsupportedError(f"this kernel has no {what}: boot Linux 6.4 or later")


class KernelTypes:
    """The types that BTF data describes."""

    def __init__(self, data: bytes) -> None:
        """Index BTF data.

        Raises:
            ValueError: If the data isn't BTF.
        """
        magic, _, _, header, types, types_length, names, _ = _HEADER.unpack_from(data)
        if magic != _MAGIC:
            raise ValueError("no BTF of this machine's byte order")
        self._data, self._names = data, header + names
        self._types: list[int] = [0]
        self._numbers: dict[tuple[int, int], int] = {}
        position, end = header + types, header + types + types_length
        while position < end:
            name, info, _ = _TYPE.unpack_from(data, position)
            kind, members = info >> 24 & 0x1F, info & 0xFFFF
            self._numbers.setdefault((kind, name), len(self._types))
            self._types.append(position)
            tail = _FIXED_TAIL.get(kind, 0) + _TAIL_OF_EACH.get(kind, 0) * members
            position += _TYPE.size + tail

    def number(self, kind: Kind, name: str) -> int:
        """Return the number of a named type.

        Raises:
            UnsupportedError: If the kernel has no such type.
        """
        at = self._data.find(b"\0" + name.encode() + b"\0", self._names)
        try:
            return self._numbers[kind, at + 1 - self._names]
        except KeyError:
            raise _missing(f"{kind.name.lower()} {name}") from None

    def size(self, number: int) -> int:
        """Return the size of a structure in bytes."""
        return self._type(number).size_or_type

    def members(self, number: int) -> list[Member]:
        """Return the members of a structure or union in their order."""
        return self._type(number).members

    def offset(self, structure: str, path: str) -> int:
        """Return the offset of a member in bytes.

        Args:
            structure: Name of the structure.
            path: Name of the member, or of members inside members: `icsk_ack.pending`. Members of
                embedded structures without a name of their own are found by their name.

        Raises:
            UnsupportedError: If the structure has no such member.
        """
        number, offset = self.number(Kind.STRUCT, structure), 0
        for name in path.split("."):
            member = self._find(number, name)
            if member is None:
                raise _missing(f"{path} in struct {structure}")
            number, offset = member.type, offset + member.offset
        return offset

    def _find(self, number: int, name: str) -> Member | None:
        """Return a member, whose offset counts from the start of the structure."""
        while (definition := self._type(number)).kind in _ALIASES:
            number = definition.size_or_type
        if definition.kind not in {Kind.STRUCT, Kind.UNION}:
            return None
        for member in definition.members:
            if member.name == name:
                return member
            inner = None if member.name else self._find(member.type, name)
            if inner is not None:
                return inner._replace(offset=member.offset + inner.offset)
        return None

    def _type(self, number: int) -> _Type:
        position = self._types[number]
        _, info, size_or_type = _TYPE.unpack_from(self._data, position)
        kind, mask = Kind(info >> 24 & 0x1F), _BITS_OF_OFFSET if info & _KIND_FLAG else -1
        count = info & 0xFFFF if kind in {Kind.STRUCT, Kind.UNION} else 0
        first = position + _TYPE.size
        tail = self._data[first : first + count * _MEMBER.size]
        members = [
            Member(self._name(name), type_number, (bits & mask) // 8)
            for name, type_number, bits in _MEMBER.iter_unpack(tail)
        ]
        return _Type(kind, members, size_or_type)

    def _name(self, offset: int) -> str:
        start = self._names + offset
        return self._data[start : self._data.index(b"\0", start)].decode()


def smallest_types() -> bytes:
    """Return BTF with one type, an int, for system calls that want some BTF of a program."""
    names = b"\0int\0"
    integer = _TYPE.pack(1, Kind.INT << 24, 4) + struct.pack("=I", 32)
    lengths = 0, len(integer), len(integer), len(names)
    return _HEADER.pack(_MAGIC, 1, 0, _HEADER.size, *lengths) + integer + names


@cache
def kernel_types() -> KernelTypes:
    """Return the types of the kernel that runs.

    Raises:
        UnsupportedError: If the kernel doesn't describe them.
    """
    try:
        return KernelTypes(KERNEL_TYPES.read_bytes())
    except (OSError, ValueError) as error:
        remedy = "boot a kernel with CONFIG_DEBUG_INFO_BTF"
        raise UnsupportedError(f"{KERNEL_TYPES}: {error}: {remedy}") from error
