"""Flow tables and groups as values: what a controller asks of them makes new ones, and says what was refused and what has gone.

A switch has `TABLES` flow tables. The datapath has one: `openflow_pipeline` makes one table of several. Section numbers are those of OpenFlow 1.3.5.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from emulator.switch import openflow_groups as grouping
from emulator.switch.entry import Entry, Key
from emulator.switch.flow import SetField, ToGroup
from emulator.switch.messages import FlowMod, FlowsAsked, GroupMod
from emulator.switch.openflow_groups import GroupEntry
from emulator.switch.openflow_numbers import (
    ALL_GROUPS,
    ALL_TABLES,
    ANY_GROUP,
    MAX_TABLE,
    NO_BUFFER,
    FlowCommand,
    FlowFlag,
    GroupCommand,
    OpenFlowError,
    PortNumber,
    Refusal,
    Removed,
)

TABLES: Final = 8
ENTRIES: Final = 65536
"""The most that a switch's tables hold together."""
_FLAGS: Final = 0x1F


@dataclass(frozen=True)
class Gone:
    """An entry that isn't any more, and why."""

    entry: Entry
    why: Removed


@dataclass(frozen=True)
class Tables:
    """All the entries and groups of a switch."""

    entries: Mapping[Key, Entry] = field(default_factory=dict)
    groups: Mapping[int, GroupEntry] = field(default_factory=dict)
    serial: int = 0

    def asked(self, asked: FlowsAsked) -> Iterator[Entry]:
        """The entries that statistics are asked of."""
        return _chosen(self.entries.values(), asked)

    def timed_out(self, used_ns: Mapping[int, int], now_ns: int) -> tuple["Tables", tuple[Gone, ...]]:
        """The tables without the entries whose time is out, and those; `used_ns` has when an entry, by its serial, last took a packet."""
        gone = tuple(
            Gone(entry, ends[1])
            for entry in self.entries.values()
            if (ends := entry.ends_ns(used_ns.get(entry.serial, 0))) and ends[0] <= now_ns
        )
        if not gone:
            return self, ()
        left = dict(self.entries)
        for each in gone:
            del left[each.entry.key]
        return replace(self, entries=left), gone


@dataclass(frozen=True)
class Changed:
    """What came of some messages: the tables after them; which messages, by their place, were refused; which entries have gone.

    `touched` says that something is another than before; `recounted`, that an entry has taken the place of its namesake and counts
    anew, while the datapath counts on.
    """

    tables: Tables
    refused: tuple[tuple[int, OpenFlowError], ...] = ()
    gone: tuple[Gone, ...] = ()
    recounted: bool = False
    touched: bool = False


def changed(
    tables: Tables, told: Sequence[FlowMod | GroupMod], ports: AbstractSet[int], now_ns: int
) -> Changed:
    """Each message is done or refused on its own, in order; outputs may name `ports` and no others."""
    draft = _Draft(tables, ports, now_ns)
    refused = []
    for place, mod in enumerate(told):
        try:
            draft.flow_mod(mod) if isinstance(mod, FlowMod) else draft.group_mod(mod)
        except OpenFlowError as error:
            refused.append((place, error))
    after = Tables(draft.entries, draft.groups, draft.serial)
    return Changed(after, tuple(refused), tuple(draft.gone), draft.recounted, draft.touched)


