"""The tc-BPF program of a switch: finds the flow of each incoming frame and executes its steps.

One program serves all ports of all switches, so that the kernel verifies it once. A map tells the
numbers of switch and port by the index of the interface where a frame arrives.

Each change of the table increments `select`. The program reads `select`, copies the flow that it
finds to its stack, and reads `select` again. If `select` has not changed, the copy is consistent,
because the owner writes to the inactive generation only; otherwise the program searches again. x86
keeps the order of these loads; barriers keep it on other processors.

The flow cache holds the mask by which the program found the flow of an earlier packet.

The result of a search depends on the packet's key and on the table alone, and `select` numbers the
changes of the table. A slot holds a key, the switch's number and `select` at the time, and the mask
of the flow that was found. Until the table changes, a packet with this key is looked up under that
mask only, however many masks and priorities the table has. A slot fills a cache line.

Each key has one slot, which keys of other packets may take over. Each processor has slots of its
own: it runs the program for one packet after the other, so that no slot is read while it changes.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from moefabric.core.openflow.match import ARP, IPV4, IPV6, WITH_PORTS
from moefabric.emulator.linux import bpf_assembler as bpf
from moefabric.emulator.linux.bpf_assembler import Code, Jump, Label, Reg, Size
from moefabric.emulator.openflow_switch.datapath import emissions, map_layout
from moefabric.emulator.openflow_switch.datapath.map_layout import KeyOffset, MemoryLayout
from moefabric.emulator.openflow_switch.datapath.program_parts import (
    SKB,
    Address,
    MapDescriptors,
    SkBuff,
    Stack,
    call,
    clear_stack,
    copy,
    execute_steps,
    frame_length,
    load_barrier,
    load_frame,
    memory_address,
    network_order,
    on_stack,
    switch_map,
)

CACHE_SLOT_BYTES: Final = -Stack.KEY
PLACE: Final = struct.Struct("=II")
"""Numbers of switch and port."""
_MASK: Final = Stack.FOUND_BY - Stack.KEY
"""Offset of the index of the mask in a slot; what comes before it identifies the search."""
_CACHE_PRIMES: Final = (0x01000193, 0x2545F491, 0x3C6EF35F, 0x19D699A5, 0x5BD1E995, 0x27D4EB2F)
"""Multipliers of a key's words of 8 bytes and of the switch's number, and MIX of their sum."""
_PORT: Final = Reg.R7
ATTEMPTS = 4
"""Number of searches, each interrupted by a change of the table, before a packet is dropped."""


class ProgramMaps(NamedTuple):
    """Descriptors of the maps of a program, besides those of its switches.

    Attributes:
        places: `PLACE` by index of the interface.
        cache: The flow cache; all switches share its slots.
        slot_bits: Binary logarithm of the number of slots.
    """

    places: int
    cache: int
    slot_bits: int


def switch_program(layout: MemoryLayout, maps: MapDescriptors, shared: ProgramMaps) -> Code:
    """Return the program of all switches.

    Args:
        layout: The layout of the switches' memory.
        maps: Descriptors of the maps of switches.
        shared: Maps that all switches share.
    """
    yield bpf.move(SKB, Reg.R1)
    yield from _find_maps(maps, shared.places)
    yield from _build_key()
    yield bpf.store(Size.DOUBLE, Reg.R10, Stack.ATTEMPTS, 0)
    yield from _find_cache_slot(shared)
    yield from _search(layout)
    yield from _remember_mask()
    yield from _count(layout)
    yield from _select_slot()
    yield from execute_steps(layout, maps)
    yield Label("drop")
    yield bpf.move(Reg.R0, bpf.TC_ACT_SHOT)
    yield bpf.exit_program()


def _find_maps(maps: MapDescriptors, places: int) -> Code:
    """Find the switch's maps, and set the port; drop frames of interfaces that are no port."""
    yield bpf.load(Size.WORD, Reg.R1, SKB, SkBuff.INTERFACE)
    yield bpf.store(Size.DOUBLE, Reg.R10, Stack.NUMBER, 0)
    yield bpf.store(Size.WORD, Reg.R10, Stack.NUMBER, Reg.R1)
    yield from switch_map(places)
    yield bpf.load(Size.WORD, Reg.R1, Reg.R0)
    yield bpf.load(Size.WORD, _PORT, Reg.R0, 4)
    yield bpf.store(Size.WORD, Reg.R10, Stack.NUMBER, Reg.R1)
    yield from switch_map(maps.table)
    yield bpf.store(Size.DOUBLE, Reg.R10, Stack.TABLE, Reg.R0)
    yield from switch_map(maps.memory)
    yield from call(bpf.MAP_LOOKUP, Reg.R0, on_stack(Stack.NUMBER + 4))  # its only element, 0
    yield bpf.jump_if(Jump.EQUAL, Reg.R0, 0, "drop")
    yield bpf.store(Size.DOUBLE, Reg.R10, Stack.MEMORY, Reg.R0)


