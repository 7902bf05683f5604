"""Flattens the flow tables of a switch into the single table that a datapath has.

An entry with a goto-table instruction becomes one flow for each entry of the next table that its
packets can match (after the fields that the first entry sets), and one flow for the packets that
match no entry of the next table, which stop there. Flows are ordered by the priority of their first
entry, then by that of the next. Without goto-table instructions, the entries of table 0 are the
flows.

Counters of entries, tables and groups (OpenFlow 1.3.5, 5.8) are derived from a datapath's, which
counts by flow. An entry may become several flows of the datapath, and keeps its counters when these
flows change.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from moefabric.core.openflow.actions import Action, SetField, group_ids
from moefabric.core.openflow.constants import ErrorCode, GroupType, OpenFlowError
from moefabric.core.openflow.match import Match
from moefabric.emulator.openflow_switch.datapath.emissions import ordered_actions
from moefabric.emulator.openflow_switch.datapath.interface import Flow, FlowCount, FlowKey, Groups
from moefabric.emulator.openflow_switch.tables.flow_tables import FlowEntry, FlowTables

MAX_FLOWS: Final = 65536
"""Maximum number of flows of several tables: each needs its own 16-bit priority."""
CounterKey = int | tuple[str | int, int | None]
"""Key of a counter: the entry, table or group that it counts.

* A serial: the packets of an entry.
* ("matches", table), ("lookups", table): the packets that matched an entry of a table, and those
  that an earlier table sent there.
* (group, bucket): the packets of a bucket; (group, None): those of the whole group.
"""
Visited = Mapping[FlowKey, Iterable[CounterKey]]
"""The counters of what the packets of each flow visit."""


@dataclass(frozen=True)
class _TablePath:
    """A path of packets through the tables.

    `match` selects the packets as they arrive. `applied` actions are executed along the path, the
    `action_set` at its end.
    """

    entries: tuple[FlowEntry, ...]
    match: Match
    applied: tuple[Action, ...]
    action_set: tuple[Action, ...] = ()

    @property
    def rank(self) -> tuple[int, ...]:
        return tuple(entry.priority for entry in self.entries)


@dataclass(frozen=True)
class Pipeline:
    """The flows for a datapath, and the entries that the packets of each flow visit.

    `visited` has the entries of each flow in the order of `flows`.
    """

    flows: Sequence[Flow]
    groups: Groups
    visited: Sequence[tuple[FlowEntry, ...]]
    is_multi_table: bool = False

    @cached_property
    def entries(self) -> Mapping[FlowKey, tuple[FlowEntry, ...]]:
        """The entries that the packets of a flow visit, in order."""
        return {flow.key: path for flow, path in zip(self.flows, self.visited, strict=True)}

    @cached_property
    def counters(self) -> Mapping[FlowKey, tuple[CounterKey, ...]]:
        """The counters of what the packets of a flow visit, each as often as they visit it."""
        return {
            flow.key: (
                *entry_counters(entries),
                *(group_counters(flow.actions, self.groups) if flow.uses_groups else ()),
            )
            for flow, entries in zip(self.flows, self.visited, strict=True)
        }


def pipeline(tables: FlowTables) -> Pipeline:
    """Flatten flow tables into one.

    Raises:
        OpenFlowError: FLOW_TABLE_FULL if several tables make more than MAX_FLOWS flows.
    """
    # Lists, because generators take twice as long, and a reconfiguration waits for this.
    entries = tables.entries.values()
    if not [entry for entry in entries if entry.instructions.goto is not None]:
        first = [entry for entry in entries if entry.table == 0]
        return Pipeline([entry.flow for entry in first], tables.groups, list(zip(first)))
    by_table = defaultdict[int, list[FlowEntry]](list)
    for entry in tables.entries.values():
        by_table[entry.table].append(entry)
    paths = dict[tuple[tuple[int, ...], Match], _TablePath]()
    for entry in by_table[0]:
        for path in _paths(_TablePath((), Match(), ()), entry, by_table):
            # OpenFlow does not define which of two overlapping entries of equal priority matches.
            paths.setdefault((path.rank, path.match), path)
            if len(paths) > MAX_FLOWS:
                detail = f"more than {MAX_FLOWS} flows over several tables"
                raise OpenFlowError(ErrorCode.FLOW_TABLE_FULL, detail)
    ranks = {rank: n for n, rank in enumerate(sorted({path.rank for path in paths.values()}))}
    flows = tuple(
        Flow(path.match, ranks[path.rank], (*path.applied, *ordered_actions(path.action_set)))
        for path in paths.values()
    )
    visited = tuple(path.entries for path in paths.values())
    return Pipeline(flows, tables.groups, visited, is_multi_table=True)


def _paths(
    before: _TablePath, entry: FlowEntry, by_table: Mapping[int, list[FlowEntry]]
) -> Iterator[_TablePath]:
    """Yield all continuations of a path by an entry."""
    match = _arriving(before, entry.match)
    if match is None:
        return
    instructions = entry.instructions
    action_set = (*(() if instructions.clear else before.action_set), *instructions.write)
    applied = (*before.applied, *instructions.apply)
    path = _TablePath((*before.entries, entry), match, applied, action_set)
    if instructions.goto is None:
        yield path
        return
    # A packet that matches no entry of the next table stops without its action set (5.4).
    yield _TablePath(path.entries, match, applied)
    for following in by_table.get(instructions.goto, ()):
        yield from _paths(path, following, by_table)


def _arriving(before: _TablePath, match: Match) -> Match | None:
    """Return the match of arriving packets that fit `match` after a path's actions, or None."""
    fields = {field.name: field.value for field in before.applied if isinstance(field, SetField)}
    remaining = dict(match.masked)
    for name, value in fields.items():
        required, mask = remaining.pop(name, (0, 0))
        if value & mask != required:
            return None
    return before.match.intersection(Match(**remaining))