class _Draft:
    """Tables in the making: copied once for many messages. A message that is refused leaves no trace."""

    def __init__(self, tables: Tables, ports: AbstractSet[int], now_ns: int) -> None:
        self.entries, self.groups, self.serial = dict(tables.entries), dict(tables.groups), tables.serial
        self.gone, self.recounted, self.touched = list[Gone](), False, False
        self._ports, self._now_ns = ports, now_ns
        self._left = set[Key]()

    def flow_mod(self, mod: FlowMod) -> None:
        deletes = mod.command in {FlowCommand.DELETE, FlowCommand.DELETE_STRICT}
        if mod.table >= TABLES and not (deletes and mod.table == ALL_TABLES):
            raise OpenFlowError(Refusal.FLOW_BAD_TABLE, f"table {mod.table}")
        if not deletes:
            self._check(mod)
        match mod.command:
            case FlowCommand.ADD:
                self._add(mod)
            case FlowCommand.MODIFY | FlowCommand.MODIFY_STRICT:
                for entry in self._meant(mod):
                    self._modify(entry, mod)
            case FlowCommand.DELETE | FlowCommand.DELETE_STRICT:
                for entry in self._meant(mod):
                    self._delete(entry, Removed.DELETE)
            case _:
                raise OpenFlowError(Refusal.FLOW_BAD_COMMAND, f"command {mod.command}")

    def _meant(self, mod: FlowMod) -> list[Entry]:
        """The entries that a modification or deletion is about: strictly the one, or all whose packets are all its own (6.4)."""
        strict = mod.command in {FlowCommand.MODIFY_STRICT, FlowCommand.DELETE_STRICT}
        deletes = mod.command in {FlowCommand.DELETE, FlowCommand.DELETE_STRICT}
        among: Iterable[Entry] = self.entries.values()
        if strict:
            tables = range(TABLES) if mod.table == ALL_TABLES else (mod.table,)
            keys = ((table, mod.priority, mod.match) for table in tables)
            among = [entry for key in keys if (entry := self.entries.get(key))]
        out = (mod.out_port, mod.out_group) if deletes else (PortNumber.ANY, ANY_GROUP)
        return list(_chosen(among, FlowsAsked(mod.table, *out, mod.cookie, mod.cookie_mask, mod.match)))

    def _add(self, mod: FlowMod) -> None:
        key = mod.table, mod.priority, mod.match
        old = self.entries.get(key)
        if mod.flags & FlowFlag.CHECK_OVERLAP and self._overlaps(mod):
            raise OpenFlowError(Refusal.FLOW_OVERLAP, str(mod.match))
        if old is None and len(self.entries) >= ENTRIES:
            raise OpenFlowError(Refusal.FLOW_TABLE_FULL, f"{ENTRIES} entries")
        serial = old.serial if old and not mod.flags & FlowFlag.RESET_COUNTS else self._new_serial()
        self.recounted |= key in self._left or bool(old and old.serial != serial)
        self.touched = True
        self.entries[key] = Entry(
            serial,
            *key,
            mod.instructions,
            mod.cookie,
            mod.flags,
            mod.idle_s,
            mod.hard_s,
            self._now_ns,
        )

    def _overlaps(self, mod: FlowMod) -> bool:
        return any(
            entry.table == mod.table and entry.priority == mod.priority and entry.match.overlaps(mod.match)
            for entry in self.entries.values()
        )

    def _new_serial(self) -> int:
        self.serial += 1
        return self.serial

    def _modify(self, entry: Entry, mod: FlowMod) -> None:
        """Other instructions; cookie, time-outs and flags stay, and so do counters unless they shall start anew (6.4)."""
        serial = entry.serial
        if mod.flags & FlowFlag.RESET_COUNTS:
            serial, self.recounted = self._new_serial(), True
        self.touched = True
        self.entries[entry.key] = replace(entry, serial=serial, instructions=mod.instructions)

    def _delete(self, entry: Entry, why: Removed) -> None:
        self.touched = True
        del self.entries[entry.key]
        self._left.add(entry.key)
        self.gone.append(Gone(entry, why))

    def _check(self, mod: FlowMod) -> None:
        """Refuse what could never be done, before anything is."""
        if mod.buffer != NO_BUFFER:
            raise OpenFlowError(Refusal.BUFFER_UNKNOWN, f"buffer {mod.buffer:#x}: there are none")
        if mod.flags & ~_FLAGS:
            raise OpenFlowError(Refusal.FLOW_BAD_FLAGS, f"{mod.flags:#x}")
        goto = mod.instructions.goto
        if goto is not None and not mod.table < goto < min(TABLES, MAX_TABLE):
            raise OpenFlowError(Refusal.INSTRUCTION_BAD_TABLE, f"from table {mod.table} to {goto}")
        for action in mod.instructions.actions:
            if isinstance(action, ToGroup) and action.id not in self.groups:
                raise OpenFlowError(Refusal.ACTION_BAD_OUT_GROUP, f"group {action.id}")
            if isinstance(action, SetField) and action.name == "ip_dscp" and mod.match.eth_type != _IPV4:
                raise OpenFlowError(Refusal.ACTION_MATCH_INCONSISTENT, "a DSCP of what may be no IPv4")
        grouping.check_ports(mod.instructions.actions, self._ports)

    def group_mod(self, mod: GroupMod) -> None:
        match mod.command:
            case GroupCommand.ADD | GroupCommand.MODIFY:
                self._put_group(mod)
            case GroupCommand.DELETE:
                self._delete_groups(mod.group)
            case _:
                raise OpenFlowError(Refusal.GROUP_BAD_COMMAND, f"command {mod.command}")

    def _put_group(self, mod: GroupMod) -> None:
        adds = mod.command == GroupCommand.ADD
        if adds and mod.group in self.groups:
            raise OpenFlowError(Refusal.GROUP_EXISTS, f"group {mod.group}")
        if not adds and mod.group not in self.groups:
            raise OpenFlowError(Refusal.GROUP_UNKNOWN, f"group {mod.group}")
        made_ns = self._now_ns if adds else self.groups[mod.group].made_ns
        self.groups[mod.group] = grouping.entry(mod, self.groups, self._ports, made_ns)
        self.touched = True

    def _delete_groups(self, number: int) -> None:
        """With the entries that send packets to it; one that another group needs stays (6.5)."""
        going = set(self.groups) if number == ALL_GROUPS else {number} & set(self.groups)
        staying = [group for other, group in self.groups.items() if other not in going]
        if any(going & group.goes_through for group in staying):
            raise OpenFlowError(Refusal.GROUP_CHAINED, f"group {number}")
        for group in going:
            del self.groups[group]
            self.touched = True
        for entry in list(self.entries.values()):
            if any(
                isinstance(action, ToGroup) and action.id in going for action in entry.instructions.actions
            ):
                self._delete(entry, Removed.GROUP_DELETE)


_IPV4: Final = (0x0800, 0xFFFF)


def _chosen(among: Iterable[Entry], asked: FlowsAsked) -> Iterator[Entry]:
    """Those in the table, with the cookie and the outputs, whose packets are all of the match."""
    anything = not asked.match.masked
    anywhere = asked.out_port == PortNumber.ANY and asked.out_group == ANY_GROUP
    cookie = asked.cookie & asked.cookie_mask
    for entry in among:
        if (
            entry.cookie & asked.cookie_mask == cookie
            and asked.table in {ALL_TABLES, entry.table}
            and (anything or asked.match.covers(entry.match))
            and (anywhere or entry.sends_to(asked.out_port, asked.out_group))
        ):
            yield entry
