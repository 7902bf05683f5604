"""A chassis: what many switches share, the program, which is verified once, and the arrays by which it finds each one's maps."""

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from emulator import bpf_calls
from emulator.switch.instructions import Descriptors
from emulator.switch.layout import CLASS_BITS, KEY, VALUE_BYTES, Layout
from emulator.switch.program import switch_program
from emulator.switch.ring import create_ring
from moefabric.errors import FabricError

MOST_FLOWS: Final = 2048


@dataclass(frozen=True)
class Maps:
    """Descriptors of one switch's own maps, which whoever takes them closes."""

    memory: int
    table: int
    ring: int


class Chassis:
    """Room for `switches` switches, numbered from 0, each with ports 1..`ports` and up to `flows` flows.

    The kernel hands 16 bits to the program: 256 switches of 255 ports, or 64 of 1,023. A fabric may have several.
    """

    def __init__(self, switches: int, ports: int = 255, flows: int = MOST_FLOWS) -> None:
        """Every map is made and entered now: the kernel waits for all its processors once for each later change of an array of maps.

        Needs CAP_BPF, or CAP_SYS_ADMIN. BpfError, with the verifier's words, where the kernel won't have the program.
        """
        self.layout = Layout(ports, flows)
        if (most := 1 << CLASS_BITS - self.layout.port_bits) < switches:
            raise FabricError(
                f"{switches} switches of {ports} ports: a chassis has room for {most}; take several"
            )
        self.switches = switches
        self._untaken: dict[int, Maps] = {}
        self._wires: dict[int, socket.socket] = {}
        with ExitStack() as undo:
            undo.callback(self._let_go)
            for number in range(switches):
                self._untaken[number] = _own_maps(self.layout)
            own = self._untaken.values()
            memories = _array(undo, "memories", [maps.memory for maps in own])
            tables = _array(undo, "tables", [maps.table for maps in own])
            rings = _array(undo, "rings", [maps.ring for maps in own])
            self.maps = Descriptors(memories, tables, rings)
            self.program = bpf_calls.load_classifier("switch", switch_program(self.layout, self.maps))
            undo.callback(os.close, self.program)
            self._made = undo.pop_all()

    def take(self, number: int) -> Maps:
        """The maps of a switch, once. FabricError for a number that isn't there or has been taken."""
        if not 0 <= number < self.switches:
            raise FabricError(f"switch {number}: the chassis has room for 0..{self.switches - 1}")
        if number not in self._untaken:
            raise FabricError(f"switch {number} of the chassis is taken")
        return self._untaken.pop(number)

    def wire(self) -> socket.socket:
        """A socket that sends frames in the caller's namespace, and hears nothing. One serves all switches: each costs a grace period to close."""
        here = Path("/proc/thread-self/ns/net").stat().st_ino
        if here not in self._wires:
            self._wires[here] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            self._made.callback(self._wires[here].close)
        return self._wires[here]

    def _let_go(self) -> None:
        for maps in self._untaken.values():
            _close_all(maps)
        self._untaken.clear()

    def close(self) -> None:
        """Let go of the program, which runs on where it is attached, and of untaken switches; twice is no fault."""
        self._made.close()


def _own_maps(layout: Layout) -> Maps:
    with ExitStack() as undo:
        memory = bpf_calls.create_memory("switch", layout.length)
        undo.callback(os.close, memory)
        table = bpf_calls.create_map(
            bpf_calls.MAP_TYPE_HASH, "flows", KEY.size, VALUE_BYTES, layout.places, bpf_calls.F_NO_PREALLOC
        )
        undo.callback(os.close, table)
        ring = create_ring("punts")
        undo.pop_all()
    return Maps(memory, table, ring)


def _close_all(maps: Maps) -> None:
    for fd in (maps.memory, maps.table, maps.ring):
        os.close(fd)


def _array(undo: ExitStack, name: str, inner: Sequence[int]) -> int:
    """A descriptor of these maps by number."""
    outer = bpf_calls.create_map(bpf_calls.MAP_TYPE_ARRAY_OF_MAPS, name, 4, 4, len(inner), inner_fd=inner[0])
    undo.callback(os.close, outer)
    bpf_calls.put_in_map(outer, {_word(number): _word(fd) for number, fd in enumerate(inner)})
    return outer


def _word(number: int) -> bytes:
    return number.to_bytes(4, sys.byteorder)
