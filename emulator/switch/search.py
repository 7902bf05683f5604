"""The first half of a switch's program: from a frame to the flow that takes it, counted.

A change of the table shows as another `select`. The program reads that first, copies what it found to its own stack, and reads it
again: while it is the same, nothing of that generation has been touched (the owner writes only to the other one); if not, it
looks again. Loads keep that order by themselves on x86; elsewhere barriers see to it.
"""

from collections.abc import Iterator

from emulator import bpf
from emulator.bpf import Jump, Label, Reg, Size
from emulator.switch.instructions import (
    BEST,
    EPOCH,
    HEADER,
    MEMORY,
    NUMBER,
    SKB,
    SKB_GSO_SEGMENTS,
    SKB_TC_CLASSID,
    TABLE,
    TRIED,
    Descriptors,
    K,
    Lines,
    M,
    V,
    frame_length,
    in_memory,
    in_order,
    in_port,
    network,
    of_switch,
    read,
    stack_address,
)
from emulator.switch.layout import (
    KEY,
    KEY_DSCP,
    KEY_DST,
    KEY_ETH_DST,
    KEY_ETH_TYPE,
    KEY_IN_PORT,
    KEY_PROTO,
    KEY_SRC,
    KEY_TABLE,
    KEY_TP_SRC,
    MASK,
    MASKS,
    VALUE_BYTES,
    Layout,
)
from emulator.switch.packet import ARP, IPV4, IPV6, WITH_PORTS
from emulator.switch.steps import FINAL_SHIFT, IPV6_PRIMES, MAC_PRIMES, MIX, PORTS_PRIME, PRIMES

TRIES = 4  # a packet that meets so many changes of the table, each within its own microsecond, is dropped


def switch_lines(layout: Layout, maps: Descriptors) -> Lines:
    """The switch's own maps: its number is above the port's in the class id."""
    yield bpf.load(Size.WORD, Reg.R1, SKB, SKB_TC_CLASSID)
    yield bpf.shift_right(Reg.R1, layout.port_bits)
    yield bpf.store(Size.DOUBLE, Reg.R10, NUMBER, 0)
    yield bpf.store(Size.WORD, Reg.R10, NUMBER, Reg.R1)
    yield from of_switch(maps.tables)
    yield bpf.store(Size.DOUBLE, Reg.R10, TABLE, Reg.R0)
    yield from of_switch(maps.memories)
    yield bpf.move(Reg.R1, Reg.R0)
    yield from stack_address(Reg.R2, NUMBER + 4)  # its one element
    yield bpf.call(bpf.MAP_LOOKUP)
    yield bpf.jump_if(Jump.EQUAL, Reg.R0, 0, "drop")
    yield bpf.store(Size.DOUBLE, Reg.R10, MEMORY, Reg.R0)


def key_lines(layout: Layout) -> Lines:
    """The packet's fields at K."""
    for place in range(K, K + KEY.size, 8):
        yield bpf.store(Size.DOUBLE, Reg.R10, place, 0)
    yield bpf.store(Size.WORD, Reg.R10, K + KEY_TABLE, -1)
    yield from in_port(Reg.R1, layout)
    yield bpf.big_endian(Reg.R1, 32)
    yield bpf.store(Size.WORD, Reg.R10, K + KEY_IN_PORT, Reg.R1)
    yield from read(0, K + KEY_ETH_DST, 14)
    yield bpf.jump_if(Jump.NEGATIVE, Reg.R0, 0, "drop")
    yield bpf.load(Size.HALF, Reg.R1, Reg.R10, K + KEY_ETH_TYPE)
    yield bpf.jump_if(Jump.EQUAL, Reg.R1, network(ARP, 16), "arp")
    yield bpf.jump_if(Jump.NOT_EQUAL, Reg.R1, network(IPV4, 16), "keyed")
    yield from _ipv4_key()
    yield bpf.jump("keyed")
    yield Label("arp")
    yield from read(14 + 24, K + KEY_DST, 4)  # the last field first: a frame too short for it has none
    yield bpf.jump_if(Jump.NEGATIVE, Reg.R0, 0, "keyed")
    yield from read(14 + 14, K + KEY_SRC, 4)
    yield from read(14 + 6, K + KEY_PROTO, 2)
    yield Label("keyed")


