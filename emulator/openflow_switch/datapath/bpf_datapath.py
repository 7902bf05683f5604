"""Datapath in the kernel: the program that many switches share, and the flows in its maps.

The kernel verifies one program for all switches of a network namespace.

A change of the flows is written to the inactive generation, which a single store then activates.
"""

import ctypes
import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from moefabric.core.errors import FabricError
from moefabric.core.openflow.actions import Action
from moefabric.core.openflow.constants import GroupType
from moefabric.core.openflow.match import FlowError
from moefabric.emulator.linux import bpf_syscalls as bpf_calls
from moefabric.emulator.linux.bpf_assembler import BpfError
from moefabric.emulator.linux.bpf_syscalls import MappedPages, word
from moefabric.emulator.linux.classifiers import classify
from moefabric.emulator.openflow_switch.datapath import map_layout
from moefabric.emulator.openflow_switch.datapath.flow_map import FlowMap, StoredFlow, flow_changes
from moefabric.emulator.openflow_switch.datapath.interface import (
    Flow,
    FlowCount,
    FlowKey,
    Group,
    Groups,
    Port,
    PuntedPacket,
)
from moefabric.emulator.openflow_switch.datapath.map_layout import MemoryLayout
from moefabric.emulator.openflow_switch.datapath.program_parts import TAG_BYTES, MapDescriptors
from moefabric.emulator.openflow_switch.datapath.switch_program import (
    CACHE_SLOT_BYTES,
    PLACE,
    ProgramMaps,
    switch_program,
)
from moefabric.emulator.openflow_switch.flows.packet import complete_checksum

MAX_FLOWS: Final = 2048
_LEAST_SLOT_BITS, _SLOTS_OF_A_SWITCH = 12, 16
"""Slots of the flow cache of each processor: 4,096 at least, 16 for each switch."""


class SharedProgram:
    """The program of switches 0 to `switches` - 1 in one network namespace, and their maps."""

    def __init__(self, switches: int, ports: int = 255, flows: int = MAX_FLOWS) -> None:
        """Create the maps of all switches, load the program, and open a socket that only sends.

        All maps are created now because each later change of an array of maps makes the kernel wait
        for all processors. All switches share the socket (packet(7)), which sends in the caller's
        namespace, because closing one costs an RCU grace period. Needs CAP_BPF or CAP_SYS_ADMIN.

        Args:
            switches: Number of switches.
            ports: Each switch has ports 1 to `ports`.
            flows: Maximum number of flows of each switch.

        Raises:
            BpfError: If the kernel refuses the maps, or the program with the verifier's last words.
        """
        self.layout = map_layout.MemoryLayout(ports, flows)
        self.switches = switches
        self.slot_bits = max(_LEAST_SLOT_BITS, (_SLOTS_OF_A_SWITCH * switches - 1).bit_length())
        self._unclaimed: dict[int, MapDescriptors] = {}
        self.counters = tuple(range(self.layout.counters))
        """Indices of a switch's counters; all switches have the same objects."""
        with ExitStack() as undo:
            undo.callback(self._close_unclaimed)
            for number in range(switches):
                self._unclaimed[number] = _create_maps(self.layout)
            names = ("memories", "tables", "rings")
            columns = zip(names, zip(*self._unclaimed.values(), strict=True), strict=True)
            self.maps = MapDescriptors(*(_create_array(undo, *column) for column in columns))
            sizes = 4, CACHE_SLOT_BYTES, 1 << self.slot_bits
            self.cache = bpf_calls.create_map(bpf_calls.MAP_TYPE_PERCPU_ARRAY, "flow_cache", *sizes)
            undo.callback(os.close, self.cache)
            sizes, flags = (4, PLACE.size, switches * ports), bpf_calls.F_NO_PREALLOC
            self.places = bpf_calls.create_map(bpf_calls.MAP_TYPE_HASH, "places", *sizes, flags)
            undo.callback(os.close, self.places)
            maps = ProgramMaps(self.places, self.cache, self.slot_bits)
            code = switch_program(self.layout, self.maps, maps)
            self.fd = bpf_calls.load_program("switch", code)
            undo.callback(os.close, self.fd)
            self.sender = undo.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
            self._resources = undo.pop_all()

    def assign(self, number: int, indices: Mapping[int, int]) -> None:
        """Make interfaces the ports of a switch; the indices are by port number."""
        places = {word(index): PLACE.pack(number, port) for port, index in indices.items()}
        bpf_calls.update_map(self.places, places)

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
        kind, flags = bpf_calls.MAP_TYPE_HASH, bpf_calls.F_NO_PREALLOC
        table = bpf_calls.create_map(kind, "flows", *sizes, flags)
        undo.callback(os.close, table)
        sizes = 0, 0, map_layout.RING_BYTES
        ring = bpf_calls.create_map(bpf_calls.MAP_TYPE_RINGBUF, "punts", *sizes)
        undo.pop_all()
    return MapDescriptors(memory, table, ring)


