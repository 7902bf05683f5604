"""Counters of entries, tables and groups (OpenFlow 1.3.5, 5.8), derived from a datapath's.

A datapath counts by flow. An entry may become several flows of the datapath, and keeps its counters
when these flows change.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from moefabric.core.openflow.actions import Action, ToGroup
from moefabric.core.openflow.constants import GroupType
from moefabric.emulator.openflow_switch.datapath.interface import FlowCount
from moefabric.emulator.openflow_switch.flows.flow import FlowKey
from moefabric.emulator.openflow_switch.tables.flow_entry import FlowEntry
from moefabric.emulator.openflow_switch.tables.group_entry import GroupEntry

_ZERO = FlowCount()
GroupPart = tuple[int, int | None]
"""Number of a group, and the index of one of its buckets or None for the whole group."""


@dataclass(frozen=True)
class TrafficCount:
    """Packets and bytes, and the time when an increase was last observed."""

    packets: int = 0
    bytes: int = 0
    used_ns: int = 0

    def plus(self, increase: FlowCount, now_ns: int) -> "TrafficCount":
        """Return the count after an increase."""
        packets, octets = self.packets + increase.packets, self.bytes + increase.bytes
        return TrafficCount(packets, octets, now_ns)


@dataclass(frozen=True)
class TableCount:
    """Packets that an earlier table sent to a table, and packets that matched an entry there."""

    lookups: int = 0
    matches: int = 0


@dataclass(frozen=True)
class FlowPath:
    """The entries that the packets of a flow visit, in order, and their groups and buckets.

    A group or bucket occurs as often as a packet visits it.
    """

    entries: tuple[FlowEntry, ...]
    parts: tuple[GroupPart, ...] = ()


@dataclass(frozen=True)
class SwitchCounters:
    """Counters of entries (by serial), tables and groups.

    `flows` are the datapath's counters at the last update.
    """

    entries: Mapping[int, TrafficCount] = field(default_factory=dict)
    flows: Mapping[FlowKey, FlowCount] = field(default_factory=dict)
    tables: Mapping[int, TableCount] = field(default_factory=dict)
    groups: Mapping[GroupPart, TrafficCount] = field(default_factory=dict)

    def entry(self, entry: FlowEntry) -> TrafficCount:
        """Return the counters of a flow entry."""
        return self.entries.get(entry.serial, TrafficCount())

    def table(self, number: int) -> TableCount:
        """Return the counters of a flow table."""
        return self.tables.get(number, TableCount())

    def group(self, number: int, bucket: int | None = None) -> TrafficCount:
        """Return the counters of a group, or of one of its buckets."""
        return self.groups.get((number, bucket), TrafficCount())

    def updated(
        self,
        counters: Mapping[FlowKey, FlowCount],
        paths: Iterable[tuple[FlowKey, FlowPath]],
        now_ns: int,
    ) -> "SwitchCounters":
        """Add the increase of the datapath's counters to the objects that the packets visited."""
        entries, tables, groups = dict(self.entries), dict(self.tables), dict(self.groups)
        flows = dict(self.flows)
        for key, path in paths:
            count, before = counters.get(key, _ZERO), self.flows.get(key, _ZERO)
            flows[key] = count
            if count.packets == before.packets:
                continue
            increase = FlowCount(count.packets - before.packets, count.bytes - before.bytes)
            for entry in path.entries:
                old = entries.get(entry.serial, TrafficCount())
                entries[entry.serial] = old.plus(increase, now_ns)
                _add(tables, entry.table, TableCount(matches=increase.packets))
                if entry.instructions.goto is not None:
                    _add(tables, entry.instructions.goto, TableCount(lookups=increase.packets))
            for part in path.parts:
                groups[part] = groups.get(part, TrafficCount()).plus(increase, now_ns)
        return SwitchCounters(entries, flows, tables, groups)

    def without(
        self, removed: Iterable[FlowEntry], flows: Iterable[FlowKey], groups: Iterable[int] = ()
    ) -> "SwitchCounters":
        """Drop the counters of removed entries, flows and groups; those of tables stay."""
        serials, numbers = {entry.serial for entry in removed}, frozenset(groups)
        remaining = dict(self.flows)
        for key in flows:
            remaining.pop(key, None)
        return replace(
            self,
            entries={key: count for key, count in self.entries.items() if key not in serials},
            flows=remaining,
            groups={part: count for part, count in self.groups.items() if part[0] not in numbers},
        )


def _add(tables: dict[int, TableCount], number: int, increase: TableCount) -> None:
    old = tables.get(number, TableCount())
    tables[number] = TableCount(old.lookups + increase.lookups, old.matches + increase.matches)


def group_parts(actions: Iterable[Action], groups: Mapping[int, GroupEntry]) -> Iterator[GroupPart]:
    """Return the groups and buckets that every packet of these actions visits.

    For a select or fast-failover group, only the group is returned: the datapath alone knows which
    bucket a packet took.
    """
    for action in actions:
        if not isinstance(action, ToGroup) or action.id not in groups:
            continue
        group = groups[action.id].group
        yield group.id, None
        if executes_all_buckets(group.kind):
            for place, bucket in enumerate(group.buckets):
                yield group.id, place
                yield from group_parts(bucket.actions, groups)


def executes_all_buckets(kind: GroupType) -> bool:
    """Whether every packet of a group of this type visits every bucket."""
    return kind in {GroupType.ALL, GroupType.INDIRECT}


def is_group_counted(number: int, groups: Mapping[int, GroupEntry]) -> bool:
    """Whether all packets of a group are counted.

    Some packets are not counted if a select or fast-failover group leads to the group, directly or
    through other groups.
    """
    previous = [other for other, entry in groups.items() if number in entry.next_groups]
    return all(
        executes_all_buckets(groups[other].group.kind) and is_group_counted(other, groups)
        for other in previous
    )