def _build_key() -> Code:
    """Write the packet's fields to Stack.KEY."""
    key = Stack.KEY
    yield from clear_stack(key, map_layout.KEY_BYTES)
    yield bpf.store(Size.WORD, Reg.R10, key + KeyOffset.LAST_WORD, -1)
    yield bpf.big_endian(_PORT, 32)
    yield bpf.store(Size.WORD, Reg.R10, key + KeyOffset.IN_PORT, _PORT)
    yield from load_frame(0, key + KeyOffset.ETH_DST, 14)
    yield bpf.jump_if(Jump.NEGATIVE, Reg.R0, 0, "drop")
    yield bpf.load(Size.HALF, Reg.R1, Reg.R10, key + KeyOffset.ETH_TYPE)
    yield bpf.jump_if(Jump.EQUAL, Reg.R1, network_order(ARP), "arp")
    yield bpf.jump_if(Jump.NOT_EQUAL, Reg.R1, network_order(IPV4), "keyed")
    yield from _build_ipv4_key()
    yield bpf.jump("keyed")
    yield Label("arp")
    # Load the last field first: if the frame is too short, all ARP fields stay zero.
    yield from load_frame(14 + 24, key + KeyOffset.ARP_TPA, 4)
    yield bpf.jump_if(Jump.NEGATIVE, Reg.R0, 0, "keyed")
    yield from load_frame(14 + 14, key + KeyOffset.ARP_SPA, 4)
    yield from load_frame(14 + 6, key + KeyOffset.ARP_OP, 2)
    yield Label("keyed")


def _build_ipv4_key() -> Code:
    key, header = Stack.KEY, Stack.IPV4_HEADER
    yield from load_frame(14, header, 20)
    yield bpf.jump_if(Jump.NEGATIVE, Reg.R0, 0, "keyed")
    yield bpf.load(Size.BYTE, Reg.R1, Reg.R10, header + 1)
    yield bpf.shift_right(Reg.R1, 2)
    yield bpf.store(Size.BYTE, Reg.R10, key + KeyOffset.IP_DSCP, Reg.R1)
    yield bpf.load(Size.BYTE, Reg.R7, Reg.R10, header + 9)
    yield bpf.store(Size.BYTE, Reg.R10, key + KeyOffset.IP_PROTO, Reg.R7)
    for offset, place in ((12, KeyOffset.IPV4_SRC), (16, KeyOffset.IPV4_DST)):
        yield bpf.load(Size.WORD, Reg.R1, Reg.R10, header + offset)
        yield bpf.store(Size.WORD, Reg.R10, key + place, Reg.R1)
    yield bpf.load(Size.HALF, Reg.R1, Reg.R10, header + 6)
    yield bpf.bit_and(Reg.R1, network_order(0x1FFF))
    yield bpf.jump_if(Jump.NOT_EQUAL, Reg.R1, 0, "keyed")  # a later fragment has no ports
    for protocol in WITH_PORTS:
        yield bpf.jump_if(Jump.EQUAL, Reg.R7, protocol, "ports")
    yield bpf.jump("keyed")
    yield Label("ports")
    yield bpf.load(Size.BYTE, Reg.R7, Reg.R10, header)
    yield bpf.bit_and(Reg.R7, 0x0F)
    yield bpf.shift_left(Reg.R7, 2)
    yield bpf.add(Reg.R7, 14)
    yield from load_frame(Reg.R7, key + KeyOffset.TP_SRC, 4)


