"""An OpenFlow switch: tables, counters, ports, and the datapath that follows them.

A switch outlives the connections of its controllers.
"""

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from moefabric.core.errors import FabricError
from moefabric.core.openflow import constants as ofp
from moefabric.core.openflow.actions import CONTROLLER, TO_TABLE, Output, SetField
from moefabric.core.openflow.constants import ErrorCode, OpenFlowError
from moefabric.core.openflow.match import Match
from moefabric.core.openflow.messages import FlowMod, FlowStatsRequest, GroupMod, PacketOut
from moefabric.emulator.openflow_switch.agent.interfaces import Interfaces
from moefabric.emulator.openflow_switch.datapath.emissions import emissions, select_slot
from moefabric.emulator.openflow_switch.datapath.interface import (
    Datapath,
    Flow,
    FlowKey,
    Port,
    PuntedPacket,
)
from moefabric.emulator.openflow_switch.flows.packet import packet_fields, rewritten_frame
from moefabric.emulator.openflow_switch.tables.counters import (
    SwitchCounters,
    TrafficCount,
    Visited,
    entry_counters,
)
from moefabric.emulator.openflow_switch.tables.entries import FlowEntry, check_groups, check_ports
from moefabric.emulator.openflow_switch.tables.flow_tables import FlowTables, TableUpdate
from moefabric.emulator.openflow_switch.tables.pipeline import Pipeline, pipeline

if TYPE_CHECKING:
    from moefabric.emulator.openflow_switch.agent.session import ControllerSession

log = logging.getLogger(__name__)

Mod = FlowMod | GroupMod
_ANY: Final = Match()


