"""Parts of the switch's program: its stack, common code sequences, and the steps of a flow."""

import sys
from enum import IntEnum
from typing import Final, NamedTuple

from moefabric.core.openflow.match import IPV4
from moefabric.emulator.linux import bpf_assembler as bpf
from moefabric.emulator.linux import queueing
from moefabric.emulator.linux.bpf_assembler import Code, Jump, Label, Reg, Size
from moefabric.emulator.openflow_switch.datapath import map_layout
from moefabric.emulator.openflow_switch.datapath.map_layout import KeyOffset, MemoryLayout, StepKind

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
    PRIORITY = 32
    INTERFACE = 40
    GSO_SEGMENTS = 164


class Stack(IntEnum):
    """Offsets from the top of the program's stack.

    A slot of the flow cache holds the places from KEY to FOUND_BY, in the same order.
    """

    KEY = -map_layout.KEY_BYTES - 24  # the packet's key
    NUMBER = KEY + map_layout.KEY_BYTES  # the switch's number, and a zero at NUMBER + 4
    SELECT = NUMBER + 8  # `select` when the search began
    FOUND_BY = NUMBER + 16  # index of the mask under which a search found the flow
    MASKED_KEY = KEY - map_layout.KEY_BYTES
    FLOW = MASKED_KEY - map_layout.VALUE_BYTES  # a copy of the flow's value
    BEST_RANK = FLOW - 8
    ATTEMPTS = FLOW - 16
    IPV4_HEADER = FLOW - 40
    SAVED = FLOW - 48  # a register during an inner loop
    MEMORY = FLOW - 56  # address of the switch's memory
    TABLE = FLOW - 64  # map of the switch's flows
    BARRIER = FLOW - 72
    SLOT = FLOW - 80  # address of the packet's slot in the flow cache


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


def copy(to: Address, source: Address, length: int) -> Code:
    """Copy words of 8 bytes; overwrite R1."""
    for at in range(0, length, 8):
        yield bpf.load(Size.DOUBLE, Reg.R1, source.base, source.offset + at)
        yield bpf.store(Size.DOUBLE, to.base, to.offset + at, Reg.R1)


def clear_stack(place: int, length: int) -> Code:
    """Set bytes of the stack to zero."""
    for at in range(place, place + length, 8):
        yield bpf.store(Size.DOUBLE, Reg.R10, at, 0)


def network_order(value: int) -> int:
    """Return 16 bits of a constant in the byte order of a value that is loaded from a frame."""
    return int.from_bytes(value.to_bytes(2), sys.byteorder)


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


def load_barrier() -> Code:
    """Order earlier loads before later ones where the processor doesn't; overwrite R1."""
    if not bpf.IS_STRONGLY_ORDERED:
        yield bpf.store(Size.DOUBLE, Reg.R10, Stack.BARRIER, 0)
        yield bpf.move(Reg.R1, 0)
        yield bpf.barrier(Reg.R1, Stack.BARRIER)


def in_port(dst: Reg) -> Code:
    """Set `dst` to the port where the frame arrived, from the packet's key."""
    yield bpf.load(Size.WORD, dst, Reg.R10, Stack.KEY + KeyOffset.IN_PORT)
    yield bpf.big_endian(dst, 32)


BARE_BYTES: Final = 66
"""Bytes of a frame of TCP over IPv4 with time stamps and no payload."""
_STEP, _INDEX, _SLOT = Reg.R7, Reg.R8, Reg.R9
_ARGUMENT = Address(_STEP, 8)  # of a step


def execute_steps(layout: MemoryLayout, maps: MapDescriptors) -> Code:
    """Execute the steps for the packet's slot, whose bit is in R9, in order."""
    yield from set_address(_STEP, on_stack(Stack.FLOW + map_layout.VALUE.size))
    yield bpf.move(_INDEX, 0)
    yield Label("step")
    yield bpf.jump_if(Jump.GREATER_OR_EQUAL, _INDEX, map_layout.MAX_STEPS, "drop")
    yield bpf.load(Size.WORD, Reg.R1, _STEP)
    yield bpf.jump_if(Jump.EQUAL, Reg.R1, StepKind.END, "drop")  # all copies have left
    yield bpf.load(Size.WORD, Reg.R2, _STEP, 4)
    yield bpf.bit_and(Reg.R2, _SLOT)
    yield bpf.jump_if(Jump.EQUAL, Reg.R2, 0, "next step")
    for kind in StepKind:
        if kind is not StepKind.END:
            yield bpf.jump_if(Jump.EQUAL, Reg.R1, kind, kind.name)
    yield bpf.jump("drop")
    yield from _redirect(layout)
    yield from _copy(layout)
    yield from _flood(layout)
    yield from _punt(maps)
    yield from _set_mac()
    yield from _set_dscp()
    yield Label("next step")
    yield bpf.add(_STEP, map_layout.STEP.size)
    yield bpf.add(_INDEX, 1)
    yield bpf.jump("step")