def _create_array(undo: ExitStack, name: str, inner: Sequence[int]) -> int:
    """Create an array of maps, and return its descriptor."""
    kind, sizes = bpf_calls.MAP_TYPE_ARRAY_OF_MAPS, (4, 4, len(inner))
    outer = bpf_calls.create_map(kind, name, *sizes, inner_fd=inner[0])
    undo.callback(os.close, outer)
    bpf_calls.update_map(outer, {word(number): word(fd) for number, fd in enumerate(inner)})
    return outer


_BUSY, _DISCARDED = 1 << 31, 1 << 30  # BPF_RINGBUF_BUSY_BIT, BPF_RINGBUF_DISCARD_BIT
_HEADER = struct.Struct("=II")  # length and the bits above; page offset, for the kernel
_POSITION = struct.Struct("=Q")


class RingReader:
    """The only reader of a ring buffer, in which the program leaves packets for the controller.

    `fd` is readable while the ring holds records. A record that doesn't fit is lost. See
    Documentation/bpf/ringbuf.rst of the Linux kernel.
    """

    def __init__(self, fd: int) -> None:
        """Take ownership of the ring's descriptor."""
        self.fd = fd
        page = mmap.PAGESIZE
        self._consumer = MappedPages(fd, page)
        # The kernel maps the data twice in a row, so that no record is split at the end.
        length = page + 2 * map_layout.RING_BYTES
        self._producer = MappedPages(fd, length, page, writable=False)
        self._position = ctypes.c_uint64.from_buffer(self._consumer.view)

    def records(self) -> Iterator[bytes]:
        """Take the records that have arrived."""
        producer = self._producer.view
        while self._position.value < _POSITION.unpack_from(producer)[0]:
            at = mmap.PAGESIZE + self._position.value % map_layout.RING_BYTES
            length, _ = _HEADER.unpack_from(producer, at)
            if length & _BUSY:
                return
            start, size = at + _HEADER.size, length & ~_DISCARDED
            record = None if length & _DISCARDED else bytes(producer[start : start + size])
            self._position.value += (size + _HEADER.size + 7) // 8 * 8
            if record is not None:
                yield record

    def close(self) -> None:
        """Close the ring."""
        del self._position
        self._consumer.close()
        self._producer.close()
        os.close(self.fd)


_ETH_P_ALL: Final = 0x0003
_CACHED_STEPS: Final = 4096
"""Maximum number of action lists whose steps are cached."""


