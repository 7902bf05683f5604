"""The program that each port of a switch runs on each frame that comes in: from its fields to a flow, and through the flow's steps.

One program serves all ports of all switches, so that the kernel verifies it once: the filter that puts it on a port carries the
numbers of switch and port as class id, which the kernel hands over with the frame.
"""

from emulator import bpf
from emulator.bpf import Label, Reg, Size
from emulator.switch.execution import step_lines
from emulator.switch.instructions import SKB, TRIED, Descriptors, Lines, in_memory
from emulator.switch.layout import Layout
from emulator.switch.search import count_lines, key_lines, search_lines, slot_lines, switch_lines


def switch_program(layout: Layout, maps: Descriptors, *, barriers: bool = False) -> Lines:
    """What runs on each frame; with `barriers`, as for processors that reorder loads, on any."""
    yield bpf.move(SKB, Reg.R1)
    yield from switch_lines(layout, maps)
    yield from key_lines(layout)
    yield bpf.store(Size.DOUBLE, Reg.R10, TRIED, 0)
    yield from search_lines(layout, barriers=barriers)
    yield from count_lines(layout)
    yield from slot_lines()
    yield from step_lines(layout, maps)
    yield Label("exhausted")
    yield from in_memory(Reg.R3, layout.EXHAUSTED)
    yield bpf.move(Reg.R4, 1)
    yield bpf.atomic_add(Reg.R3, 0, Reg.R4)
    yield Label("drop")
    yield bpf.move(Reg.R0, bpf.TC_ACT_SHOT)
    yield bpf.leave()
