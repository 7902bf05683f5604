"""Flattens the flow tables of a switch into the single table that a datapath has.

An entry with a goto-table instruction becomes one flow for each entry of the next table that its
packets can match (after the fields that the first entry sets), and one flow for the packets that
match no entry of the next table, which stop there. Flows are ordered by the priority of their first
entry, then by that of the next. Without goto-table instructions, the entries of table 0 are the
flows.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from moefabric.core.openflow.actions import Action, SetField
from moefabric.core.openflow.constants import ErrorCode, OpenFlowError
from moefabric.core.openflow.match import Match
from moefabric.emulator.openflow_switch.datapath.emissions import ordered_actions
from moefabric.emulator.openflow_switch.datapath.interface import Flow, FlowKey, Groups
from moefabric.emulator.openflow_switch.tables.counters import (
    CounterKey,
    entry_counters,
    group_counters,
)
from moefabric.emulator.openflow_switch.tables.entries import FlowEntry
from moefabric.emulator.openflow_switch.tables.flow_tables import FlowTables

MAX_FLOWS: Final = 65536
"""Maximum number of flows of several tables: each needs its own 16-bit priority."""


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