def _interface(port: Reg, layout: MemoryLayout, otherwise: str) -> Code:
    """Set R1 to the index of a port's interface; overwrite `port`."""
    yield bpf.jump_if(Jump.GREATER, port, layout.ports, otherwise)
    yield bpf.multiply(port, 4)
    yield from memory_address(Reg.R1, layout.interface(0))
    yield bpf.add(Reg.R1, port)
    yield bpf.load(Size.WORD, Reg.R1, Reg.R1)
    yield bpf.jump_if(Jump.EQUAL, Reg.R1, 0, otherwise)


def _redirect(layout: MemoryLayout) -> Code:
    """Move the original frame to the egress (and traffic shaping) of a port's interface.

    A frame without payload passes the shaping at once: its priority is the handle of HTB. So TCP's
    acknowledgements, one for each frame of many packets, take nothing of a full link.
    """
    yield Label(StepKind.LAST.name)
    yield bpf.load(Size.WORD, Reg.R2, *_ARGUMENT)
    yield from in_port(Reg.R3)
    yield bpf.jump_if(Jump.EQUAL, Reg.R2, Reg.R3, "drop")
    yield from _interface(Reg.R2, layout, "drop")
    yield bpf.load(Size.WORD, Reg.R2, SKB, SkBuff.LENGTH)
    yield bpf.jump_if(Jump.GREATER, Reg.R2, BARE_BYTES, "redirect")
    yield bpf.store(Size.WORD, SKB, SkBuff.PRIORITY, queueing.HTB)
    yield Label("redirect")
    yield from call(bpf.REDIRECT, Reg.R1, 0)
    yield bpf.exit_program()


def _clone() -> Code:
    """Copy the frame to the egress of interface R1."""
    yield bpf.move(Reg.R2, Reg.R1)
    yield from call(bpf.CLONE_REDIRECT, SKB, Reg.R2, 0)


def _copy(layout: MemoryLayout) -> Code:
    """Copy the frame to one port."""
    yield Label(StepKind.BACK.name)
    yield from in_port(Reg.R2)
    yield bpf.jump("copy")
    yield Label(StepKind.OUTPUT.name)
    yield bpf.load(Size.WORD, Reg.R2, *_ARGUMENT)
    yield from in_port(Reg.R3)
    yield bpf.jump_if(Jump.EQUAL, Reg.R2, Reg.R3, "next step")
    yield Label("copy")
    yield from _interface(Reg.R2, layout, "next step")
    yield from _clone()
    yield bpf.jump("next step")


def _flood(layout: MemoryLayout) -> Code:
    """Copy the frame to every other port and end the program.

    Since the program ends here, the verifier follows this loop once and not at each step.
    """
    port = _INDEX
    yield Label(StepKind.FLOOD.name)
    yield bpf.move(port, 0)
    yield Label("port")
    yield bpf.add(port, 1)
    yield bpf.jump_if(Jump.GREATER, port, layout.ports, "drop")
    yield from in_port(Reg.R3)
    yield bpf.jump_if(Jump.EQUAL, port, Reg.R3, "port")
    yield bpf.move(Reg.R2, port)
    yield from _interface(Reg.R2, layout, "port")
    yield from _clone()
    yield bpf.jump("port")


def _punt(maps: MapDescriptors) -> Code:
    """Write the frame's first bytes and its origin to the ring that the agent reads."""
    yield Label(StepKind.PUNT.name)
    yield bpf.store(Size.DOUBLE, Reg.R10, Stack.SAVED, _INDEX)
    yield from switch_map(maps.ring)
    yield bpf.move(Reg.R1, Reg.R0)
    yield bpf.load(Size.WORD, Reg.R4, SKB, SkBuff.LENGTH)
    yield bpf.jump_if(
        Jump.GREATER,
        Reg.R4,
        map_layout.PUNT_BYTES - map_layout.PUNT.size,
        f"record {map_layout.LARGE_PUNT_BYTES}",
    )
    for size in (map_layout.PUNT_BYTES, map_layout.LARGE_PUNT_BYTES):
        yield from _write_record(size)
    yield Label("submit")
    yield from call(bpf.RING_SUBMIT, _INDEX, 0)
    yield Label("punted")
    yield bpf.load(Size.DOUBLE, _INDEX, Reg.R10, Stack.SAVED)
    yield bpf.jump("next step")


