"""The flow cache: it holds the mask by which the program found the flow of an earlier packet.

The result of a search depends on the packet's key and on the table alone, and `select` numbers the
changes of the table. A slot holds a key, the switch's number and `select` at the time, and the mask
of the flow that was found. Until the table changes, a packet with this key is looked up under that
mask only, however many masks and priorities the table has.

Each key has one slot, which keys of other packets may take over. Each processor has slots of its
own: it runs the program for one packet after the other, so that no slot is read while it changes.
"""

import struct
from typing import Final

from moefabric.emulator.linux import bpf_assembler as bpf
from moefabric.emulator.linux.bpf_assembler import Jump, Reg, Size
from moefabric.emulator.openflow_switch.datapath import map_layout
from moefabric.emulator.openflow_switch.datapath.program_context import Code, Stack, call, on_stack

SLOT: Final = struct.Struct(f"={map_layout.KEY_BYTES}sIIQQ")
"""Key, the switch's number, `select`, index of the mask, and 8 bytes that fill a cache line."""
SLOT_BITS: Final = 12
SLOTS: Final = 1 << SLOT_BITS
"""Slots of each processor, which all switches of a program share."""
_NUMBER = map_layout.KEY_BYTES
_SELECT, _MASK = _NUMBER + 4, _NUMBER + 8
_PRIMES: Final = (0x01000193, 0x2545F491, 0x3C6EF35F, 0x19D699A5, 0x5BD1E995)
"""Multipliers of a key's words of 8 bytes, and MIX of their sum: odd numbers without a pattern."""
_NUMBER_PRIME: Final = 0x27D4EB2F
_MIX: Final = 0x9E3779B97F4A7C15


def find_slot(cache_fd: int) -> Code:
    """Store the address of the slot of a packet, whose key and switch are on the stack."""
    yield bpf.load(Size.WORD, Reg.R2, Reg.R10, Stack.NUMBER)
    yield bpf.multiply(Reg.R2, _NUMBER_PRIME)
    for part, prime in enumerate(_PRIMES):
        yield bpf.load(Size.DOUBLE, Reg.R1, Reg.R10, Stack.KEY + 8 * part)
        yield bpf.multiply(Reg.R1, prime)
        yield bpf.add(Reg.R2, Reg.R1)
    yield bpf.constant(Reg.R1, _MIX)
    yield bpf.multiply(Reg.R2, Reg.R1)
    yield bpf.shift_right(Reg.R2, 64 - SLOT_BITS)
    yield bpf.store(Size.WORD, Reg.R10, Stack.SLOT, Reg.R2)
    yield bpf.map_reference(Reg.R1, cache_fd)
    yield from call(bpf.MAP_LOOKUP, Reg.R1, on_stack(Stack.SLOT))
    yield bpf.jump_if(Jump.EQUAL, Reg.R0, 0, "drop")
    yield bpf.store(Size.DOUBLE, Reg.R10, Stack.SLOT, Reg.R0)


def load_cached_mask(index: Reg, otherwise: str) -> Code:
    """Set `index` to the mask in the packet's slot; jump if the slot is of another search."""
    yield bpf.load(Size.DOUBLE, Reg.R0, Reg.R10, Stack.SLOT)
    for part in range(0, map_layout.KEY_BYTES, 8):
        yield bpf.load(Size.DOUBLE, Reg.R1, Reg.R0, part)
        yield bpf.load(Size.DOUBLE, Reg.R2, Reg.R10, Stack.KEY + part)
        yield bpf.jump_if(Jump.NOT_EQUAL, Reg.R1, Reg.R2, otherwise)
    for place, of_search in ((_NUMBER, Stack.NUMBER), (_SELECT, Stack.SELECT)):
        yield bpf.load(Size.WORD, Reg.R1, Reg.R0, place)
        yield bpf.load(Size.WORD, Reg.R2, Reg.R10, of_search)
        yield bpf.jump_if(Jump.NOT_EQUAL, Reg.R1, Reg.R2, otherwise)
    yield bpf.load(Size.DOUBLE, index, Reg.R0, _MASK)
    yield bpf.jump_if(Jump.GREATER_OR_EQUAL, index, map_layout.MAX_MASKS, otherwise)


def remember_mask() -> Code:
    """Put the mask in Stack.FOUND_BY, with its key, switch and `select`, into the packet's slot."""
    yield bpf.load(Size.DOUBLE, Reg.R2, Reg.R10, Stack.SLOT)
    for part in range(0, map_layout.KEY_BYTES, 8):
        yield bpf.load(Size.DOUBLE, Reg.R1, Reg.R10, Stack.KEY + part)
        yield bpf.store(Size.DOUBLE, Reg.R2, part, Reg.R1)
    for place, of_search in ((_NUMBER, Stack.NUMBER), (_SELECT, Stack.SELECT)):
        yield bpf.load(Size.WORD, Reg.R1, Reg.R10, of_search)
        yield bpf.store(Size.WORD, Reg.R2, place, Reg.R1)
    yield bpf.load(Size.DOUBLE, Reg.R1, Reg.R10, Stack.FOUND_BY)
    yield bpf.store(Size.DOUBLE, Reg.R2, _MASK, Reg.R1)
