"""BPF without a compiler: instructions, and the assembler that makes them what the kernel reads (RFC 9669)."""

import platform
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum

from moefabric.errors import FabricError

IN_ORDER = platform.machine() == "x86_64"
"""Whether this processor's loads keep their order among each other, and its stores theirs."""
_FETCH = 1

# Helpers open to programs of any licence (the first since Linux 5.8).
KTIME_GET_NS, REDIRECT = 5, 23
MAP_LOOKUP, SKB_STORE_BYTES, L3_CHECKSUM_REPLACE, CLONE_REDIRECT, SKB_LOAD_BYTES = 1, 9, 10, 13, 26
RING_RESERVE, RING_SUBMIT = 131, 132
TC_ACT_OK, TC_ACT_SHOT = 0, 2


class BpfError(FabricError):
    """The kernel refused a bpf(2) call; for a program, with the verifier's last words."""


class Reg(IntEnum):
    """Registers: R0 result, R1-R5 arguments (lost in a call), R6-R9 kept over calls, R10 the frame."""

    R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = range(11)


class Size(IntEnum):
    """Width of a load or store."""

    WORD = 0x00  # 4 bytes
    HALF = 0x08  # 2 bytes
    BYTE = 0x10
    DOUBLE = 0x18  # 8 bytes


class Jump(IntEnum):
    """Unsigned comparisons, as operation bits of the jump class."""

    EQUAL = 0x10
    GREATER = 0x20
    GREATER_OR_EQUAL = 0x30
    NOT_EQUAL = 0x50
    NEGATIVE = 0xC0  # less than, both with a sign; for what helpers return


@dataclass(frozen=True)
class Instruction:
    """One instruction; `target` is a label still to be resolved into `offset`; `wide` holds a second slot's immediate."""

    code: int
    dst: int = 0
    src: int = 0
    offset: int = 0
    immediate: int = 0
    target: str | None = None
    wide: int | None = None

    @property
    def slots(self) -> int:
        return 1 if self.wide is None else 2

    def packed(self) -> bytes:
        first = struct.pack("<BBhi", self.code, self.src << 4 | self.dst, self.offset, self.immediate)
        return first if self.wide is None else first + struct.pack("<BBhi", 0, 0, 0, self.wide)


@dataclass(frozen=True)
class Label:
    """A place to jump to."""

    name: str


def _alu(operation: int, dst: Reg, src: Reg | int) -> Instruction:
    if isinstance(src, Reg):
        return Instruction(0x0F | operation, dst, src)
    return Instruction(0x07 | operation, dst, immediate=src)


def move(dst: Reg, src: Reg | int) -> Instruction:
    return _alu(0xB0, dst, src)


def add(dst: Reg, src: Reg | int) -> Instruction:
    return _alu(0x00, dst, src)


def multiply(dst: Reg, src: Reg | int) -> Instruction:
    return _alu(0x20, dst, src)


def bit_and(dst: Reg, src: Reg | int) -> Instruction:
    return _alu(0x50, dst, src)


def bit_or(dst: Reg, src: Reg | int) -> Instruction:
    return _alu(0x40, dst, src)


def shift_left(dst: Reg, src: Reg | int) -> Instruction:
    return _alu(0x60, dst, src)


def shift_right(dst: Reg, src: Reg | int) -> Instruction:
    return _alu(0x70, dst, src)


def big_endian(dst: Reg, bits: int) -> Instruction:
    """`dst` = its lowest `bits` (16, 32, 64), between the processor's byte order and the network's."""
    return Instruction(0xDC, dst, immediate=bits)


def constant(dst: Reg, value: int) -> Instruction:
    """`dst` = 64 bits."""
    low, high = struct.unpack("<ii", struct.pack("<Q", value))
    return Instruction(0x18, dst, immediate=low, wide=high)


def load(size: Size, dst: Reg, base: Reg, offset: int = 0) -> Instruction:
    """`dst = *(size *)(base + offset)`"""
    return Instruction(0x61 | size, dst, base, offset)


def store(size: Size, base: Reg, offset: int, value: Reg | int) -> Instruction:
    """`*(size *)(base + offset) = value`"""
    if isinstance(value, Reg):
        return Instruction(0x63 | size, base, value, offset)
    return Instruction(0x62 | size, base, offset=offset, immediate=value)


def atomic_add(base: Reg, offset: int, src: Reg) -> Instruction:
    """`*(u64 *)(base + offset) += src`, whatever other processors do."""
    return Instruction(0xDB, base, src, offset)


def barrier(scratch: Reg, spare: int) -> Instruction:
    """What comes before it is done before what comes after: an atomic addition that gives back, of whatever `scratch` holds, to a spare double word of the frame.

    `scratch` is lost.
    """
    return Instruction(0xDB, Reg.R10, scratch, spare, immediate=_FETCH)


def address(dst: Reg, memory_fd: int, offset: int) -> Instruction:
    """`dst` = the address of byte `offset` of a Memory (BPF_PSEUDO_MAP_VALUE, Linux 5.2)."""
    return Instruction(0x18, dst, 2, immediate=memory_fd, wide=offset)


def map_at(dst: Reg, map_fd: int) -> Instruction:
    """`dst` = a map, for the helpers that take one (BPF_PSEUDO_MAP_FD)."""
    return Instruction(0x18, dst, 1, immediate=map_fd, wide=0)


def jump(target: str) -> Instruction:
    return Instruction(0x05, target=target)


def jump_if(test: Jump, dst: Reg, src: Reg | int, target: str) -> Instruction:
    if isinstance(src, Reg):
        return Instruction(0x0D | test, dst, src, target=target)
    return Instruction(0x05 | test, dst, immediate=src, target=target)


def call(helper: int) -> Instruction:
    return Instruction(0x85, immediate=helper)


def leave() -> Instruction:
    """End the program; R0 is the verdict."""
    return Instruction(0x95)


def assembled(program: Iterable[Instruction | Label]) -> bytes:
    """The program as the kernel reads it, its labels resolved.

    Raises BpfError for a label that is missing or stands twice.
    """
    places: dict[str, int] = {}
    placed: list[tuple[int, Instruction]] = []
    slot = 0
    for line in program:
        if isinstance(line, Label):
            if line.name in places:
                raise BpfError(f"label {line.name} stands twice")
            places[line.name] = slot
        else:
            placed.append((slot, line))
            slot += line.slots
    return b"".join(_resolved(line, at, places).packed() for at, line in placed)


def _resolved(line: Instruction, at: int, places: dict[str, int]) -> Instruction:
    if line.target is None:
        return line
    if line.target not in places:
        raise BpfError(f"no label {line.target}")
    return replace(line, offset=places[line.target] - at - 1)
