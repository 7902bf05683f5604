"""Assembler for BPF programs (RFC 9669), so that the emulator needs no compiler."""

import platform
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from moefabric.core.errors import FabricError

IS_STRONGLY_ORDERED = platform.machine() == "x86_64"
"""Whether this processor keeps the order of loads among loads, and of stores among stores."""
_FETCH = 1

# Helpers that programs of any licence may call (the first since Linux 5.8).
KTIME_GET_NS, REDIRECT = 5, 23
MAP_LOOKUP, SKB_STORE_BYTES, L3_CHECKSUM_REPLACE, CLONE_REDIRECT, SKB_LOAD_BYTES = 1, 9, 10, 13, 26
RING_RESERVE, RING_SUBMIT = 131, 132
TCP_SEND_ACK = 116
TC_ACT_OK, TC_ACT_SHOT = 0, 2


class BpfError(FabricError):
    """The kernel refused a bpf(2) call. For a program, the message has the verifier's last line."""


class Reg(IntEnum):
    """Registers: R0 result, R1-R5 arguments (lost in a call), R6-R9 preserved, R10 frame."""

    R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, R10 = range(11)


class Size(IntEnum):
    """Width of a load or store."""

    WORD = 0x00  # 4 bytes
    HALF = 0x08  # 2 bytes
    BYTE = 0x10
    DOUBLE = 0x18  # 8 bytes


class Jump(IntEnum):
    """Comparisons, as operation bits of the jump class; unsigned unless noted."""

    EQUAL = 0x10
    GREATER = 0x20
    GREATER_OR_EQUAL = 0x30
    ANY_BIT = 0x40  # the two have a bit in common
    NOT_EQUAL = 0x50
    LESS = 0xA0
    NEGATIVE = 0xC0  # signed less-than, for results of helpers


@dataclass(frozen=True)
class Instruction:
    """Instruction of BPF.

    `target` is a label that `assemble` resolves into `offset`; `wide` is the immediate of a second
    slot.
    """

    code: int
    dst: int = 0
    src: int = 0
    offset: int = 0
    immediate: int = 0
    target: str | None = None
    wide: int | None = None

    @property
    def slots(self) -> int:
        """Number of 8-byte slots."""
        return 1 if self.wide is None else 2

    def packed(self) -> bytes:
        """Return the encoding."""
        first = struct.pack(
            "<BBhi", self.code, self.src << 4 | self.dst, self.offset, self.immediate
        )
        return first if self.wide is None else first + struct.pack("<BBhi", 0, 0, 0, self.wide)


@dataclass(frozen=True)
class Label:
    """Target of jumps."""

    name: str


Code = Iterable[Instruction | Label]
"""A program, or a part of one."""
_Binary = Callable[[Reg, Reg | int], Instruction]


def _alu(operation: int) -> _Binary:
    """Return the encoder of `dst = dst OPERATION src` on 64 bits."""

    def encode(dst: Reg, src: Reg | int) -> Instruction:
        if isinstance(src, Reg):
            return Instruction(0x0F | operation, dst, src)
        return Instruction(0x07 | operation, dst, immediate=src)

    return encode


add: Final = _alu(0x00)
subtract: Final = _alu(0x10)
multiply: Final = _alu(0x20)
divide: Final = _alu(0x30)  # unsigned; 0 if the divisor is 0
bit_or: Final = _alu(0x40)
bit_and: Final = _alu(0x50)
shift_left: Final = _alu(0x60)
shift_right: Final = _alu(0x70)
move: Final = _alu(0xB0)


def big_endian(dst: Reg, bits: int) -> Instruction:
    """Convert the lowest `bits` (16, 32, 64) of `dst` from or to network byte order."""
    return Instruction(0xDC, dst, immediate=bits)


def constant(dst: Reg, value: int) -> Instruction:
    """Set `dst` to a 64-bit value."""
    low, high = struct.unpack("<ii", struct.pack("<Q", value))
    return Instruction(0x18, dst, immediate=low, wide=high)