def _ipv4_key() -> Lines:
    yield from read(14, HEADER, 20)
    yield bpf.jump_if(Jump.NEGATIVE, Reg.R0, 0, "keyed")
    yield bpf.load(Size.BYTE, Reg.R1, Reg.R10, HEADER + 1)
    yield bpf.shift_right(Reg.R1, 2)
    yield bpf.store(Size.BYTE, Reg.R10, K + KEY_DSCP + 1, Reg.R1)
    yield bpf.load(Size.BYTE, Reg.R7, Reg.R10, HEADER + 9)
    yield bpf.store(Size.BYTE, Reg.R10, K + KEY_PROTO + 1, Reg.R7)
    for header, key in ((12, KEY_SRC), (16, KEY_DST)):
        yield bpf.load(Size.WORD, Reg.R1, Reg.R10, HEADER + header)
        yield bpf.store(Size.WORD, Reg.R10, K + key, Reg.R1)
    yield bpf.load(Size.HALF, Reg.R1, Reg.R10, HEADER + 6)
    yield bpf.bit_and(Reg.R1, network(0x1FFF, 16))
    yield bpf.jump_if(Jump.NOT_EQUAL, Reg.R1, 0, "keyed")  # a later fragment has no ports
    for protocol in WITH_PORTS:
        yield bpf.jump_if(Jump.EQUAL, Reg.R7, protocol, "ports")
    yield bpf.jump("keyed")
    yield Label("ports")
    yield bpf.load(Size.BYTE, Reg.R7, Reg.R10, HEADER)
    yield bpf.bit_and(Reg.R7, 0x0F)
    yield bpf.shift_left(Reg.R7, 2)
    yield bpf.add(Reg.R7, 14)
    yield from read(Reg.R7, K + KEY_TP_SRC, 4)


def search_lines(layout: Layout, *, barriers: bool = False) -> Lines:
    """The flow of the highest rank, copied to V. With `barriers` also where the processor needs none."""
    mask, best, index = Reg.R7, Reg.R8, Reg.R9
    yield Label("search")
    yield from in_memory(Reg.R1, layout.SELECT)
    yield bpf.load(Size.WORD, Reg.R1, Reg.R1)
    yield bpf.store(Size.DOUBLE, Reg.R10, EPOCH, Reg.R1)
    yield from in_order(anyway=barriers)
    yield bpf.load(Size.DOUBLE, Reg.R1, Reg.R10, EPOCH)
    yield bpf.bit_and(Reg.R1, 1)
    yield bpf.multiply(Reg.R1, layout.generation_bytes)
    yield from in_memory(mask, layout.masks(0))
    yield bpf.add(mask, Reg.R1)
    yield bpf.store(Size.DOUBLE, Reg.R10, BEST, 0)
    yield bpf.move(best, 0)
    yield bpf.move(index, 0)
    yield Label("mask")
    yield bpf.jump_if(Jump.GREATER_OR_EQUAL, index, MASKS, "searched")
    yield bpf.load(Size.DOUBLE, Reg.R1, mask, KEY.size)
    yield bpf.load(Size.DOUBLE, Reg.R2, Reg.R10, BEST)
    yield bpf.jump_if(Jump.GREATER_OR_EQUAL, Reg.R2, Reg.R1, "searched")  # nothing better follows
    for part in range(0, KEY.size, 8):
        yield bpf.load(Size.DOUBLE, Reg.R1, mask, part)
        yield bpf.load(Size.DOUBLE, Reg.R2, Reg.R10, K + part)
        yield bpf.bit_and(Reg.R1, Reg.R2)
        yield bpf.store(Size.DOUBLE, Reg.R10, M + part, Reg.R1)
    yield bpf.load(Size.DOUBLE, Reg.R1, Reg.R10, TABLE)
    yield from stack_address(Reg.R2, M)
    yield bpf.call(bpf.MAP_LOOKUP)
    yield bpf.jump_if(Jump.EQUAL, Reg.R0, 0, "next mask")
    yield bpf.load(Size.DOUBLE, Reg.R1, Reg.R0)
    yield bpf.load(Size.DOUBLE, Reg.R2, Reg.R10, BEST)
    yield bpf.jump_if(Jump.GREATER_OR_EQUAL, Reg.R2, Reg.R1, "next mask")
    yield bpf.store(Size.DOUBLE, Reg.R10, BEST, Reg.R1)
    yield bpf.move(best, Reg.R0)
    yield Label("next mask")
    yield bpf.add(mask, MASK.size)
    yield bpf.add(index, 1)
    yield bpf.jump("mask")
    yield Label("searched")
    yield from _found(layout, best, barriers=barriers)