def _search(layout: MemoryLayout) -> Code:
    """Copy the matching flow of the highest rank to Stack.FLOW."""
    mask, best, index = Reg.R7, Reg.R8, Reg.R9
    yield Label("search")
    yield from memory_address(Reg.R1, layout.SELECT)
    yield bpf.load(Size.WORD, Reg.R1, Reg.R1)
    yield bpf.store(Size.DOUBLE, Reg.R10, Stack.SELECT, Reg.R1)
    yield from load_barrier()
    yield bpf.load(Size.DOUBLE, Reg.R1, Reg.R10, Stack.SELECT)
    yield bpf.bit_and(Reg.R1, 1)
    yield bpf.multiply(Reg.R1, layout.generation_bytes)
    yield from memory_address(mask, layout.masks(0))
    yield bpf.add(mask, Reg.R1)
    yield from _load_cached_mask(index, otherwise="search all masks")
    yield bpf.store(Size.DOUBLE, Reg.R10, Stack.FOUND_BY, index)
    yield bpf.multiply(index, map_layout.MASK.size)
    yield bpf.add(index, mask)
    yield from _look_up(index)
    yield bpf.move(best, Reg.R0)
    yield bpf.jump_if(Jump.NOT_EQUAL, best, 0, "searched")
    yield Label("search all masks")
    yield from _search_all_masks(mask, best, index)
    yield Label("searched")
    yield from _copy_flow(layout, best)


def _find_cache_slot(shared: ProgramMaps) -> Code:
    """Store the address of the slot of a packet, whose key and switch are on the stack."""
    yield bpf.move(Reg.R2, 0)
    for part, prime in enumerate(_CACHE_PRIMES):
        yield bpf.load(Size.DOUBLE, Reg.R1, Reg.R10, Stack.KEY + 8 * part)
        yield bpf.multiply(Reg.R1, prime)
        yield bpf.add(Reg.R2, Reg.R1)
    yield bpf.constant(Reg.R1, emissions.MIX)
    yield bpf.multiply(Reg.R2, Reg.R1)
    yield bpf.shift_right(Reg.R2, 64 - shared.slot_bits)
    yield bpf.store(Size.WORD, Reg.R10, Stack.SLOT, Reg.R2)
    yield bpf.map_reference(Reg.R1, shared.cache)
    yield from call(bpf.MAP_LOOKUP, Reg.R1, on_stack(Stack.SLOT))
    yield bpf.jump_if(Jump.EQUAL, Reg.R0, 0, "drop")
    yield bpf.store(Size.DOUBLE, Reg.R10, Stack.SLOT, Reg.R0)


def _load_cached_mask(index: Reg, otherwise: str) -> Code:
    """Set `index` to the mask in the packet's slot; jump if the slot is of another search."""
    yield bpf.load(Size.DOUBLE, Reg.R0, Reg.R10, Stack.SLOT)
    for part in range(0, _MASK, 8):
        yield bpf.load(Size.DOUBLE, Reg.R1, Reg.R0, part)
        yield bpf.load(Size.DOUBLE, Reg.R2, Reg.R10, Stack.KEY + part)
        yield bpf.jump_if(Jump.NOT_EQUAL, Reg.R1, Reg.R2, otherwise)
    yield bpf.load(Size.DOUBLE, index, Reg.R0, _MASK)
    yield bpf.jump_if(Jump.GREATER_OR_EQUAL, index, map_layout.MAX_MASKS, otherwise)