def load(size: Size, dst: Reg, base: Reg, offset: int = 0) -> Instruction:
    """Encode `dst = *(size *)(base + offset)`."""
    return Instruction(0x61 | size, dst, base, offset)


def store(size: Size, base: Reg, offset: int, value: Reg | int) -> Instruction:
    """Encode `*(size *)(base + offset) = value`."""
    if isinstance(value, Reg):
        return Instruction(0x63 | size, base, value, offset)
    return Instruction(0x62 | size, base, offset=offset, immediate=value)


def atomic_add(base: Reg, offset: int, src: Reg) -> Instruction:
    """Encode an atomic `*(u64 *)(base + offset) += src`."""
    return Instruction(0xDB, base, src, offset)


def fetch_and_add(base: Reg, offset: int, src: Reg) -> Instruction:
    """Encode an atomic `*(u64 *)(base + offset) += src`, which leaves the old value in `src`."""
    return Instruction(0xDB, base, src, offset, immediate=_FETCH)


def compare_and_swap(base: Reg, offset: int, src: Reg) -> Instruction:
    """Encode an atomic `*(u64 *)(base + offset) = src` if R0 is the old value, which R0 gets."""
    return Instruction(0xDB, base, src, offset, immediate=0xF0 | _FETCH)


def barrier(scratch: Reg, spare: int) -> Instruction:
    """Encode a full memory barrier: an atomic fetch-and-add to a spare word of the stack frame.

    Register `scratch` is overwritten; `spare` is the offset of an unused 8-byte word.
    """
    return fetch_and_add(Reg.R10, spare, scratch)


def address(dst: Reg, memory_fd: int, offset: int) -> Instruction:
    """Set `dst` to the address of a byte of a Memory (BPF_PSEUDO_MAP_VALUE, Linux 5.2)."""
    return Instruction(0x18, dst, 2, immediate=memory_fd, wide=offset)


def map_reference(dst: Reg, map_fd: int) -> Instruction:
    """Set `dst` to a map, as an argument of helpers (BPF_PSEUDO_MAP_FD)."""
    return Instruction(0x18, dst, 1, immediate=map_fd, wide=0)


def jump(target: str) -> Instruction:
    """Jump to a label."""
    return Instruction(0x05, target=target)


def jump_if(test: Jump, dst: Reg, src: Reg | int, target: str) -> Instruction:
    """Jump to a label if the comparison of `dst` with `src` holds."""
    if isinstance(src, Reg):
        return Instruction(0x0D | test, dst, src, target=target)
    return Instruction(0x05 | test, dst, immediate=src, target=target)


def call(helper: int) -> Instruction:
    """Call a helper function of the kernel."""
    return Instruction(0x85, immediate=helper)


def call_kernel(function: int) -> Instruction:
    """Call a function of the kernel by the number of its type (Linux 5.13)."""
    return Instruction(0x85, src=2, immediate=function)


def exit_program() -> Instruction:
    """End the program; R0 is the verdict."""
    return Instruction(0x95)


def assemble(program: Code) -> bytes:
    """Encode a program and resolve its labels.

    Raises:
        BpfError: for a missing or duplicate label.
    """
    slot_of: dict[str, int] = {}
    instructions: list[tuple[int, Instruction]] = []
    slot = 0
    for line in program:
        if isinstance(line, Label):
            if line.name in slot_of:
                raise BpfError(f"duplicate label {line.name}")
            slot_of[line.name] = slot
        else:
            instructions.append((slot, line))
            slot += line.slots
    return b"".join(_resolve(line, slot, slot_of).packed() for slot, line in instructions)


def _resolve(line: Instruction, slot: int, slot_of: dict[str, int]) -> Instruction:
    if line.target is None:
        return line
    if line.target not in slot_of:
        raise BpfError(f"no label {line.target}")
    return replace(line, offset=slot_of[line.target] - slot - 1)
