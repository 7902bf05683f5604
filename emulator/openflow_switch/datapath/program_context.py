"""Shared parts of the switch's program: stack layout, maps and common code sequences."""

import sys
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, NamedTuple

from moefabric.emulator.linux import bpf_assembler as bpf
from moefabric.emulator.linux.bpf_assembler import Instruction, Jump, Label, Reg, Size
from moefabric.emulator.openflow_switch.datapath.map_layout import (
    KEY_BYTES,
    VALUE_BYTES,
    MemoryLayout,
)

Code = Iterator[Instruction | Label]
SKB: Final = Reg.R6
TAG_BYTES: Final = 4
_ARGUMENTS: Final = (Reg.R1, Reg.R2, Reg.R3, Reg.R4, Reg.R5)


class SkBuff(IntEnum):
    """Offsets in struct __sk_buff (linux/bpf.h).

    The kernel removes a frame's first VLAN tag on arrival, and restores it when the frame leaves.
    """

    LENGTH = 0
    VLAN_PRESENT = 20
    VLAN_TCI = 24
    VLAN_PROTOCOL = 28
    TC_CLASSID = 72
    GSO_SEGMENTS = 164


class Stack(IntEnum):
    """Offsets from the top of the program's stack."""

    KEY = -KEY_BYTES  # the packet's key
    MASKED_KEY = KEY - KEY_BYTES
    FLOW = MASKED_KEY - VALUE_BYTES  # a copy of the flow's value
    BEST_RANK = FLOW - 8
    SELECT = FLOW - 16  # `select` when the search began
    ATTEMPTS = FLOW - 24
    IPV4_HEADER = FLOW - 48
    SAVED = FLOW - 56  # a register during an inner loop
    MEMORY = FLOW - 64  # address of the switch's memory
    TABLE = FLOW - 72  # map of the switch's flows
    NUMBER = FLOW - 80  # the switch's number, and a zero at NUMBER + 4
    BARRIER = FLOW - 88
    SLOT = FLOW - 96  # address of the packet's slot in the flow cache
    FOUND_BY = FLOW - 104  # index of the mask under which a search found the flow


class MapDescriptors(NamedTuple):
    """Descriptors of the maps of a switch, or of the arrays of all switches' maps by number."""

    memory: int
    table: int
    ring: int


class Address(NamedTuple):
    """An address: a register and an offset."""

    base: Reg
    offset: int


def on_stack(place: int) -> Address:
    """Return the address of a place on the stack."""
    return Address(Reg.R10, place)


def set_address(dst: Reg, address: Address) -> Code:
    """Set `dst` to an address."""
    yield bpf.move(dst, address.base)
    yield bpf.add(dst, address.offset)


def call(helper: int, *arguments: Reg | int | Address) -> Code:
    """Call a helper; its result is in R0, and R1 to R5 are overwritten (bpf-helpers(7))."""
    for register, argument in zip(_ARGUMENTS, arguments, strict=False):
        if isinstance(argument, Address):
            yield from set_address(register, argument)
        elif argument is not register:
            yield bpf.move(register, argument)
    yield bpf.call(helper)


def load_frame(offset: int | Reg, place: int, length: int) -> Code:
    """Copy bytes of the frame to the stack.

    If the frame is too short, R0 is negative and the bytes are zero.
    """
    yield from call(bpf.SKB_LOAD_BYTES, SKB, offset, on_stack(place), length)


def clear_stack(place: int, length: int) -> Code:
    """Set bytes of the stack to zero."""
    for at in range(place, place + length, 8):
        yield bpf.store(Size.DOUBLE, Reg.R10, at, 0)


def network_order(value: int, bits: int) -> int:
    """Return a constant in the byte order of a value that is loaded from a frame."""
    return int.from_bytes(value.to_bytes(bits // 8), sys.byteorder)


def frame_length(dst: Reg, scratch: Reg) -> Code:
    """Set `dst` to the frame's length with its tag, before segmentation offload."""
    yield bpf.load(Size.WORD, dst, SKB, SkBuff.LENGTH)
    yield bpf.load(Size.WORD, scratch, SKB, SkBuff.VLAN_PRESENT)
    yield bpf.multiply(scratch, TAG_BYTES)
    yield bpf.add(dst, scratch)


def switch_map(outer_fd: int) -> Code:
    """Set R0 to this switch's map in an array of maps; drop the frame if there is none."""
    yield bpf.map_reference(Reg.R1, outer_fd)
    yield from call(bpf.MAP_LOOKUP, Reg.R1, on_stack(Stack.NUMBER))
    yield bpf.jump_if(Jump.EQUAL, Reg.R0, 0, "drop")


def memory_address(dst: Reg, offset: int) -> Code:
    """Set `dst` to the address of a byte of the switch's memory."""
    yield bpf.load(Size.DOUBLE, dst, Reg.R10, Stack.MEMORY)
    yield bpf.add(dst, offset)


def load_barrier(*, always: bool) -> Code:
    """Order earlier loads before later ones where the processor doesn't; overwrite R1.

    Args:
        always: Whether to emit the barrier for every processor.
    """
    if always or not bpf.IS_STRONGLY_ORDERED:
        yield bpf.store(Size.DOUBLE, Reg.R10, Stack.BARRIER, 0)
        yield bpf.move(Reg.R1, 0)
        yield bpf.barrier(Reg.R1, Stack.BARRIER)


def in_port(dst: Reg, layout: MemoryLayout) -> Code:
    """Set `dst` to the port where the frame arrived: the lower bits of the class id."""
    yield bpf.load(Size.WORD, dst, SKB, SkBuff.TC_CLASSID)
    yield bpf.bit_and(dst, (1 << layout.port_bits) - 1)
