"""Flow tables and groups as values: flow-mods and group-mods produce new tables.

A switch has `TABLE_COUNT` flow tables. A datapath has one table, which `pipeline` computes.
Section numbers refer to OpenFlow 1.3.5.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from moefabric.core.openflow import constants as ofp
from moefabric.core.openflow.actions import Output, SetField, group_ids
from moefabric.core.openflow.constants import ErrorCode, OpenFlowError, refuse_if
from moefabric.core.openflow.match import IPV4
from moefabric.core.openflow.messages import FlowMod, FlowStatsRequest, GroupMod
from moefabric.emulator.openflow_switch.datapath.interface import Group
from moefabric.emulator.openflow_switch.tables.counters import CounterKey, TrafficCount
from moefabric.emulator.openflow_switch.tables.entries import (
    EntryKey,
    FlowEntry,
    check_groups,
    check_ports,
    new_group,
)

TABLE_COUNT: Final = 8
MAX_ENTRIES: Final = 65536
"""Maximum number of entries of all tables of a switch."""
_FLAGS: Final = sum(ofp.FlowFlag)
# Numbers, because looking an enumeration's member up takes longer than comparing it.
_ADD: Final = int(ofp.FlowCommand.ADD)
_DELETES: Final = frozenset(map(int, (ofp.FlowCommand.DELETE, ofp.FlowCommand.DELETE_STRICT)))
_MODIFIES: Final = frozenset(map(int, (ofp.FlowCommand.MODIFY, ofp.FlowCommand.MODIFY_STRICT)))
_ANY_OUTPUT: Final = (ofp.PortNumber.ANY, ofp.ANY_GROUP)
_STRICT: Final = frozenset(map(int, (ofp.FlowCommand.MODIFY_STRICT, ofp.FlowCommand.DELETE_STRICT)))


@dataclass(frozen=True)
class RemovedEntry:
    """A removed flow entry, the reason, and its counters if they are known."""

    entry: FlowEntry
    reason: ofp.RemovedReason
    count: TrafficCount = field(default_factory=TrafficCount)


@dataclass(frozen=True)
class FlowTables:
    """All flow entries and groups of a switch.

    `serials` numbers further entries, also those of later tables.
    """

    entries: dict[EntryKey, FlowEntry] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)
    serials: Iterator[int] = field(default_factory=lambda: count(1), compare=False)

    def selected(self, request: FlowStatsRequest) -> Iterator[FlowEntry]:
        """Return the entries that a statistics request selects."""
        return _selected(self.entries.values(), request)


class TableUpdate:
    """New tables, copied once for many messages. Each message succeeds or is refused by itself.

    Attributes:
        tables: The tables after the changes.
        refused: The refused messages, by their index, with their errors.
        removed: The removed entries.
        resets_counters: Whether an entry whose key existed before starts its counters at zero,
            while the datapath's counters go on.
        is_changed: Whether anything changed.
    """

    def __init__(self, tables: FlowTables, ports: AbstractSet[int], now_ns: int) -> None:
        """Start without changes; outputs may name these `ports` of the switch only."""
        self.refused, self.removed = list[tuple[int, OpenFlowError]](), list[RemovedEntry]()
        self.resets_counters, self.is_changed = False, False
        self.tables = FlowTables(dict(tables.entries), dict(tables.groups), tables.serials)
        self._entries, self._groups = self.tables.entries, self.tables.groups
        self._removed_keys, self._ports, self._now_ns = set[EntryKey](), ports, now_ns

    def make(self, mods: Iterable[FlowMod | GroupMod]) -> None:
        """Apply flow-mods and group-mods in order."""
        for place, mod in enumerate(mods):
            try:
                self._flow_mod(mod) if isinstance(mod, FlowMod) else self._group_mod(mod)
            except OpenFlowError as error:
                self.refused.append((place, error))

    def expire(self, used_ns: Mapping[CounterKey, int]) -> None:
        """Remove the entries whose timeout has passed.

        Args:
            used_ns: When entries, by serial, last took a packet.
        """
        for entry in list(self._entries.values()):
            expiry = entry.expiry(used_ns.get(entry.serial, 0))
            if expiry and expiry[0] <= self._now_ns:
                self._delete(entry, expiry[1])

    def _flow_mod(self, mod: FlowMod) -> None:
        deletes = mod.command in _DELETES
        if mod.table >= TABLE_COUNT and not (deletes and mod.table == ofp.ALL_TABLES):
            raise OpenFlowError(ErrorCode.FLOW_BAD_TABLE, f"table {mod.table}")
        if not deletes:
            self._check(mod)
        if mod.command == _ADD:
            self._add(mod)
        elif deletes:
            for entry in self._selected(mod):
                self._delete(entry, ofp.RemovedReason.DELETE)
        elif mod.command in _MODIFIES:
            for entry in self._selected(mod):
                self._modify(entry, mod)
        else:
            raise OpenFlowError(ErrorCode.FLOW_BAD_COMMAND, f"command {mod.command}")

    def _selected(self, mod: FlowMod) -> list[FlowEntry]:
        """Return the entries to modify or delete (6.4).

        A strict command selects the entry with the match and priority, another command all entries
        whose packets the match covers.
        """
        deletes = mod.command in _DELETES
        outputs = (mod.out_port, mod.out_group) if deletes else _ANY_OUTPUT
        among: Iterable[FlowEntry] = self._entries.values()
        if mod.command in _STRICT:
            tables = range(TABLE_COUNT) if mod.table == ofp.ALL_TABLES else (mod.table,)
            keys = ((table, mod.priority, mod.match) for table in tables)
            among = [entry for key in keys if (entry := self._entries.get(key))]
            if not mod.cookie_mask and outputs == _ANY_OUTPUT:
                return list(among)
        request = FlowStatsRequest(mod.match, mod.table, *outputs, mod.cookie, mod.cookie_mask)
        return list(_selected(among, request))

    def _add(self, mod: FlowMod) -> None:
        key = mod.table, mod.priority, mod.match
        old = self._entries.get(key)
        if mod.flags and mod.flags & ofp.FlowFlag.CHECK_OVERLAP and self._overlaps(mod):
            raise OpenFlowError(ErrorCode.FLOW_OVERLAP, str(mod.match))
        if old is None and len(self._entries) >= MAX_ENTRIES:
            raise OpenFlowError(ErrorCode.FLOW_TABLE_FULL, f"{MAX_ENTRIES} entries")
        resets = mod.flags and mod.flags & ofp.FlowFlag.RESET_COUNTS
        serial = old.serial if old and not resets else next(self.tables.serials)
        self.resets_counters |= key in self._removed_keys or bool(old and old.serial != serial)
        self.is_changed = True
        rest = mod.cookie, mod.flags, mod.idle_s, mod.hard_s, self._now_ns
        self._entries[key] = FlowEntry(serial, *key, mod.instructions, *rest)

    def _overlaps(self, mod: FlowMod) -> bool:
        place, entries = (mod.table, mod.priority), self._entries.values()
        return any((e.table, e.priority) == place and e.match.overlaps(mod.match) for e in entries)

    def _modify(self, entry: FlowEntry, mod: FlowMod) -> None:
        """Replace the instructions; keep cookie, timeouts and flags.

        Counters are kept too, unless the message has OFPFF_RESET_COUNTS (6.4).
        """
        serial = entry.serial
        if mod.flags & ofp.FlowFlag.RESET_COUNTS:
            serial, self.resets_counters = next(self.tables.serials), True
        self.is_changed = True
        self._entries[entry.key] = entry._replace(serial=serial, instructions=mod.instructions)

    def _delete(self, entry: FlowEntry, reason: ofp.RemovedReason) -> None:
        self.is_changed = True
        del self._entries[entry.key]
        self._removed_keys.add(entry.key)
        self.removed.append(RemovedEntry(entry, reason))

    def _check(self, mod: FlowMod) -> None:
        """Refuse an impossible addition or modification before it changes anything."""
        if mod.buffer != ofp.NO_BUFFER:
            raise OpenFlowError(ErrorCode.BUFFER_UNKNOWN, f"no buffer {mod.buffer:#x}")
        if mod.flags & ~_FLAGS:
            raise OpenFlowError(ErrorCode.FLOW_BAD_FLAGS, f"{mod.flags:#x}")
        goto, actions = mod.instructions.goto, mod.instructions.actions
        if goto is not None and not mod.table < goto < min(TABLE_COUNT, ofp.MAX_TABLE):
            detail = f"from table {mod.table} to {goto}"
            raise OpenFlowError(ErrorCode.INSTRUCTION_BAD_TABLE, detail)
        first, *others = actions or (None,)
        if not others and isinstance(first, Output) and first.port in self._ports:
            return  # nearly all entries are such
        check_groups(actions, self._groups)
        check_ports(actions, self._ports)
        is_ipv4 = mod.match.masked.get("eth_type") == (IPV4, 0xFFFF)
        if not is_ipv4 and "ip_dscp" in {a.name for a in actions if isinstance(a, SetField)}:
            raise OpenFlowError(ErrorCode.ACTION_MATCH_INCONSISTENT, "a DSCP without IPv4")

    def _group_mod(self, mod: GroupMod) -> None:
        match mod.command:
            case ofp.GroupCommand.ADD | ofp.GroupCommand.MODIFY:
                self._put_group(mod)
            case ofp.GroupCommand.DELETE:
                self._delete_groups(mod.group)
            case _:
                raise OpenFlowError(ErrorCode.GROUP_BAD_COMMAND, f"command {mod.command}")

    def _put_group(self, mod: GroupMod) -> None:
        adds, old = mod.command == ofp.GroupCommand.ADD, self._groups.get(mod.group)
        code = ErrorCode.GROUP_EXISTS if adds else ErrorCode.GROUP_UNKNOWN
        refuse_if(adds == bool(old), code, f"group {mod.group}")
        created_ns = old.created_ns if old else self._now_ns
        self._groups[mod.group] = new_group(mod, self._groups, self._ports, created_ns)
        self.is_changed = True

    def _delete_groups(self, number: int) -> None:
        """Delete a group, or all, with the entries that use it (6.5).

        A group that a remaining group uses can't be deleted.
        """
        deleted = set(self._groups) if number == ofp.ALL_GROUPS else {number} & set(self._groups)
        remaining = [group for other, group in self._groups.items() if other not in deleted]
        if any(deleted & group.next_groups for group in remaining):
            raise OpenFlowError(ErrorCode.GROUP_CHAINED, f"group {number}")
        for group in deleted:
            del self._groups[group]
            self.is_changed = True
        for entry in list(self._entries.values()):
            if not deleted.isdisjoint(group_ids(entry.instructions.actions)):
                self._delete(entry, ofp.RemovedReason.GROUP_DELETE)


def _selected(among: Iterable[FlowEntry], request: FlowStatsRequest) -> Iterator[FlowEntry]:
    """Return the entries that fit a request's table, cookie, outputs and match (6.4)."""
    any_match = not request.match.masked
    any_output = (request.out_port, request.out_group) == _ANY_OUTPUT
    cookie = request.cookie & request.cookie_mask
    for entry in among:
        if (
            entry.cookie & request.cookie_mask == cookie
            and request.table in {ofp.ALL_TABLES, entry.table}
            and (any_match or request.match.covers(entry.match))
            and (any_output or entry.outputs_to(request.out_port, request.out_group))
        ):
            yield entry