class BpfDatapath:
    """A datapath whose flows stay active as long as the program is on its ports."""

    def __init__(self, program: SharedProgram, number: int) -> None:
        """Claim a switch of the program permanently; it starts without ports and flows."""
        maps = program.claim(number)
        self._program, self._number = program, number
        self._layout = program.layout
        self.ports: dict[int, Port] = {}
        """See `Datapath.ports`."""
        with ExitStack() as undo:
            undo.callback(os.close, maps.table)
            self._ring = RingReader(maps.ring)
            undo.callback(self._ring.close)
            self._memory = MappedPages(maps.memory, self._layout.length)
            os.close(maps.memory)
            undo.callback(self._memory.close)
            self._resources = undo.pop_all()
        self._select = ctypes.c_uint32.from_buffer(self._memory.view, MemoryLayout.SELECT)
        self._flow_map = FlowMap(maps.table)
        self._by_identity: Mapping[int, Flow] = {}
        self._groups: Groups = {}
        self._steps_cache: dict[tuple[Action, ...], tuple[int, bytes]] = {}
        self._counter_owners: dict[int, FlowKey] = {}
        self._free_counters = deque(program.counters)

    def attach(self, interfaces: Mapping[int, str]) -> None:
        """Attach interfaces, whose incoming frames all go to the switch from now on.

        Needs CAP_NET_ADMIN and CAP_NET_RAW.

        Args:
            interfaces: Names of interfaces of the caller's network namespace, which must be that
                of the program, by port number.

        Raises:
            FabricError: If a port or an interface doesn't exist.
        """
        if invalid := sorted(n for n in interfaces if not 1 <= n <= self._layout.ports):
            among = f"are not among 1..{self._layout.ports}"
            raise FabricError(f"switch {self._number}: ports {invalid} {among}")
        indices = {port: self._interface_index(name) for port, name in interfaces.items()}
        self._program.assign(self._number, indices)
        places = {index: f"switch {self._number} port {n}" for n, index in indices.items()}
        classify(self._program.fd, "switch", places)
        for port, index in indices.items():
            at = self._layout.interface(port)
            self._memory.view[at : at + 4] = word(index)
            self.ports[port] = Port(port, interfaces[port])
        self._steps_cache.clear()
        # The steps of a flood may list the ports.
        self._repeat({key: stored.flow for key, stored in self._flow_map.flows.items()})

    def _interface_index(self, interface: str) -> int:
        try:
            return socket.if_nametoindex(interface)
        except OSError as fault:
            missing = f"no interface {interface} in its namespace"
            raise FabricError(f"switch {self._number}: {missing}") from fault

    def load(self, flows: Sequence[Flow], groups: Sequence[Group] = ()) -> None:
        """See `Datapath.load`. A flow that is the same object as before costs almost nothing.

        Raises:
            FlowError: As `Datapath.load`.
            BpfError: If the kernel has no memory; the old flows stay active.
        """
        by_id = {group.id: group for group in groups}
        changes = flow_changes(self._by_identity, self._flow_map.flows, flows)
        if (size := len(changes.by_identity)) > self._layout.flows:
            raise FlowError(f"{size} flows: a switch has room for {self._layout.flows}")
        put = dict(changes.put)
        if by_id != self._groups:
            dropped = set(changes.drop)
            grouped = self._with_groups().items()
            put = {key: flow for key, flow in grouped if key not in dropped} | put
        self._change(put, changes.drop, by_id)
        self._by_identity, self._groups = changes.by_identity, by_id

    def _with_groups(self) -> dict[FlowKey, Flow]:
        """Return the flows whose packets visit groups."""
        flows = self._flow_map.flows.items()
        return {key: stored.flow for key, stored in flows if stored.flow.uses_groups}

    def _repeat(self, flows: Mapping[FlowKey, Flow]) -> None:
        """Compute the steps of some flows anew."""
        if flows:
            self._change(flows, (), self._groups)

    def _change(self, put: Mapping[FlowKey, Flow], drop: Sequence[FlowKey], groups: Groups) -> None:
        """Add and remove flows by one change of generation.

        Nothing has changed if FlowError or BpfError is raised.
        """
        self._flow_map.check(put.values(), drop)
        free = iter(self._free_counters)
        known = self._flow_map.flows
        stored, new = dict[FlowKey, StoredFlow](), dict[FlowKey, int]()
        for key, flow in put.items():
            differ, steps = self._packed_steps(flow, groups)
            old = known.get(key)
            counter = old.counter if old else new.setdefault(key, next(free))
            value = map_layout.VALUE.pack(flow.rank, counter, differ) + steps
            stored[key] = StoredFlow(flow, value, counter)
        idle = 1 - (self._select.value & 1)
        before = self._flow_map.change(stored, drop)
        try:
            self._flow_map.write(idle)
        except BpfError:
            self._flow_map.change(before, [key for key in stored if key not in before])
            raise
        self._claim_counters(new)
        at = self._layout.masks(idle)
        self._memory.view[at : at + self._layout.generation_bytes] = self._flow_map.masks(idle)
        bpf_calls.fence()
        self._select.value = (self._select.value + 1) & 0xFFFFFFFF
        bpf_calls.fence()
        self._free_counters.extend(before[key].counter for key in drop)

    def _packed_steps(self, flow: Flow, groups: Groups) -> tuple[int, bytes]:
        """Return the flow's steps, which are cached by its actions if they use no group."""
        if (cached := self._steps_cache.get(flow.actions)) is not None:
            return cached
        packed = map_layout.packed_steps(map_layout.flow_steps(flow, groups, self.ports))
        if not flow.uses_groups:
            if len(self._steps_cache) >= _CACHED_STEPS:
                self._steps_cache.clear()
            self._steps_cache[flow.actions] = packed
        return packed

    def _claim_counters(self, counters: Mapping[FlowKey, int]) -> None:
        """Clear the counters of new flows; reuse the longest free ones, which no packet uses."""
        view, first = self._memory.view, self._layout.counter(0)
        for key, counter in counters.items():
            claimed = self._free_counters.popleft()
            assert claimed == counter
            map_layout.COUNTER.pack_into(view, first + counter * map_layout.COUNTER.size, 0, 0)
            self._counter_owners[counter] = key

    def port_changed(self, number: int, *, up: bool) -> None:
        """See `Datapath.port_changed`."""
        if number not in self.ports:
            raise FlowError(f"no port {number}")
        self.ports[number] = replace(self.ports[number], up=up)
        if any(group.kind is GroupType.FAST_FAILOVER for group in self._groups.values()):
            self._repeat(self._with_groups())

    def counters(self, keys: Iterable[FlowKey] | None = None) -> Mapping[FlowKey, FlowCount]:
        """See `Datapath.counters`."""
        flows, first = self._flow_map.flows, self._layout.counter(0)
        counter, view = map_layout.COUNTER, self._memory.view
        return {
            key: FlowCount(*counter.unpack_from(view, first + flows[key].counter * counter.size))
            for key in (flows if keys is None else keys)
            if key in flows
        }

    def send(self, port: int, frame: bytes) -> None:
        """See `Datapath.send`."""
        if port not in self.ports:
            raise FlowError(f"no port {port}")
        try:
            self._program.sender.sendto(frame, (self.ports[port].name, _ETH_P_ALL))
        except OSError as fault:
            raise FlowError(f"port {port}: {fault.strerror}") from fault

    def fileno(self) -> int:
        """See `Datapath.fileno`."""
        return self._ring.fd

    def received(self) -> Sequence[PuntedPacket]:
        """See `Datapath.received`."""
        return tuple(filter(None, map(self._punted_packet, self._ring.records())))

    def _punted_packet(self, record: bytes) -> PuntedPacket | None:
        """Return the packet of a record; None if its flow doesn't exist any more."""
        in_port, length, counter, max_len, tag, tag_protocol = map_layout.PUNT.unpack_from(record)
        if (flow := self._counter_owners.get(counter)) is None:
            return None
        untagged = length - TAG_BYTES if tag_protocol else length
        frame = record[map_layout.PUNT.size : map_layout.PUNT.size + untagged]
        if len(frame) == untagged:
            frame = complete_checksum(frame)
        if tag_protocol:
            header = struct.pack("=H", tag_protocol) + struct.pack(">H", tag)
            frame = frame[:12] + header + frame[12:]
        return PuntedPacket(in_port, frame[:max_len], length, flow)

    def close(self) -> None:
        """Close the switch's descriptors; may be repeated. The switch continues to forward."""
        if hasattr(self, "_select"):
            del self._select
        self._resources.close()
