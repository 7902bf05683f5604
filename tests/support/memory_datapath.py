"""A datapath and interfaces in memory: the reference for the meaning of flows, without root."""

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from moefabric.core.openflow.actions import CONTROLLER
from moefabric.core.openflow.match import FlowError
from moefabric.emulator.openflow_switch.agent.interfaces import Interface
from moefabric.emulator.openflow_switch.datapath.emissions import emissions, select_slot
from moefabric.emulator.openflow_switch.datapath.interface import (
    Flow,
    FlowCount,
    FlowKey,
    Group,
    Groups,
    Port,
    PuntedPacket,
)
from moefabric.emulator.openflow_switch.flows.packet import packet_fields, rewritten_frame

SentFrame = tuple[int, bytes]
"""A port and a frame that leaves by it."""


class EventSignal:
    """A descriptor that is readable from `set` to `clear` (eventfd(2))."""

    def __init__(self) -> None:
        """Create the descriptor, which is unreadable."""
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def set(self) -> None:
        """Make the descriptor readable."""
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Make the descriptor unreadable; may be repeated."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)

    def close(self) -> None:
        """Close the descriptor; may be repeated."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class MemoryDatapath:
    """A datapath without a kernel: `forward` processes a frame, `sent` collects packet-outs."""

    def __init__(self, ports: Iterable[Port]) -> None:
        """Start without flows."""
        self._ports = {port.number: port for port in ports}
        self._flows: dict[FlowKey, Flow] = {}
        self._groups: Groups = {}
        self._counts: dict[FlowKey, FlowCount] = {}
        self._punted = deque[PuntedPacket]()
        self._signal = EventSignal()
        self.sent: list[SentFrame] = []
        self.fileno, self.close = self._signal.fileno, self._signal.close

    @property
    def ports(self) -> Mapping[int, Port]:
        """See `Datapath.ports`."""
        return self._ports

    def load(self, flows: Sequence[Flow], groups: Sequence[Group] = ()) -> None:
        """See `Datapath.load`."""
        table, by_id = {flow.key: flow for flow in flows}, {group.id: group for group in groups}
        for flow in table.values():
            emissions(flow, by_id, 0, self._ports)
        self._flows, self._groups = table, by_id
        self._counts = {key: self._counts.get(key, FlowCount()) for key in table}

    def port_changed(self, number: int, *, up: bool) -> None:
        """See `Datapath.port_changed`."""
        if number not in self._ports:
            raise FlowError(f"no port {number}")
        self._ports[number] = replace(self._ports[number], up=up)

    def counters(self, keys: Iterable[FlowKey] | None = None) -> Mapping[FlowKey, FlowCount]:
        """See `Datapath.counters`."""
        selected = self._counts if keys is None else keys
        return {key: self._counts[key] for key in selected if key in self._counts}

    def flow_for(self, packet: Mapping[str, int]) -> Flow | None:
        """Return the flow that takes a packet with these fields."""
        fitting = (flow for flow in self._flows.values() if flow.match.fits(packet))
        return max(fitting, key=lambda flow: flow.rank, default=None)

    def forward(self, in_port: int, frame: bytes) -> Sequence[SentFrame]:
        """Process a frame that arrives at a port; return the frames that leave, in order."""
        packet = packet_fields(frame, in_port)
        if (flow := self.flow_for(packet)) is None:
            return ()
        count = self._counts[flow.key]
        self._counts[flow.key] = FlowCount(count.packets + 1, count.bytes + len(frame))
        sent: list[SentFrame] = []
        for emission in emissions(flow, self._groups, select_slot(packet), self._ports):
            copy, max_len = rewritten_frame(frame, emission.rewrites), emission.max_len
            sent += ((port, copy) for port in emission.output_ports(in_port, self._ports))
            if emission.port == CONTROLLER:
                self._punted.append(PuntedPacket(in_port, copy[:max_len], len(copy), flow.key))
                self._signal.set()
        return sent

    def send(self, port: int, frame: bytes) -> None:
        """See `Datapath.send`."""
        if port not in self._ports:
            raise FlowError(f"no port {port}")
        self.sent.append((port, frame))

    def received(self) -> Sequence[PuntedPacket]:
        """See `Datapath.received`."""
        self._signal.clear()
        # A packet that another thread appends meanwhile stays for the next call.
        return tuple(self._punted.popleft() for _ in range(len(self._punted)))


class MemoryInterfaces:
    """Interfaces in memory. An interface has carrier unless `carrier` changes it."""

    def __init__(self, interfaces: Mapping[str, Interface] | None = None) -> None:
        """Take the states of interfaces; all others have carrier and no traffic."""
        self._interfaces = dict(interfaces or {})
        self._changed = dict[str, bool]()
        self._signal = EventSignal()
        self.fileno, self.close = self._signal.fileno, self._signal.close

    def look(self, name: str) -> Interface:
        """See `Interfaces.look`."""
        return self._interfaces.get(name, Interface())

    def carrier(self, name: str, *, up: bool) -> None:
        """Set the carrier of an interface."""
        self._interfaces[name] = replace(self._interfaces.get(name, Interface()), up=up)
        self._changed[name] = up
        self._signal.set()

    def changed(self) -> Mapping[str, bool]:
        """See `Interfaces.changed`."""
        self._signal.clear()
        changed, self._changed = self._changed, {}
        return changed