def _write_record(size: int) -> Code:
    """Write a record to ring R1; its size is constant because the verifier requires it."""
    record, room = _INDEX, size - map_layout.PUNT.size
    yield Label(f"record {size}")
    yield from call(bpf.RING_RESERVE, Reg.R1, size, 0)
    # If the ring is full, the controller misses the packet; other copies are still sent.
    yield bpf.jump_if(Jump.EQUAL, Reg.R0, 0, "punted")
    yield bpf.move(record, Reg.R0)
    yield from in_port(Reg.R1)
    yield bpf.store(Size.WORD, record, 0, Reg.R1)
    yield from frame_length(Reg.R4, Reg.R5)
    yield bpf.store(Size.WORD, record, 4, Reg.R4)
    for source, place in (
        (on_stack(Stack.FLOW + 8), 8),
        (_ARGUMENT, 12),
        (Address(SKB, SkBuff.VLAN_TCI), 16),
        (Address(SKB, SkBuff.VLAN_PROTOCOL), 20),
    ):
        yield bpf.load(Size.WORD, Reg.R1, *source)
        yield bpf.store(Size.WORD, record, place, Reg.R1)
    yield bpf.load(Size.WORD, Reg.R4, SKB, SkBuff.LENGTH)
    yield bpf.jump_if(Jump.EQUAL, Reg.R4, 0, "submit")
    yield bpf.jump_if(Jump.GREATER, Reg.R4, room, f"truncate {size}")
    yield bpf.jump(f"load {size}")
    yield Label(f"truncate {size}")
    yield bpf.move(Reg.R4, room)
    yield Label(f"load {size}")
    yield from call(bpf.SKB_LOAD_BYTES, SKB, 0, Address(record, map_layout.PUNT.size), Reg.R4)
    yield bpf.jump("submit")


def _set_mac() -> Code:
    """Set a MAC address, or restore the one that the frame arrived with."""
    for kind, source, at in (
        (StepKind.SET_ETH_DST, _ARGUMENT, 0),
        (StepKind.SET_ETH_SRC, _ARGUMENT, 6),
        (StepKind.RESET_ETH_DST, on_stack(Stack.KEY + KeyOffset.ETH_DST), 0),
        (StepKind.RESET_ETH_SRC, on_stack(Stack.KEY + KeyOffset.ETH_SRC), 6),
    ):
        yield Label(kind.name)
        yield from call(bpf.SKB_STORE_BYTES, SKB, at, source, 6, 0)
        yield bpf.jump("next step")


def _set_dscp() -> Code:
    """Set or restore the DSCP of an IPv4 packet, and update the header checksum."""
    header = Stack.IPV4_HEADER
    yield Label(StepKind.RESET_DSCP.name)
    yield bpf.load(Size.BYTE, Reg.R1, Reg.R10, Stack.KEY + KeyOffset.IP_DSCP)
    yield bpf.jump("dscp")
    yield Label(StepKind.SET_DSCP.name)
    yield bpf.load(Size.WORD, Reg.R1, *_ARGUMENT)
    yield Label("dscp")
    yield bpf.load(Size.HALF, Reg.R2, Reg.R10, Stack.KEY + KeyOffset.ETH_TYPE)
    yield bpf.jump_if(Jump.NOT_EQUAL, Reg.R2, network_order(IPV4), "next step")
    yield bpf.shift_left(Reg.R1, 2)
    yield bpf.store(Size.DOUBLE, Reg.R10, Stack.SAVED, Reg.R1)
    yield from load_frame(14, header, 20)
    yield bpf.jump_if(Jump.NEGATIVE, Reg.R0, 0, "next step")  # a truncated header has no DSCP
    yield bpf.load(Size.HALF, Reg.R3, Reg.R10, header)
    yield bpf.move(Reg.R4, Reg.R3)
    yield bpf.big_endian(Reg.R4, 16)
    yield bpf.bit_and(Reg.R4, 0xFF03)
    yield bpf.load(Size.DOUBLE, Reg.R1, Reg.R10, Stack.SAVED)
    yield bpf.bit_or(Reg.R4, Reg.R1)
    yield bpf.big_endian(Reg.R4, 16)
    yield bpf.store(Size.HALF, Reg.R10, header, Reg.R4)
    yield from call(bpf.L3_CHECKSUM_REPLACE, SKB, 14 + 10, Reg.R3, Reg.R4, 2)
    yield from call(bpf.SKB_STORE_BYTES, SKB, 14, on_stack(header), 2, 0)
    yield bpf.jump("next step")
