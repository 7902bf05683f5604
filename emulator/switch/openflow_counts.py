"""What entries, tables and groups have carried, from what a datapath has counted flow by flow: an entry may be many flows there, and keeps its count through changes of them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from emulator.switch.entry import Entry
from emulator.switch.flow import Action, FlowKey, GroupKind, ToGroup
from emulator.switch.openflow_groups import GroupEntry
from emulator.switch.seam import Count

_NONE = Count()
Part = tuple[int, int | None]
"""A group by its number, or one of its buckets by its place."""


@dataclass(frozen=True)
class Carried:
    """What something has carried, and when it was last seen to have carried more."""

    packets: int = 0
    bytes: int = 0
    used_ns: int = 0

    def plus(self, packets: int, bytes_: int, now_ns: int) -> "Carried":
        return Carried(self.packets + packets, self.bytes + bytes_, now_ns)


@dataclass(frozen=True)
class TableCount:
    """Packets that have come to a table from the one before, and those that one of its entries has taken."""

    came: int = 0
    taken: int = 0


@dataclass(frozen=True)
class Path:
    """What a flow's packets meet: entries, in order, and then groups and buckets, each as often as a packet goes through it."""

    entries: tuple[Entry, ...]
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Ledger:
    """What each entry (by its serial), table and group has carried, and what the datapath's counters said when that was written down."""

    carried: Mapping[int, Carried] = field(default_factory=dict)
    seen: Mapping[FlowKey, Count] = field(default_factory=dict)
    tables: Mapping[int, TableCount] = field(default_factory=dict)
    groups: Mapping[Part, Carried] = field(default_factory=dict)

    def of(self, entry: Entry) -> Carried:
        return self.carried.get(entry.serial, Carried())

    def of_table(self, number: int) -> TableCount:
        return self.tables.get(number, TableCount())

    def of_group(self, number: int, bucket: int | None = None) -> Carried:
        return self.groups.get((number, bucket), Carried())

    def read(
        self, counters: Mapping[FlowKey, Count], paths: Iterable[tuple[FlowKey, Path]], now_ns: int
    ) -> "Ledger":
        """What the counters have grown by goes to all that a flow's packets meet."""
        draft = _Draft(dict(self.carried), dict(self.tables), dict(self.groups))
        seen = dict(self.seen)
        for key, path in paths:
            count, before = counters.get(key, _NONE), self.seen.get(key, _NONE)
            seen[key] = count
            if count.packets != before.packets:
                draft.add(path, count.packets - before.packets, count.bytes - before.bytes, now_ns)
        return Ledger(draft.carried, seen, draft.tables, draft.groups)

    def without(
        self, gone: Iterable[Entry], flows: Iterable[FlowKey], groups: Iterable[int] = ()
    ) -> "Ledger":
        """Entries and groups that are no more are forgotten, and so are the counters of flows that the datapath has no more. Tables remember."""
        serials, numbers = {entry.serial for entry in gone}, frozenset(groups)
        carried = {serial: it for serial, it in self.carried.items() if serial not in serials}
        seen = dict(self.seen)
        for key in flows:
            seen.pop(key, None)
        kept = {part: it for part, it in self.groups.items() if part[0] not in numbers}
        return replace(self, carried=carried, seen=seen, groups=kept)


@dataclass
class _Draft:
    carried: dict[int, Carried]
    tables: dict[int, TableCount]
    groups: dict[Part, Carried]

    def add(self, path: Path, packets: int, bytes_: int, now_ns: int) -> None:
        for entry in path.entries:
            had = self.carried.get(entry.serial, Carried())
            self.carried[entry.serial] = had.plus(packets, bytes_, now_ns)
            self._add_table(entry.table, taken=packets)
            if entry.instructions.goto is not None:
                self._add_table(entry.instructions.goto, came=packets)
        for part in path.parts:
            self.groups[part] = self.groups.get(part, Carried()).plus(packets, bytes_, now_ns)

    def _add_table(self, number: int, came: int = 0, taken: int = 0) -> None:
        had = self.tables.get(number, TableCount())
        self.tables[number] = TableCount(had.came + came, had.taken + taken)


def parts(actions: Iterable[Action], groups: Mapping[int, GroupEntry]) -> Iterator[Part]:
    """The groups and buckets that every packet of these actions goes through.

    Of a select or fast-failover group it is the group, and not the bucket: which one a packet took is known to the datapath alone.
    """
    for action in actions:
        if not isinstance(action, ToGroup) or action.id not in groups:
            continue
        group = groups[action.id].group
        yield group.id, None
        if counts_buckets(group.kind):
            for place, bucket in enumerate(group.buckets):
                yield group.id, place
                yield from parts(bucket.actions, groups)


def counts_buckets(kind: GroupKind) -> bool:
    """Whether every packet of such a group goes through every bucket."""
    return kind in {GroupKind.ALL, GroupKind.INDIRECT}


def is_counted(number: int, groups: Mapping[int, GroupEntry]) -> bool:
    """Whether all that goes through a group is known: not where a select or fast-failover group leads to it, through others or not."""
    leading = [other for other, entry in groups.items() if number in entry.goes_through]
    return all(counts_buckets(groups[other].group.kind) and is_counted(other, groups) for other in leading)
