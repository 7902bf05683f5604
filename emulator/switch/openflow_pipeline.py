"""Several flow tables as the one that a datapath has.

An entry that goes on to another table stands for the packets that it and an entry there share, what it rewrites taken into account, and for those
that find nothing there, which go no further. Of the entries that a packet meets, the datapath's priority follows that of the first, then that of the
next. If no entry goes on to another table, entries of table 0 are flows as they are, and nothing else ever sees a packet.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from emulator.switch.entry import Entry
from emulator.switch.flow import Action, Flow, FlowKey, Group, SetField
from emulator.switch.match import Match
from emulator.switch.openflow_counts import Path, parts
from emulator.switch.openflow_groups import GroupEntry, in_order
from emulator.switch.openflow_match import meet
from emulator.switch.openflow_numbers import OpenFlowError, Refusal
from emulator.switch.table import Tables

FLOWS: Final = 65536
"""The most that several tables may make as one: each has a rank of its own in a datapath's 16 bits of priority."""


@dataclass(frozen=True)
class _Way:
    """A way through the tables: the entries met, what packets take it, what has been done to them and what is yet to be."""

    met: tuple[Entry, ...]
    match: Match
    done: tuple[Action, ...]
    last: tuple[Action, ...]

    @property
    def rank(self) -> tuple[int, ...]:
        return tuple(entry.priority for entry in self.met)


@dataclass(frozen=True)
class Pipeline:
    """What a datapath is told, and which entries each of its flows stands for."""

    flows: tuple[Flow, ...]
    described: Mapping[int, GroupEntry]
    met: tuple[tuple[Entry, ...], ...]
    several: bool = False

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        return tuple(entry.group for entry in self.described.values())

    @cached_property
    def entries(self) -> Mapping[FlowKey, tuple[Entry, ...]]:
        """The entries that a packet of a flow has met, in order."""
        return {flow.key: met for flow, met in zip(self.flows, self.met, strict=True)}

    @cached_property
    def paths(self) -> Mapping[FlowKey, Path]:
        """What packets of a flow meet."""
        return {
            flow.key: Path(met, tuple(parts(flow.actions, self.described)) if flow.through_groups else ())
            for flow, met in zip(self.flows, self.met, strict=True)
        }


def pipeline(tables: Tables) -> Pipeline:
    """OpenFlowError (FLOW_TABLE_FULL) where several tables make more flows than a datapath can tell apart."""
    if all(entry.instructions.goto is None for entry in tables.entries.values()):
        first = [entry for entry in tables.entries.values() if entry.table == 0]
        return Pipeline(
            tuple(entry.flow for entry in first), tables.groups, tuple((entry,) for entry in first)
        )
    by_table = dict[int, list[Entry]]()
    for entry in tables.entries.values():
        by_table.setdefault(entry.table, []).append(entry)
    ways = dict[tuple[tuple[int, ...], Match], _Way]()
    for entry in by_table.get(0, ()):
        for way in _ways(_Way((), Match(), (), ()), entry, by_table):
            # Where two entries of one priority share packets, OpenFlow leaves it open which takes them.
            ways.setdefault((way.rank, way.match), way)
            if len(ways) > FLOWS:
                raise OpenFlowError(Refusal.FLOW_TABLE_FULL, f"more than {FLOWS} flows over several tables")
    ranks = {rank: place for place, rank in enumerate(sorted({way.rank for way in ways.values()}))}
    flows = tuple(
        Flow(way.match, ranks[way.rank], (*way.done, *in_order(way.last)), way.met[-1].cookie)
        for way in ways.values()
    )
    return Pipeline(flows, tables.groups, tuple(way.met for way in ways.values()), several=True)


def _ways(before: _Way, entry: Entry, by_table: Mapping[int, list[Entry]]) -> Iterator[_Way]:
    """Every way that goes on from `before` by this entry."""
    match = _met(before, entry.match)
    if match is None:
        return
    told = entry.instructions
    last = (*(() if told.clear else before.last), *told.write)
    way = _Way((*before.met, entry), match, (*before.done, *told.apply), last)
    if told.goto is None:
        yield way
        return
    yield _Way(way.met, match, way.done, ())  # where no entry of the next table takes the packet (5.4)
    for following in by_table.get(told.goto, ()):
        yield from _ways(way, following, by_table)


def _met(before: _Way, match: Match) -> Match | None:
    """The packets, as they came in, that are of `match` when they get there; None if none can be."""
    now = {action.name: action.value for action in before.done if isinstance(action, SetField)}
    asked = dict(match.masked)
    for name, value in now.items():
        wanted, mask = asked.pop(name, (0, 0))
        if value & mask != wanted:
            return None
    return meet(before.match, Match(**asked))
