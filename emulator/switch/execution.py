"""The second half of a switch's program: through the steps of the flow that takes a frame."""

from emulator import bpf
from emulator.bpf import Jump, Label, Reg, Size
from emulator.switch.instructions import (
    HEADER,
    KEPT,
    SKB,
    SKB_LENGTH,
    SKB_VLAN_PROTOCOL,
    SKB_VLAN_TCI,
    Descriptors,
    K,
    Lines,
    V,
    frame_length,
    in_memory,
    in_port,
    network,
    of_switch,
    read,
    stack_address,
)
from emulator.switch.layout import (
    KEY_DSCP,
    KEY_ETH_DST,
    KEY_ETH_SRC,
    KEY_ETH_TYPE,
    LARGE_PUNT_BYTES,
    PUNT,
    PUNT_BYTES,
    STEP,
    STEPS,
    VALUE,
    Kind,
    Layout,
)
from emulator.switch.packet import IPV4

STEP_AT, INDEX, SLOT = Reg.R7, Reg.R8, Reg.R9
ARGUMENT = 8  # of a step


def step_lines(layout: Layout, maps: Descriptors) -> Lines:
    """Each step that is for the packet's slot (its bit is in R9), in order."""
    yield from stack_address(STEP_AT, V + VALUE.size)
    yield bpf.move(INDEX, 0)
    yield Label("step")
    yield bpf.jump_if(Jump.GREATER_OR_EQUAL, INDEX, STEPS, "drop")
    yield bpf.load(Size.WORD, Reg.R1, STEP_AT)
    yield bpf.jump_if(Jump.EQUAL, Reg.R1, Kind.END, "drop")  # every copy has left
    yield bpf.load(Size.WORD, Reg.R2, STEP_AT, 4)
    yield bpf.bit_and(Reg.R2, SLOT)
    yield bpf.jump_if(Jump.EQUAL, Reg.R2, 0, "next step")
    for kind in Kind:
        if kind is not Kind.END:
            yield bpf.jump_if(Jump.EQUAL, Reg.R1, kind, kind.name)
    yield bpf.jump("drop")
    yield from _last(layout)
    yield from _copies(layout)
    yield from _flood(layout)
    yield from _punt(layout, maps)
    yield from _ethernet()
    yield from _dscp()
    yield Label("next step")
    yield bpf.add(STEP_AT, STEP.size)
    yield bpf.add(INDEX, 1)
    yield bpf.jump("step")


def _interface(port: Reg, layout: Layout, otherwise: str) -> Lines:
    """R1 = the index of the interface behind a port; `port` is lost."""
    yield bpf.jump_if(Jump.GREATER, port, layout.ports, otherwise)
    yield bpf.multiply(port, 4)
    yield from in_memory(Reg.R1, layout.interface(0))
    yield bpf.add(Reg.R1, port)
    yield bpf.load(Size.WORD, Reg.R1, Reg.R1)
    yield bpf.jump_if(Jump.EQUAL, Reg.R1, 0, otherwise)


def _last(layout: Layout) -> Lines:
    """Out of a port without a copy: the frame is handed over to the egress of its interface, through its shaping."""
    yield Label(Kind.LAST.name)
    yield bpf.load(Size.WORD, Reg.R2, STEP_AT, ARGUMENT)
    yield from in_port(Reg.R3, layout)
    yield bpf.jump_if(Jump.EQUAL, Reg.R2, Reg.R3, "drop")
    yield from _interface(Reg.R2, layout, "drop")
    yield bpf.move(Reg.R2, 0)
    yield bpf.call(bpf.REDIRECT)
    yield bpf.leave()


def _clone() -> Lines:
    """A copy of the frame to the egress of interface R1."""
    yield bpf.move(Reg.R2, Reg.R1)
    yield bpf.move(Reg.R1, SKB)
    yield bpf.move(Reg.R3, 0)
    yield bpf.call(bpf.CLONE_REDIRECT)


def _copies(layout: Layout) -> Lines:
    yield Label(Kind.BACK.name)
    yield from in_port(Reg.R2, layout)
    yield bpf.jump("copy")
    yield Label(Kind.OUTPUT.name)
    yield bpf.load(Size.WORD, Reg.R2, STEP_AT, ARGUMENT)
    yield from in_port(Reg.R3, layout)
    yield bpf.jump_if(Jump.EQUAL, Reg.R2, Reg.R3, "next step")
    yield Label("copy")
    yield from _interface(Reg.R2, layout, "next step")
    yield from _clone()
    yield bpf.jump("next step")


def _flood(layout: Layout) -> Lines:
    """A copy out of every other port, and no more: the verifier follows this loop once instead of at each step."""
    port = INDEX
    yield Label(Kind.FLOOD.name)
    yield bpf.move(port, 0)
    yield Label("port")
    yield bpf.add(port, 1)
    yield bpf.jump_if(Jump.GREATER, port, layout.ports, "drop")
    yield from in_port(Reg.R3, layout)
    yield bpf.jump_if(Jump.EQUAL, port, Reg.R3, "port")
    yield bpf.move(Reg.R2, port)
    yield from _interface(Reg.R2, layout, "port")
    yield from _clone()
    yield bpf.jump("port")


