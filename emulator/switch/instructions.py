"""What the parts of a switch's program share: the maps, the places on its stack, and a few turns of phrase."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from emulator import bpf
from emulator.bpf import Instruction, Jump, Label, Reg, Size
from emulator.switch.layout import KEY, VALUE_BYTES, Layout

Lines = Iterator[Instruction | Label]

SKB_LENGTH, SKB_VLAN_PRESENT, SKB_VLAN_TCI, SKB_VLAN_PROTOCOL = 0, 20, 24, 28
SKB_TC_CLASSID, SKB_GSO_SEGMENTS = 72, 164
"""Offsets in struct __sk_buff. The kernel has taken a frame's first tag out of its bytes, and puts it back where it needs to."""
SKB: Final = Reg.R6
TAG_BYTES: Final = 4

# Places on the stack, from its top.
K: Final = -KEY.size  # the packet's key
M: Final = K - KEY.size  # the key under a mask
V: Final = M - VALUE_BYTES  # the flow, copied
BEST: Final = V - 8
EPOCH: Final = V - 16
TRIED: Final = V - 24
HEADER: Final = V - 48  # 20 bytes of a header
KEPT: Final = V - 56  # a register over an inner loop
MEMORY: Final = V - 64  # the address of the switch's memory
TABLE: Final = V - 72  # the map of its flows
NUMBER: Final = V - 80  # the switch's number, and four bytes on a zero
SPARE: Final = V - 88  # for barriers


@dataclass(frozen=True)
class Descriptors:
    """The maps that the program uses, each with a map of its own for every switch, by number."""

    memories: int
    tables: int
    rings: int


def stack_address(dst: Reg, place: int) -> Lines:
    yield bpf.move(dst, Reg.R10)
    yield bpf.add(dst, place)


def read(offset: int | Reg, place: int, length: int) -> Lines:
    """Bytes of the frame to the stack; R0 is negative if it is too short, and they are zero."""
    yield bpf.move(Reg.R1, SKB)
    yield bpf.move(Reg.R2, offset)
    yield from stack_address(Reg.R3, place)
    yield bpf.move(Reg.R4, length)
    yield bpf.call(bpf.SKB_LOAD_BYTES)


def network(value: int, bits: int) -> int:
    """A constant as it looks when loaded from a frame."""
    return int.from_bytes(value.to_bytes(bits // 8), sys.byteorder)


def frame_length(dst: Reg, scratch: Reg) -> Lines:
    """`dst` = the frame's length with its tag; of one left to segmentation offload, that of the whole."""
    yield bpf.load(Size.WORD, dst, SKB, SKB_LENGTH)
    yield bpf.load(Size.WORD, scratch, SKB, SKB_VLAN_PRESENT)
    yield bpf.multiply(scratch, TAG_BYTES)
    yield bpf.add(dst, scratch)


def of_switch(outer_fd: int) -> Lines:
    """R0 = this switch's own map, of those; without one the frame is dropped."""
    yield bpf.map_at(Reg.R1, outer_fd)
    yield from stack_address(Reg.R2, NUMBER)
    yield bpf.call(bpf.MAP_LOOKUP)
    yield bpf.jump_if(Jump.EQUAL, Reg.R0, 0, "drop")


def in_memory(dst: Reg, offset: int) -> Lines:
    """`dst` = the address of a byte of the switch's memory."""
    yield bpf.load(Size.DOUBLE, dst, Reg.R10, MEMORY)
    yield bpf.add(dst, offset)


def in_order(*, anyway: bool) -> Lines:
    """What has been read before is read before what comes next, also on processors that don't see to it by themselves; R1 is lost."""
    if anyway or not bpf.IN_ORDER:
        yield bpf.store(Size.DOUBLE, Reg.R10, SPARE, 0)
        yield bpf.move(Reg.R1, 0)
        yield bpf.barrier(Reg.R1, SPARE)


def in_port(dst: Reg, layout: Layout) -> Lines:
    """`dst` = the number of the port that the frame came by: the lower bits of the class id."""
    yield bpf.load(Size.WORD, dst, SKB, SKB_TC_CLASSID)
    yield bpf.bit_and(dst, (1 << layout.port_bits) - 1)
