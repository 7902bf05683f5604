"""Switches in the kernel: the chassis's program on their ports, and the flows that it finds there.

A change of a switch's flows is written to the generation that is not in force, then put in force by one store.
"""

import ctypes
import os
import socket
import struct
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final

from emulator import bpf_calls, namespaces, netlink
from emulator.bpf import BpfError
from emulator.bpf_calls import Memory
from emulator.switch.chassis import Chassis
from emulator.switch.checksums import completed
from emulator.switch.errors import FlowError
from emulator.switch.flow import Action, Flow, FlowKey, Group, GroupKind
from emulator.switch.flow_map import FlowMap, Written
from emulator.switch.instructions import TAG_BYTES
from emulator.switch.layout import COUNTER, PUNT, Layout, packed_steps, steps, value_of
from emulator.switch.ring import Ring
from emulator.switch.roster import Roster
from emulator.switch.seam import Count, Port, Punt
from emulator.switch.steps import Groups
from moefabric.errors import FabricError

_ETH_P_ALL: Final = 0x0003
_PACKED: Final = 4096
"""Of so many lists of actions the steps are remembered."""


class BpfDatapath:
    """A switch of a chassis. Its flows stay in force while programs are on its ports, whoever lives."""

    def __init__(self, chassis: Chassis, number: int) -> None:
        """A switch without ports or flows, which takes that number of the chassis for good."""
        maps = chassis.take(number)
        self._chassis, self._number = chassis, number
        self._layout = chassis.layout
        self._ports: dict[int, Port] = {}
        with ExitStack() as undo:
            undo.callback(os.close, maps.table)
            self._ring = Ring(maps.ring)
            undo.callback(self._ring.close)
            self._memory = Memory(maps.memory, self._layout.length)
            undo.callback(self._memory.close)
            self._made = undo.pop_all()
        self._select = ctypes.c_uint32.from_buffer(self._memory.view, Layout.SELECT)
        self._flow_map = FlowMap(maps.table)
        self._roster = Roster()
        self._packed: dict[tuple[Action, ...], tuple[int, bytes]] = {}
        self._places: dict[FlowKey, int] = {}
        self._owners: dict[int, FlowKey] = {}
        self._free = deque(range(self._layout.places))
        self._wire: socket.socket | None = None

    @property
    def ports(self) -> Mapping[int, Port]:
        return dict(self._ports)

    def attach(self, interfaces: Mapping[int, str], netns: str | None = None) -> None:
        """Plug interfaces in by port number: frames that reach one are the switch's from now on.

        `netns` is the path of the namespace they are all in, such as /proc/PID/ns/net; None is the caller's, and it is the same for all
        calls. Needs CAP_NET_ADMIN and CAP_NET_RAW there. FabricError for an interface that isn't there.
        """
        if strange := sorted(n for n in interfaces if not 1 <= n <= self._layout.ports):
            raise FabricError(f"switch {self._number}: ports {strange} are not among 1..{self._layout.ports}")
        there = partial(self._attach_here, interfaces)
        namespaces.within(netns, there) if netns else there()

    def _attach_here(self, interfaces: Mapping[int, str]) -> None:
        indices = {port: self._index(name) for port, name in interfaces.items()}
        self._wire = self._chassis.wire()
        netlink.ask([asked for port, index in indices.items() for asked in self._plug(port, index)])
        for port, index in indices.items():
            at = self._layout.interface(port)
            self._memory.view[at : at + 4] = index.to_bytes(4, sys.byteorder)
            self._ports[port] = Port(port, interfaces[port])
        self._packed.clear()
        if self._roster.flows:  # an output to all ports may be spelt out, port by port
            self._change(self._roster.flows, (), self._roster.groups)

    def _plug(self, port: int, index: int) -> tuple[netlink.Request, netlink.Request]:
        place, classid = f"switch {self._number} port {port}", self._number << self._layout.port_bits | port
        program = self._chassis.program
        return netlink.ingress(place, index), netlink.ingress_program(
            place, index, program, "switch", classid
        )

    def _index(self, interface: str) -> int:
        try:
            return socket.if_nametoindex(interface)
        except OSError as absent:
            raise FabricError(f"switch {self._number}: no interface {interface} in its namespace") from absent

    def load(self, flows: Sequence[Flow], groups: Sequence[Group] = ()) -> None:
        """As Datapath.load. BpfError, and the old table in force, where the kernel has no memory.

        What is the same object as in the table before costs next to nothing.
        """
        known, through = self._roster, {group.id: group for group in groups}
        difference = known.against(flows)
        if (size := len(difference.following)) > self._layout.flows:
            raise FlowError(f"{size} flows: a switch has room for {self._layout.flows}")
        put = dict(difference.put)
        if through != known.groups:
            gone = set(difference.drop)
            put = {name: flow for name, flow in known.grouped().items() if name not in gone} | put
        self._change(put, difference.drop, through)
        known.become(difference, through)

    def _change(self, put: Mapping[FlowKey, Flow], drop: Sequence[FlowKey], groups: Groups) -> None:
        """Put flows and drop others by one flip. FlowError or BpfError changes nothing."""
        self._flow_map.check(put.values(), drop)
        free = iter(self._free)
        new: dict[FlowKey, int] = {}
        written: dict[FlowKey, Written] = {}
        for name, flow in put.items():
            packed = self._steps(flow, groups)
            if (place := self._places.get(name)) is None:
                place = new[name] = next(free)
            written[name] = Written(flow, value_of(flow.rank, place, packed))
        idle = 1 - (self._select.value & 1)
        before = self._flow_map.change(written, drop)
        try:
            self._flow_map.write(idle)
        except BpfError:
            self._flow_map.change(before, [name for name in written if name not in before])
            raise
        self._count_from_zero(new)
        at = self._layout.masks(idle)
        self._memory.view[at : at + self._layout.generation_bytes] = self._flow_map.masks(idle)
        bpf_calls.fence()
        self._select.value = (self._select.value + 1) & 0xFFFFFFFF
        bpf_calls.fence()
        self._places |= new
        self._free.extend(self._places.pop(name) for name in drop)

    def _steps(self, flow: Flow, groups: Groups) -> tuple[int, bytes]:
        """The flow's steps, packed; those that hang on no group are made once for all flows with these actions."""
        if (found := self._packed.get(flow.actions)) is not None:
            return found
        made = packed_steps(steps(flow, groups, self._ports))
        if not flow.through_groups:
            if len(self._packed) >= _PACKED:
                self._packed.clear()
            self._packed[flow.actions] = made
        return made

    def _count_from_zero(self, places: Mapping[FlowKey, int]) -> None:
        """Take for new flows the places that were left longest ago, so that no packet still counts there."""
        view, first = self._memory.view, self._layout.counter(0)
        for name, place in places.items():
            taken = self._free.popleft()
            assert taken == place
            COUNTER.pack_into(view, first + place * COUNTER.size, 0, 0)
            self._owners[place] = name

    def port_changed(self, number: int, *, up: bool) -> None:
        if number not in self._ports:
            raise FlowError(f"no port {number}")
        if self._ports[number].up == up:
            return
        self._ports[number] = replace(self._ports[number], up=up)
        if any(group.kind is GroupKind.FAST_FAILOVER for group in self._roster.groups.values()):
            self._change(self._roster.grouped(), (), self._roster.groups)

    def counters(self, of: Iterable[FlowKey] | None = None) -> Mapping[FlowKey, Count]:
        counter, view, places = self._layout.counter, self._memory.view, self._places
        asked = places if of is None else {key: places[key] for key in of if key in places}
        return {key: Count(*COUNTER.unpack_from(view, counter(place))) for key, place in asked.items()}

    def send(self, port: int, frame: bytes) -> None:
        if port not in self._ports or self._wire is None:
            raise FlowError(f"no port {port}")
        try:
            self._wire.sendto(frame, (self._ports[port].name, _ETH_P_ALL))
        except OSError as refused:
            raise FlowError(f"port {port}: {refused.strerror}") from refused

    def fileno(self) -> int:
        return self._ring.fd

    def received(self) -> Sequence[Punt]:
        return tuple(filter(None, map(self._punt, self._ring.records())))

    def _punt(self, record: bytes) -> Punt | None:
        """A record as a packet; None if its flow is long gone."""
        in_port, length, place, max_len, tag, tag_protocol = PUNT.unpack_from(record)
        if (flow := self._owners.get(place)) is None:
            return None
        untagged = length - TAG_BYTES if tag_protocol else length
        frame = record[PUNT.size : PUNT.size + untagged]
        if len(frame) == untagged:
            frame = completed(frame)
        if tag_protocol:
            frame = frame[:12] + struct.pack("=H", tag_protocol) + struct.pack(">H", tag) + frame[12:]
        return Punt(in_port, frame[:max_len], length, flow, max_len)

    @property
    def exhausted(self) -> int:
        """Packets dropped since each of their look-ups met another change of the table."""
        return int.from_bytes(self._memory.view[Layout.EXHAUSTED : Layout.EXHAUSTED + 8], "little")

    def close(self) -> None:
        """Let go of the switch, which goes on by itself; twice is no fault."""
        if hasattr(self, "_select"):
            del self._select
        self._made.close()