def _remember_mask() -> Code:
    """Put the mask in Stack.FOUND_BY, with its key, switch and `select`, into the packet's slot."""
    yield bpf.load(Size.DOUBLE, Reg.R2, Reg.R10, Stack.SLOT)
    yield from copy(Address(Reg.R2, 0), on_stack(Stack.KEY), CACHE_SLOT_BYTES)


def _look_up(mask: Reg) -> Code:
    """Set R0 to the flow that takes the packet among those of a mask, or to 0."""
    for part in range(0, map_layout.KEY_BYTES, 8):
        yield bpf.load(Size.DOUBLE, Reg.R1, mask, part)
        yield bpf.load(Size.DOUBLE, Reg.R2, Reg.R10, Stack.KEY + part)
        yield bpf.bit_and(Reg.R1, Reg.R2)
        yield bpf.store(Size.DOUBLE, Reg.R10, Stack.MASKED_KEY + part, Reg.R1)
    yield bpf.load(Size.DOUBLE, Reg.R1, Reg.R10, Stack.TABLE)
    yield from call(bpf.MAP_LOOKUP, Reg.R1, on_stack(Stack.MASKED_KEY))


def _search_all_masks(mask: Reg, best: Reg, index: Reg) -> Code:
    """Set `best` to the flow of the highest rank, or to 0, and Stack.FOUND_BY to its mask."""
    yield bpf.store(Size.DOUBLE, Reg.R10, Stack.BEST_RANK, 0)
    yield bpf.move(best, 0)
    yield bpf.move(index, 0)
    yield Label("mask")
    yield bpf.jump_if(Jump.GREATER_OR_EQUAL, index, map_layout.MAX_MASKS, "searched")
    yield bpf.load(Size.DOUBLE, Reg.R1, mask, map_layout.KEY_BYTES)
    yield bpf.load(Size.DOUBLE, Reg.R2, Reg.R10, Stack.BEST_RANK)
    yield bpf.jump_if(Jump.GREATER_OR_EQUAL, Reg.R2, Reg.R1, "searched")  # no better rank follows
    yield from _look_up(mask)
    yield bpf.jump_if(Jump.EQUAL, Reg.R0, 0, "next mask")
    yield bpf.load(Size.DOUBLE, Reg.R1, Reg.R0)
    yield bpf.load(Size.DOUBLE, Reg.R2, Reg.R10, Stack.BEST_RANK)
    yield bpf.jump_if(Jump.GREATER_OR_EQUAL, Reg.R2, Reg.R1, "next mask")
    yield bpf.store(Size.DOUBLE, Reg.R10, Stack.BEST_RANK, Reg.R1)
    yield bpf.store(Size.DOUBLE, Reg.R10, Stack.FOUND_BY, index)
    yield bpf.move(best, Reg.R0)
    yield Label("next mask")
    yield bpf.add(mask, map_layout.MASK.size)
    yield bpf.add(index, 1)
    yield bpf.jump("mask")


def _copy_flow(layout: MemoryLayout, best: Reg) -> Code:
    """Copy the flow, and search again if the table has changed meanwhile."""
    yield bpf.jump_if(Jump.EQUAL, best, 0, "copied")
    yield from copy(on_stack(Stack.FLOW), Address(best, 0), map_layout.VALUE_BYTES)
    yield Label("copied")
    yield from load_barrier()
    yield from memory_address(Reg.R1, layout.SELECT)
    yield bpf.load(Size.WORD, Reg.R1, Reg.R1)
    yield bpf.load(Size.DOUBLE, Reg.R2, Reg.R10, Stack.SELECT)
    yield bpf.jump_if(Jump.EQUAL, Reg.R1, Reg.R2, "unchanged")
    yield bpf.load(Size.DOUBLE, Reg.R1, Reg.R10, Stack.ATTEMPTS)
    yield bpf.add(Reg.R1, 1)
    yield bpf.store(Size.DOUBLE, Reg.R10, Stack.ATTEMPTS, Reg.R1)
    yield bpf.jump_if(Jump.GREATER_OR_EQUAL, Reg.R1, ATTEMPTS, "drop")
    yield bpf.jump("search")
    yield Label("unchanged")
    yield bpf.jump_if(Jump.EQUAL, best, 0, "drop")  # no flow matches the packet


