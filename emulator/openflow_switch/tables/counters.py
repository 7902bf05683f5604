"""Counters of entries, tables and groups (OpenFlow 1.3.5, 5.8), derived from a datapath's.

A datapath counts by flow. An entry may become several flows of the datapath, and keeps its counters
when these flows change.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from moefabric.core.openflow.actions import Action, group_ids
from moefabric.core.openflow.constants import GroupType
from moefabric.emulator.openflow_switch.datapath.emissions import ordered_actions
from moefabric.emulator.openflow_switch.datapath.interface import FlowCount, FlowKey, Groups
from moefabric.emulator.openflow_switch.tables.entries import FlowEntry

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