@dataclass(frozen=True)
class TrafficCount(FlowCount):
    """Packets and bytes, and the time when an increase was last observed."""

    used_ns: int = 0


_ZERO, _NO_TRAFFIC = FlowCount(), TrafficCount()


@dataclass
class SwitchCounters:
    """Counters of entries, tables and groups.

    `flows` are the datapath's counters at the last update.
    """

    counts: dict[CounterKey, TrafficCount] = field(default_factory=dict)
    flows: dict[FlowKey, FlowCount] = field(default_factory=dict)

    def count(self, key: CounterKey) -> TrafficCount:
        """Return a counter."""
        return self.counts.get(key, _NO_TRAFFIC)

    def update(self, counters: Mapping[FlowKey, FlowCount], visited: Visited, now_ns: int) -> None:
        """Add the increase of the datapath's counters of flows to what their packets visited."""
        for flow, keys in visited.items():
            count, before = counters.get(flow, _ZERO), self.flows.get(flow, _ZERO)
            self.flows[flow] = count
            if packets := count.packets - before.packets:
                octets = count.bytes - before.bytes
                for key in keys:
                    old = self.count(key)
                    new = TrafficCount(old.packets + packets, old.bytes + octets, now_ns)
                    self.counts[key] = new

    def remove(
        self, entries: Iterable[FlowEntry], flows: Iterable[FlowKey], groups: Collection[int]
    ) -> None:
        """Drop the counters of removed entries, flows and groups; those of tables stay."""
        gone: set[CounterKey] = {entry.serial for entry in entries}
        gone |= {key for key in self.counts if isinstance(key, tuple) and key[0] in groups}
        for key in gone:
            self.counts.pop(key, None)
        for flow in flows:
            self.flows.pop(flow, None)


def entry_counters(entries: Iterable[FlowEntry]) -> Iterator[CounterKey]:
    """Yield the counters of the entries and tables that a packet visits."""
    for entry in entries:
        yield entry.serial
        yield "matches", entry.table
        if entry.instructions.goto is not None:
            yield "lookups", entry.instructions.goto


def group_counters(actions: Iterable[Action], groups: Groups) -> Iterator[CounterKey]:
    """Yield the counters of the groups and buckets that every packet of these actions visits.

    For a select or fast-failover group, it is the group's only: the datapath alone knows which
    bucket a packet took.
    """
    for number in group_ids(actions):
        if number not in groups:
            continue
        group = groups[number]
        yield group.id, None
        if executes_all_buckets(group.kind):
            for place, bucket in enumerate(group.buckets):
                yield group.id, place
                yield from group_counters(ordered_actions(bucket.actions), groups)


def executes_all_buckets(kind: GroupType) -> bool:
    """Return whether every packet of a group of this type visits every bucket."""
    return kind in {GroupType.ALL, GroupType.INDIRECT}


def is_group_counted(number: int, groups: Groups) -> bool:
    """Return whether all packets of a group are counted.

    Some packets are not counted if a select or fast-failover group leads to the group, directly or
    through other groups.
    """
    previous = [other for other, group in groups.items() if number in group.next_groups]
    are_executed = all(executes_all_buckets(groups[other].kind) for other in previous)
    return are_executed and all(is_group_counted(other, groups) for other in previous)
