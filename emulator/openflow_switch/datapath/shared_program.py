"""The program and maps of many switches: the kernel verifies one program for all of them."""

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from moefabric.core.errors import FabricError
from moefabric.emulator.linux import bpf_syscalls as bpf_calls
from moefabric.emulator.openflow_switch.datapath import map_layout
from moefabric.emulator.openflow_switch.datapath.program_parts import MapDescriptors
from moefabric.emulator.openflow_switch.datapath.switch_program import (
    CACHE_SLOT,
    CACHE_SLOTS,
    switch_program,
)

MAX_FLOWS: Final = 2048


class SharedProgram:
    """The program of switches 0 to `switches` - 1, and their maps.

    The kernel passes 16 bits to the program, enough for 256 switches of 255 ports or 64 of 1,023. A
    larger fabric has several programs.
    """

    def __init__(self, switches: int, ports: int = 255, flows: int = MAX_FLOWS) -> None:
        """Load the program and create the maps of all switches.

        All maps are created now because each later change of an array of maps makes the kernel wait
        for all processors. Needs CAP_BPF or CAP_SYS_ADMIN.

        Args:
            switches: Number of switches.
            ports: Each switch has ports 1 to `ports`.
            flows: Maximum number of flows of each switch.

        Raises:
            BpfError: If the kernel refuses the program, with the verifier's last words.
            FabricError: If one program can't serve these numbers of switches and ports.
        """
        self.layout = map_layout.MemoryLayout(ports, flows)
        if (most := 1 << map_layout.CLASS_BITS - self.layout.port_bits) < switches:
            raise FabricError(f"{switches} switches of {ports} ports: a program serves {most}")
        self.switches = switches
        self._unclaimed: dict[int, MapDescriptors] = {}
        self._packet_sockets: dict[int, socket.socket] = {}
        with ExitStack() as undo:
            undo.callback(self._close_unclaimed)
            for number in range(switches):
                self._unclaimed[number] = _create_maps(self.layout)
            names = ("memories", "tables", "rings")
            columns = zip(names, zip(*self._unclaimed.values(), strict=True), strict=True)
            self.maps = MapDescriptors(*(_create_array(undo, *column) for column in columns))
            sizes = 4, CACHE_SLOT.size, CACHE_SLOTS
            self.cache = bpf_calls.create_map(bpf_calls.MAP_TYPE_PERCPU_ARRAY, "flow_cache", *sizes)
            undo.callback(os.close, self.cache)
            code = switch_program(self.layout, self.maps, self.cache)
            self.program = bpf_calls.load_program("switch", code)
            undo.callback(os.close, self.program)
            self._resources = undo.pop_all()

    def claim(self, number: int) -> MapDescriptors:
        """Return the maps of a switch; the caller has to close them.

        Raises:
            FabricError: If the number doesn't exist or is claimed already.
        """
        if not 0 <= number < self.switches:
            raise FabricError(f"switch {number}: the program serves 0..{self.switches - 1}")
        if number not in self._unclaimed:
            raise FabricError(f"switch {number} of the program is taken")
        return self._unclaimed.pop(number)

    def packet_socket(self) -> socket.socket:
        """Open a socket that only sends frames, in the caller's namespace (packet(7)).

        All switches share it because closing one costs an RCU grace period.
        """
        namespace = Path("/proc/thread-self/ns/net").stat().st_ino
        if namespace not in self._packet_sockets:
            sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            self._packet_sockets[namespace] = sender
            self._resources.callback(sender.close)
        return self._packet_sockets[namespace]

    def _close_unclaimed(self) -> None:
        for maps in self._unclaimed.values():
            for fd in maps:
                os.close(fd)
        self._unclaimed.clear()

    def close(self) -> None:
        """Close the program and the maps of unclaimed switches; may be repeated.

        The program continues to run where it is attached.
        """
        self._resources.close()


def _create_maps(layout: map_layout.MemoryLayout) -> MapDescriptors:
    with ExitStack() as undo:
        memory = bpf_calls.create_memory("switch", layout.length)
        undo.callback(os.close, memory)
        sizes = map_layout.KEY_BYTES, map_layout.VALUE_BYTES, layout.counters
        table = bpf_calls.create_map(
            bpf_calls.MAP_TYPE_HASH, "flows", *sizes, bpf_calls.F_NO_PREALLOC
        )
        undo.callback(os.close, table)
        sizes = 0, 0, map_layout.RING_BYTES
        ring = bpf_calls.create_map(bpf_calls.MAP_TYPE_RINGBUF, "punts", *sizes)
        undo.pop_all()
    return MapDescriptors(memory, table, ring)


def _create_array(undo: ExitStack, name: str, inner: Sequence[int]) -> int:
    """Create an array of maps, and return its descriptor."""
    outer = bpf_calls.create_map(
        bpf_calls.MAP_TYPE_ARRAY_OF_MAPS, name, 4, 4, len(inner), inner_fd=inner[0]
    )
    undo.callback(os.close, outer)
    bpf_calls.update_map(outer, {_word(number): _word(fd) for number, fd in enumerate(inner)})
    return outer


def _word(number: int) -> bytes:
    return number.to_bytes(4, sys.byteorder)