def _found(layout: Layout, best: Reg, *, barriers: bool) -> Lines:
    """Keep what was found, if the table is still the one it was found in."""
    yield bpf.jump_if(Jump.EQUAL, best, 0, "copied")
    for part in range(0, VALUE_BYTES, 8):
        yield bpf.load(Size.DOUBLE, Reg.R1, best, part)
        yield bpf.store(Size.DOUBLE, Reg.R10, V + part, Reg.R1)
    yield Label("copied")
    yield from in_order(anyway=barriers)
    yield from in_memory(Reg.R1, layout.SELECT)
    yield bpf.load(Size.WORD, Reg.R1, Reg.R1)
    yield bpf.load(Size.DOUBLE, Reg.R2, Reg.R10, EPOCH)
    yield bpf.jump_if(Jump.EQUAL, Reg.R1, Reg.R2, "settled")
    yield bpf.load(Size.DOUBLE, Reg.R1, Reg.R10, TRIED)
    yield bpf.add(Reg.R1, 1)
    yield bpf.store(Size.DOUBLE, Reg.R10, TRIED, Reg.R1)
    yield bpf.jump_if(Jump.GREATER_OR_EQUAL, Reg.R1, TRIES, "exhausted")
    yield bpf.jump("search")
    yield Label("settled")
    yield bpf.jump_if(Jump.EQUAL, best, 0, "drop")  # no flow takes it


def count_lines(layout: Layout) -> Lines:
    yield bpf.load(Size.WORD, Reg.R1, Reg.R10, V + 8)
    yield bpf.jump_if(Jump.GREATER_OR_EQUAL, Reg.R1, layout.places, "drop")
    yield bpf.multiply(Reg.R1, 16)
    yield from in_memory(Reg.R3, layout.counter(0))
    yield bpf.add(Reg.R3, Reg.R1)
    yield bpf.load(Size.WORD, Reg.R4, SKB, SKB_GSO_SEGMENTS)
    yield bpf.jump_if(Jump.NOT_EQUAL, Reg.R4, 0, "segments")
    yield bpf.move(Reg.R4, 1)
    yield Label("segments")
    yield bpf.atomic_add(Reg.R3, 0, Reg.R4)
    yield from frame_length(Reg.R4, Reg.R5)
    yield bpf.atomic_add(Reg.R3, 8, Reg.R4)


def slot_lines() -> Lines:
    """R9 = the bit of the packet's slot; where slots don't differ, any will do (`steps.slot`, in instructions)."""
    yield bpf.move(Reg.R9, 1)
    yield bpf.load(Size.WORD, Reg.R1, Reg.R10, V + 12)
    yield bpf.jump_if(Jump.EQUAL, Reg.R1, 0, "slotted")
    for place in range(M, M + 32, 8):
        yield bpf.store(Size.DOUBLE, Reg.R10, place, 0)
    yield bpf.load(Size.HALF, Reg.R1, Reg.R10, K + KEY_ETH_TYPE)
    yield bpf.jump_if(Jump.NOT_EQUAL, Reg.R1, network(IPV6, 16), "no IPv6")
    yield from read(14 + 8, M, 32)
    yield Label("no IPv6")
    yield bpf.move(Reg.R2, 0)
    for size, place, bits, prime in _mixed():
        yield bpf.load(size, Reg.R1, Reg.R10, place)
        yield bpf.big_endian(Reg.R1, bits)
        yield bpf.multiply(Reg.R1, prime)
        yield bpf.add(Reg.R2, Reg.R1)
    yield bpf.constant(Reg.R1, MIX)
    yield bpf.multiply(Reg.R2, Reg.R1)
    yield bpf.shift_right(Reg.R2, FINAL_SHIFT)
    yield bpf.shift_left(Reg.R9, Reg.R2)
    yield Label("slotted")


def _mixed() -> Iterator[tuple[Size, int, int, int]]:
    """What a packet's slot is made of: size, place on the stack, bits, and what it is multiplied by."""
    yield Size.WORD, K + KEY_SRC, 32, PRIMES["ipv4_src"]
    yield Size.WORD, K + KEY_DST, 32, PRIMES["ipv4_dst"]
    yield Size.HALF, K + KEY_PROTO, 16, PRIMES["ip_proto"]
    yield Size.WORD, K + KEY_TP_SRC, 32, PORTS_PRIME
    macs = ((Size.WORD, 0, 32), (Size.HALF, 4, 16), (Size.HALF, 6, 16), (Size.WORD, 8, 32))
    for (size, place, bits), prime in zip(macs, MAC_PRIMES, strict=True):
        yield size, K + KEY_ETH_DST + place, bits, prime
    for place, prime in enumerate(IPV6_PRIMES):
        yield Size.WORD, M + 4 * place, 32, prime