class OpenFlowSwitch:
    """A datapath and its OpenFlow state. Times are in ns of a monotonic clock."""

    def __init__(
        self, dpid: int, datapath: Datapath, interfaces: Interfaces, now_ns: int, token: str = ""
    ) -> None:
        """Take over a datapath and remove its flows.

        Args:
            dpid: The switch's identity.
            interfaces: Reports the carrier of the ports.
            now_ns: The time.
            token: The fabric's token, by which the switch proves its identity to controllers that
                ask for it; none if empty.
        """
        self.token, self.datapath_id = token, dpid
        self.datapath, self.interfaces = datapath, interfaces
        self.tables, self._counters = FlowTables(), SwitchCounters()
        self._pipeline = Pipeline((), {}, ())
        self.ports = datapath.ports
        self.created_ns, self.generation_id = now_ns, -1
        self.has_timeouts = False
        """Whether `expire` must be called from time to time."""
        self.listeners = list["ControllerSession"]()
        """The sessions of controllers, which receive the events of the switch."""
        datapath.load((), ())
        for port in tuple(self.ports.values()):
            self.port_changed(port.number, up=interfaces.look(port.name).up)

    # --- changes ----------------------------------------------------------------------------------

    def change(self, mods: Sequence[Mod], now_ns: int) -> list[tuple[int, OpenFlowError]]:
        """Make changes by one load of the datapath, so that packets meet all of them or none.

        If the datapath lacks room, the changes that fit are made and the others are refused.

        Returns:
            The refused changes, by their index, with their errors.
        """
        if not mods:
            return []
        update = TableUpdate(self.tables, self.ports.keys(), now_ns)
        update.make(mods)
        try:
            self._load(update, now_ns)
        except (FabricError, OpenFlowError) as fault:
            if len(mods) == 1:
                return [(0, _refusal(mods[0], fault))]
            middle = len(mods) // 2
            first = self.change(mods[:middle], now_ns)
            later = self.change(mods[middle:], now_ns)
            return first + [(place + middle, error) for place, error in later]
        return update.refused

    def _load(self, update: TableUpdate, now_ns: int) -> None:
        """Load updated tables, and report removed entries to all controllers.

        Nothing has changed if FabricError or OpenFlowError is raised.
        """
        if not update.is_changed:
            return
        tables = update.tables
        after = pipeline(tables)
        is_multi_table = after.is_multi_table or self._pipeline.is_multi_table
        removed = [removal.entry for removal in update.removed]
        if is_multi_table or update.resets_counters or self.tables.groups:
            self._read_counters(now_ns)
        elif removed:
            visited = {entry.flow.key: entry_counters((entry,)) for entry in removed}
            self._read_counters(now_ns, visited)
        self.datapath.load(after.flows, tuple(after.groups.values()))
        removals = tuple(
            replace(removal, count=self._counters.count(removal.entry.serial))
            for removal in update.removed
            if removal.entry.notifies_removal
        )
        old, new = self.tables.groups, tables.groups
        groups = [n for n in old if n not in new or new[n].created_ns != old[n].created_ns]
        flows: Collection[FlowKey] = (
            set(self._pipeline.entries) - set(after.entries)
            if is_multi_table
            else [entry.flow.key for entry in removed if entry.key not in tables.entries]
        )
        if removed or flows or groups:
            self._counters.remove(removed, flows, groups)
        self.tables, self._pipeline = tables, after
        self.has_timeouts = bool([e for e in tables.entries.values() if e.idle_s or e.hard_s])
        for listener in self.listeners:
            listener.send_flows_removed(removals, now_ns)

    def expire(self, now_ns: int) -> None:
        """Remove the entries whose timeout has passed."""
        if any(entry.idle_s for entry in self.tables.entries.values()):
            self._read_counters(now_ns)
        update = TableUpdate(self.tables, self.ports.keys(), now_ns)
        update.expire({key: count.used_ns for key, count in self._counters.counts.items()})
        self._load(update, now_ns)

    # --- counters ---------------------------------------------------------------------------------

    def _read_counters(self, now_ns: int, visited: Visited | None = None) -> None:
        """Read the datapath's counters of all flows, or of those in `visited`."""
        counters = self.datapath.counters(None if visited is None else visited.keys())
        among = self._pipeline.counters if visited is None else {k: visited[k] for k in counters}
        self._counters.update(counters, among, now_ns)

    def selected_entries(
        self, request: FlowStatsRequest, now_ns: int
    ) -> list[tuple[FlowEntry, TrafficCount]]:
        """Return the entries that a statistics request selects, with their counters."""
        counters = self.counters(now_ns)
        return [(entry, counters.count(entry.serial)) for entry in self.tables.selected(request)]

    def counters(self, now_ns: int) -> SwitchCounters:
        """Return the counters of entries, tables and groups."""
        self._read_counters(now_ns)
        return self._counters

    # --- packets ----------------------------------------------------------------------------------

    def send(self, out: PacketOut) -> None:
        """Execute a packet-out, which only port counters include.

        Raises:
            OpenFlowError: If the packet-out is invalid.
        """
        if out.buffer != ofp.NO_BUFFER:
            raise OpenFlowError(ErrorCode.BUFFER_UNKNOWN, f"no buffer {out.buffer:#x}")
        if out.in_port not in self.ports and out.in_port != ofp.PortNumber.CONTROLLER:
            raise OpenFlowError(ErrorCode.BAD_PORT, f"port {out.in_port:#x}")
        if (port := _only_port(out.actions)) in self.ports and port != out.in_port:
            self._send(port, out.frame)
            return
        actions = tuple(action for action in out.actions if action != TO_TABLE)
        check_ports(actions, self.ports.keys())
        check_groups(actions, self.tables.groups)
        self._emit(Flow(_ANY, 0, actions), None, out.in_port, out.frame)
        for place, action in enumerate(out.actions):
            if action == TO_TABLE:
                fields = (before for before in out.actions[:place] if isinstance(before, SetField))
                frame = rewritten_frame(out.frame, ((field.name, field.value) for field in fields))
                self._process(out.in_port, frame)

    def _process(self, in_port: int, frame: bytes) -> None:
        """Process a packet by the flow tables."""
        packet = packet_fields(frame, in_port)
        fitting = (flow for flow in self._pipeline.flows if flow.match.fits(packet))
        if flow := max(fitting, key=lambda flow: flow.rank, default=None):
            self._emit(flow, flow.key, in_port, frame)

    def _emit(self, flow: Flow, key: FlowKey | None, in_port: int, frame: bytes) -> None:
        slot = select_slot(packet_fields(frame, in_port)) if flow.uses_groups else 0
        for emission in emissions(flow, self.tables.groups, slot, self.ports):
            emitted = rewritten_frame(frame, emission.rewrites)
            if emission.port == CONTROLLER:
                head = emitted[: emission.max_len]
                self.publish_packets([PuntedPacket(in_port, head, len(emitted), key)])
            for port in emission.output_ports(in_port, self.ports):
                self._send(port, emitted)

    def _send(self, port: int, frame: bytes) -> None:
        """Send a frame; OpenFlow has no error for a port that is down."""
        try:
            self.datapath.send(port, frame)
        except FabricError as fault:
            log.info("not sent", extra={"datapath": f"{self.datapath_id:016x}", "why": str(fault)})

    def last_entry(self, key: FlowKey | None) -> FlowEntry | None:
        """Return the last entry that a flow's packets visit; None if the flow is removed."""
        if key is None:
            return None
        if not self._pipeline.is_multi_table:
            return self.tables.entries.get((0, key[1], key[0]))
        visited = self._pipeline.entries.get(key)
        return visited[-1] if visited else None

    # --- events -----------------------------------------------------------------------------------

    def port_changed(self, number: int, *, up: bool) -> Port | None:
        """Report the carrier of a port, and return the port if it has changed."""
        old = self.ports.get(number)
        if old is None or old.up == up:
            return None
        self.datapath.port_changed(number, up=up)
        return self.ports[number]

    def publish_packets(self, packets: Iterable[PuntedPacket]) -> None:
        """Send packets to all controllers."""
        for listener in self.listeners:
            listener.send_packet_ins(packets)


def _only_port(actions: Sequence[object]) -> int:
    """Return the port of a packet-out that only sends its frame out of one port; else 0."""
    return only.port if len(actions) == 1 and isinstance(only := actions[0], Output) else 0


def _refusal(mod: Mod, fault: FabricError | OpenFlowError) -> OpenFlowError:
    """Return the OpenFlow error for a failed message; a FabricError means a full table."""
    if isinstance(fault, OpenFlowError):
        return fault
    full = ErrorCode.FLOW_TABLE_FULL if isinstance(mod, FlowMod) else ErrorCode.GROUP_OUT_OF_GROUPS
    return OpenFlowError(full, str(fault))
