"""A switch as its controllers leave it: tables, counts, ports, and the datapath that follows. It outlives every connection."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from emulator.switch.entry import Entry
from emulator.switch.flow import ALL, CONTROLLER, IN_PORT, Flow, FlowKey, SetField, ToGroup
from emulator.switch.match import Match
from emulator.switch.memory import rewritten
from emulator.switch.messages import FlowMod, FlowsAsked, GroupMod, PacketOut
from emulator.switch.openflow_actions import ToTable
from emulator.switch.openflow_counts import Carried, Ledger, Path
from emulator.switch.openflow_groups import check_ports
from emulator.switch.openflow_numbers import NO_BUFFER, OpenFlowError, PortNumber, Reason, Refusal, Removed
from emulator.switch.openflow_pipeline import Pipeline, pipeline
from emulator.switch.openflow_ports import Interface, Interfaces
from emulator.switch.packet import fields
from emulator.switch.seam import Datapath, Port, Punt
from emulator.switch.steps import Emission, emissions, slot
from emulator.switch.table import Changed, Gone, Tables, changed
from moefabric.errors import FabricError

log = logging.getLogger(__name__)

Mod = FlowMod | GroupMod


@dataclass(frozen=True)
class Departure:
    """An entry that has gone, why, and what it had carried."""

    entry: Entry
    why: Removed
    carried: Carried


@dataclass(frozen=True)
class Arrival:
    """A packet for the controller: why and by which entry (None: of a packet-out), where it came in, its first bytes and its whole length."""

    reason: Reason
    entry: Entry | None
    in_port: int
    frame: bytes
    length: int


@dataclass(frozen=True)
class Done:
    """What came of some messages: those refused, by their place, and the entries that are no more."""

    refused: tuple[tuple[int, OpenFlowError], ...] = ()
    departed: tuple[Departure, ...] = ()


class Listener(Protocol):
    """Whom a switch tells what happens to it."""

    def tell_arrivals(self, arrivals: Iterable[Arrival]) -> None: ...
    def tell_departures(self, departed: Iterable[Departure], now_ns: int) -> None: ...
    def tell_port(self, port: Port) -> None: ...
    def yield_to_master(self) -> None: ...
    def finish(self, now_ns: int) -> None: ...


class Switch:
    """A datapath with what OpenFlow knows of it. Time comes in by the door, in ns of a clock that never goes back."""

    def __init__(self, datapath_id: int, datapath: Datapath, interfaces: Interfaces, now_ns: int) -> None:
        """The datapath starts empty: whatever it had is taken out."""
        self.datapath_id, self.datapath, self.interfaces = datapath_id, datapath, interfaces
        self.tables, self._ledger, self._pipeline = Tables(), Ledger(), Pipeline((), {}, ())
        self.ports: dict[int, Port] = dict(datapath.ports)
        self.made_ns, self.generation = now_ns, -1
        self.times_out = False
        """Whether `expire` is to be called now and then."""
        self.listeners = list[Listener]()
        datapath.load((), ())
        for port in tuple(self.ports.values()):
            self.port_changed(port.number, up=self.interface(port).up)

    # --- changes -----------------------------------------------------------------------------------------------------

    def change(self, mods: Sequence[Mod], now_ns: int) -> Done:
        """Do all of it by one load of the datapath: packets meet all of it or nothing.

        Where the datapath has no room, as much is done as there is room for, and the rest is refused, message by message.
        """
        if not mods:
            return Done()
        asked = changed(self.tables, mods, self.ports.keys(), now_ns)
        try:
            departed = self._follow(asked, now_ns)
        except (FabricError, OpenFlowError) as fault:
            if len(mods) > 1:
                return self._by_halves(mods, now_ns)
            return Done(((0, _refusal(mods[0], fault)),))
        return Done(asked.refused, departed)

    def _by_halves(self, mods: Sequence[Mod], now_ns: int) -> Done:
        middle = len(mods) // 2
        first, second = self.change(mods[:middle], now_ns), self.change(mods[middle:], now_ns)
        later = tuple((place + middle, error) for place, error in second.refused)
        return Done((*first.refused, *later), (*first.departed, *second.departed))

    def _follow(self, asked: Changed, now_ns: int) -> tuple[Departure, ...]:
        """Have the datapath do what the tables say. FabricError or OpenFlowError leaves everything as it was."""
        if not asked.touched:
            return ()
        made = pipeline(asked.tables)
        several = made.several or self._pipeline.several
        if several or asked.recounted or self.tables.groups:
            self._count(now_ns)
        elif asked.gone:
            self._count(now_ns, {each.entry.flow.key: Path((each.entry,)) for each in asked.gone})
        self.datapath.load(made.flows, made.groups)
        departed = tuple(self._departures(asked.gone))
        gone = self._gone_flows(asked, made, several=several)
        before, after = self.tables.groups, asked.tables.groups
        groups = [it for it in before if it not in after or after[it].made_ns != before[it].made_ns]
        self._ledger = self._ledger.without((each.entry for each in asked.gone), gone, groups)
        self.tables, self._pipeline = asked.tables, made
        self.times_out = any(entry.idle_s or entry.hard_s for entry in asked.tables.entries.values())
        return departed

    def _gone_flows(self, asked: Changed, made: Pipeline, *, several: bool) -> Iterable[FlowKey]:
        if several:
            return set(self._pipeline.entries) - set(made.entries)
        return [each.entry.flow.key for each in asked.gone if each.entry.key not in asked.tables.entries]

    def _departures(self, gone: Iterable[Gone]) -> Iterator[Departure]:
        return (
            Departure(each.entry, each.why, self._ledger.of(each.entry)) for each in gone if each.entry.tells
        )

    def expire(self, now_ns: int) -> tuple[Departure, ...]:
        """Take out the entries whose time is out."""
        if any(entry.idle_s for entry in self.tables.entries.values()):
            self._count(now_ns)
        used = {serial: carried.used_ns for serial, carried in self._ledger.carried.items()}
        left, gone = self.tables.timed_out(used, now_ns)
        return self._follow(Changed(left, gone=gone, touched=bool(gone)), now_ns)

    # --- what is asked -----------------------------------------------------------------------------------------------

    def _count(self, now_ns: int, paths: Mapping[FlowKey, Path] | None = None) -> None:
        """Write down what flows have carried: all of them, or those of `paths` that there are."""
        counters = self.datapath.counters(None if paths is None else paths.keys())
        among = self._pipeline.paths if paths is None else {key: paths[key] for key in counters}
        self._ledger = self._ledger.read(counters, among.items(), now_ns)

    def flows(self, asked: FlowsAsked, now_ns: int) -> list[tuple[Entry, Carried]]:
        """The entries that are asked about, with what they have carried until now."""
        self._count(now_ns)
        return [(entry, self._ledger.of(entry)) for entry in self.tables.asked(asked)]

    def counted(self, now_ns: int) -> Ledger:
        """What entries, tables and groups have carried until now."""
        self._count(now_ns)
        return self._ledger

    def interface(self, port: Port) -> Interface:
        return self.interfaces.look(port.name) or Interface(up=False)

    # --- packets -----------------------------------------------------------------------------------------------------

    def send(self, out: PacketOut) -> list[Arrival]:
        """Do a packet-out; what of it goes to the controller. OpenFlowError if it can't be.

        Counters don't count it, except those of the ports it leaves by.
        """
        if out.buffer != NO_BUFFER:
            raise OpenFlowError(Refusal.BUFFER_UNKNOWN, f"buffer {out.buffer:#x}: there are none")
        if out.in_port not in self.ports and out.in_port != PortNumber.CONTROLLER:
            raise OpenFlowError(Refusal.BAD_PORT, f"port {out.in_port:#x}")
        listed = [action for action in out.actions if not isinstance(action, ToTable)]
        check_ports(listed, self.ports.keys())
        for action in listed:
            if isinstance(action, ToGroup) and action.id not in self.tables.groups:
                raise OpenFlowError(Refusal.ACTION_BAD_OUT_GROUP, f"group {action.id}")
        back = self._emit(Flow(Match(), 0, tuple(listed)), None, out.in_port, out.frame)
        for place, each in enumerate(out.actions):
            if isinstance(each, ToTable):
                before = [set_ for set_ in out.actions[:place] if isinstance(set_, SetField)]
                frame = rewritten(out.frame, ((set_.name, set_.value) for set_ in before))
                back += self._through_tables(out.in_port, frame)
        return back

    def _through_tables(self, in_port: int, frame: bytes) -> list[Arrival]:
        packet = fields(frame, in_port)
        taking = (flow for flow in self._pipeline.flows if flow.match.fits(packet))
        flow = max(taking, key=lambda flow: flow.rank, default=None)
        return self._emit(flow, self._entry(flow.key), in_port, frame) if flow else []

    def _emit(self, flow: Flow, entry: Entry | None, in_port: int, frame: bytes) -> list[Arrival]:
        groups = {number: each.group for number, each in self.tables.groups.items()}
        back = list[Arrival]()
        for emission in emissions(flow, groups, slot(fields(frame, in_port)), self._is_up):
            dressed = rewritten(frame, emission.rewritten)
            if emission.port is CONTROLLER:
                kept = dressed[: emission.max_len]
                back.append(Arrival(_reason(entry), entry, in_port, kept, len(dressed)))
            for port in self._ports_of(emission, in_port):
                self._send(port, dressed)
        return back

    def _send(self, port: int, frame: bytes) -> None:
        """A port that is down takes nothing, and OpenFlow has no word for that."""
        try:
            self.datapath.send(port, frame)
        except FabricError as fault:
            log.info("not sent", extra={"datapath": f"{self.datapath_id:016x}", "why": str(fault)})

    def _ports_of(self, emission: Emission, in_port: int) -> Sequence[int]:
        if emission.port is IN_PORT:
            return [in_port] if in_port in self.ports else []
        if emission.port is ALL:
            return [number for number in sorted(self.ports) if number != in_port]
        return [emission.port] if isinstance(emission.port, int) and emission.port != in_port else []

    def _is_up(self, number: int) -> bool:
        return number in self.ports and self.ports[number].up

    def arrivals(self) -> Iterator[Arrival]:
        """What flows have sent to the controller since the last call."""
        return (self._arrival(punt) for punt in self.datapath.received())

    def _arrival(self, punt: Punt) -> Arrival:
        entry = self._entry(punt.flow)
        return Arrival(_reason(entry), entry, punt.in_port, punt.frame, punt.length)

    def _entry(self, key: FlowKey) -> Entry | None:
        """The last entry that a flow's packets meet; None if the flow has gone while the packet was on its way."""
        if not self._pipeline.several:
            return self.tables.entries.get((0, key[1], key[0]))
        met = self._pipeline.entries.get(key)
        return met[-1] if met else None

    # --- ports -------------------------------------------------------------------------------------------------------

    def port_changed(self, number: int, *, up: bool) -> Port | None:
        """A port has carrier, or has none any more; the port as it is then, or None if it was so before."""
        old = self.ports.get(number)
        if old is None or old.up == up:
            return None
        self.ports[number] = replace(old, up=up)
        self.datapath.port_changed(number, up=up)
        return self.ports[number]


def _reason(entry: Entry | None) -> Reason:
    return Reason.NO_MATCH if entry and entry.is_miss else Reason.ACTION


def _refusal(mod: Mod, fault: Exception) -> OpenFlowError:
    """Why one message can't be done: its own code, or that the datapath has no room for it."""
    if isinstance(fault, OpenFlowError):
        return fault
    full = Refusal.FLOW_TABLE_FULL if isinstance(mod, FlowMod) else Refusal.GROUP_OUT_OF_GROUPS
    return OpenFlowError(full, str(fault))