def _count(layout: MemoryLayout) -> Code:
    """Add the frame to the flow's counters."""
    yield bpf.load(Size.WORD, Reg.R1, Reg.R10, Stack.FLOW + 8)
    yield bpf.jump_if(Jump.GREATER_OR_EQUAL, Reg.R1, layout.counters, "drop")
    yield bpf.multiply(Reg.R1, 16)
    yield from memory_address(Reg.R3, layout.counter(0))
    yield bpf.add(Reg.R3, Reg.R1)
    yield bpf.load(Size.WORD, Reg.R4, SKB, SkBuff.GSO_SEGMENTS)
    yield bpf.jump_if(Jump.NOT_EQUAL, Reg.R4, 0, "segments")
    yield bpf.move(Reg.R4, 1)
    yield Label("segments")
    yield bpf.atomic_add(Reg.R3, 0, Reg.R4)
    yield from frame_length(Reg.R4, Reg.R5)
    yield bpf.atomic_add(Reg.R3, 8, Reg.R4)


def _select_slot() -> Code:
    """Set R9 to the bit of the packet's slot (`emissions.select_slot`) if the steps use slots."""
    yield bpf.move(Reg.R9, 1)
    yield bpf.load(Size.WORD, Reg.R1, Reg.R10, Stack.FLOW + 12)
    yield bpf.jump_if(Jump.EQUAL, Reg.R1, 0, "slotted")
    yield from clear_stack(Stack.MASKED_KEY, 32)
    yield bpf.load(Size.HALF, Reg.R1, Reg.R10, Stack.KEY + KeyOffset.ETH_TYPE)
    yield bpf.jump_if(Jump.NOT_EQUAL, Reg.R1, network_order(IPV6), "no IPv6")
    yield from load_frame(14 + 8, Stack.MASKED_KEY, 32)
    yield Label("no IPv6")
    yield bpf.move(Reg.R2, 0)
    for size, place, prime in _hashed_words():
        yield bpf.load(size, Reg.R1, Reg.R10, place)
        yield bpf.big_endian(Reg.R1, 32 if size is Size.WORD else 16)
        yield bpf.multiply(Reg.R1, prime)
        yield bpf.add(Reg.R2, Reg.R1)
    yield bpf.constant(Reg.R1, emissions.MIX)
    yield bpf.multiply(Reg.R2, Reg.R1)
    yield bpf.shift_right(Reg.R2, emissions.FINAL_SHIFT)
    yield bpf.shift_left(Reg.R9, Reg.R2)
    yield Label("slotted")


def _hashed_words() -> Iterator[tuple[Size, int, int]]:
    """Yield the words that decide a packet's slot: size, place on the stack, multiplier."""
    key = Stack.KEY
    yield Size.WORD, key + KeyOffset.IPV4_SRC, emissions.PRIMES["ipv4_src"]
    yield Size.WORD, key + KeyOffset.IPV4_DST, emissions.PRIMES["ipv4_dst"]
    yield Size.HALF, key + KeyOffset.ARP_OP, emissions.PRIMES["ip_proto"]
    yield Size.WORD, key + KeyOffset.TP_SRC, emissions.PORTS_PRIME
    macs = ((Size.WORD, 0), (Size.HALF, 4), (Size.HALF, 6), (Size.WORD, 8))
    for (size, place), prime in zip(macs, emissions.MAC_PRIMES, strict=True):
        yield size, key + KeyOffset.ETH_DST + place, prime
    for place, prime in enumerate(emissions.IPV6_PRIMES):
        yield Size.WORD, Stack.MASKED_KEY + 4 * place, prime