def _punt(layout: Layout, maps: Descriptors) -> Lines:
    """The frame's first bytes, with where it came from, into the ring that the controller's agent reads."""
    yield Label(Kind.PUNT.name)
    yield bpf.store(Size.DOUBLE, Reg.R10, KEPT, INDEX)
    yield from of_switch(maps.rings)
    yield bpf.move(Reg.R1, Reg.R0)
    yield bpf.load(Size.WORD, Reg.R4, SKB, SKB_LENGTH)
    yield bpf.jump_if(Jump.GREATER, Reg.R4, PUNT_BYTES - PUNT.size, f"record {LARGE_PUNT_BYTES}")
    for size in (PUNT_BYTES, LARGE_PUNT_BYTES):
        yield from _record(layout, size)
    yield Label("submit")
    yield bpf.move(Reg.R1, INDEX)
    yield bpf.move(Reg.R2, 0)
    yield bpf.call(bpf.RING_SUBMIT)
    yield Label("punted")
    yield bpf.load(Size.DOUBLE, INDEX, Reg.R10, KEPT)
    yield bpf.jump("next step")


def _record(layout: Layout, size: int) -> Lines:
    """A record of that size, which the verifier wants to know, filled with what fits; the ring is R1. INDEX is its address."""
    record, room = INDEX, size - PUNT.size
    yield Label(f"record {size}")
    yield bpf.move(Reg.R2, size)
    yield bpf.move(Reg.R3, 0)
    yield bpf.call(bpf.RING_RESERVE)
    yield bpf.jump_if(Jump.EQUAL, Reg.R0, 0, "punted")  # full: the controller misses it, other copies go on
    yield bpf.move(record, Reg.R0)
    yield from in_port(Reg.R1, layout)
    yield bpf.store(Size.WORD, record, 0, Reg.R1)
    yield from frame_length(Reg.R4, Reg.R5)
    yield bpf.store(Size.WORD, record, 4, Reg.R4)
    for base, offset, place in (
        (Reg.R10, V + 8, 8),
        (STEP_AT, ARGUMENT, 12),
        (SKB, SKB_VLAN_TCI, 16),
        (SKB, SKB_VLAN_PROTOCOL, 20),
    ):
        yield bpf.load(Size.WORD, Reg.R1, base, offset)
        yield bpf.store(Size.WORD, record, place, Reg.R1)
    yield bpf.load(Size.WORD, Reg.R4, SKB, SKB_LENGTH)
    yield bpf.jump_if(Jump.EQUAL, Reg.R4, 0, "submit")
    yield bpf.jump_if(Jump.GREATER, Reg.R4, room, f"cut {size}")
    yield bpf.jump(f"load {size}")
    yield Label(f"cut {size}")
    yield bpf.move(Reg.R4, room)
    yield Label(f"load {size}")
    yield bpf.move(Reg.R1, SKB)
    yield bpf.move(Reg.R2, 0)
    yield bpf.move(Reg.R3, record)
    yield bpf.add(Reg.R3, PUNT.size)
    yield bpf.call(bpf.SKB_LOAD_BYTES)
    yield bpf.jump("submit")


def _ethernet() -> Lines:
    for kind, key, at in (
        (Kind.SET_ETH_DST, None, 0),
        (Kind.SET_ETH_SRC, None, 6),
        (Kind.RESET_ETH_DST, KEY_ETH_DST, 0),
        (Kind.RESET_ETH_SRC, KEY_ETH_SRC, 6),
    ):
        yield Label(kind.name)
        if key is None:
            yield bpf.move(Reg.R3, STEP_AT)
            yield bpf.add(Reg.R3, ARGUMENT)
        else:
            yield from stack_address(Reg.R3, K + key)
        yield from _write(at, 6)
        yield bpf.jump("next step")


def _write(at: int, length: int) -> Lines:
    """Bytes at R3 into the frame."""
    yield bpf.move(Reg.R1, SKB)
    yield bpf.move(Reg.R2, at)
    yield bpf.move(Reg.R4, length)
    yield bpf.move(Reg.R5, 0)
    yield bpf.call(bpf.SKB_STORE_BYTES)


def _dscp() -> Lines:
    """The DSCP of an IPv4 packet, its header's checksum first."""
    yield Label(Kind.RESET_DSCP.name)
    yield bpf.load(Size.BYTE, Reg.R1, Reg.R10, K + KEY_DSCP + 1)
    yield bpf.jump("dscp")
    yield Label(Kind.SET_DSCP.name)
    yield bpf.load(Size.WORD, Reg.R1, STEP_AT, ARGUMENT)
    yield Label("dscp")
    yield bpf.load(Size.HALF, Reg.R2, Reg.R10, K + KEY_ETH_TYPE)
    yield bpf.jump_if(Jump.NOT_EQUAL, Reg.R2, network(IPV4, 16), "next step")
    yield bpf.shift_left(Reg.R1, 2)
    yield bpf.store(Size.DOUBLE, Reg.R10, KEPT, Reg.R1)
    yield from read(14, HEADER, 20)  # a header that is cut has no DSCP to set
    yield bpf.jump_if(Jump.NEGATIVE, Reg.R0, 0, "next step")
    yield bpf.load(Size.HALF, Reg.R3, Reg.R10, HEADER)
    yield bpf.move(Reg.R4, Reg.R3)
    yield bpf.big_endian(Reg.R4, 16)
    yield bpf.bit_and(Reg.R4, 0xFF03)
    yield bpf.load(Size.DOUBLE, Reg.R1, Reg.R10, KEPT)
    yield bpf.bit_or(Reg.R4, Reg.R1)
    yield bpf.big_endian(Reg.R4, 16)
    yield bpf.store(Size.HALF, Reg.R10, HEADER, Reg.R4)
    yield bpf.move(Reg.R1, SKB)
    yield bpf.move(Reg.R2, 14 + 10)
    yield bpf.move(Reg.R5, 2)
    yield bpf.call(bpf.L3_CHECKSUM_REPLACE)
    yield from stack_address(Reg.R3, HEADER)
    yield from _write(14, 2)
    yield bpf.jump("next step")
