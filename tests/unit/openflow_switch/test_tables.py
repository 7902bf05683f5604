"""Flow tables and groups as values, counters, and the pipeline that flattens the tables."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.openflow.actions import (
    CONTROLLER,
    Action,
    Instructions,
    Output,
    SetField,
    ToGroup,
)
from moefabric.core.openflow.constants import (
    ALL_GROUPS,
    ALL_TABLES,
    ANY_GROUP,
    NO_BUFFER,
    FlowCommand,
    FlowFlag,
    GroupCommand,
    PortNumber,
    RemovedReason,
)
from moefabric.core.openflow.match import Match
from moefabric.core.openflow.messages import Bucket, FlowMod, FlowStatsRequest, GroupMod
from moefabric.emulator.openflow_switch.datapath.emissions import emissions, ordered_actions
from moefabric.emulator.openflow_switch.datapath.interface import Flow, FlowCount
from moefabric.emulator.openflow_switch.flows.packet import packet_fields, rewritten_frame
from moefabric.emulator.openflow_switch.tables.counters import SwitchCounters, TrafficCount
from moefabric.emulator.openflow_switch.tables.flow_tables import (
    MAX_ENTRIES,
    FlowTables,
    TableUpdate,
)
from moefabric.emulator.openflow_switch.tables.pipeline import pipeline

PORTS = frozenset({1, 2, 3})
IP = Match.of(eth_type=0x0800)
WIDE = Match.of(eth_type=0x0800, ipv4_dst=(0x0A000000, 0xFF000000))
NARROW = Match.of(eth_type=0x0800, ipv4_dst=(0x0A010000, 0xFFFF0000))
MARKED = Match.of(eth_type=0x0800, ip_dscp=3)
S = 1_000_000_000


def mod(
    command: FlowCommand = FlowCommand.ADD, match: Match = IP, port: int = 1, **fields: object
) -> FlowMod:
    """A flow-mod with an output to `port`."""
    plain = FlowMod(
        cookie=0,
        cookie_mask=0,
        table=0,
        command=command,
        idle_s=0,
        hard_s=0,
        priority=1,
        buffer=NO_BUFFER,
        out_port=PortNumber.ANY,
        out_group=ANY_GROUP,
        flags=0,
        match=match,
        instructions=Instructions((Output(port),)),
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


def group(
    command: GroupCommand, number: int, *lists: tuple[Action, ...], kind: int = 0
) -> GroupMod:
    buckets = tuple(Bucket(actions, 1 if kind == 1 else 0) for actions in lists)
    return GroupMod(command, kind, number, buckets)


def update(
    *mods: FlowMod | GroupMod, tables: FlowTables | None = None, now_ns: int = 0
) -> TableUpdate:
    result = TableUpdate(tables or FlowTables(), PORTS, now_ns)
    result.make(mods)
    return result


def summary(tables: FlowTables) -> set[tuple[int, str, str]]:
    """Priority, match and actions of every entry."""
    return {
        (entry.priority, str(entry.match), " ".join(map(str, entry.instructions.actions)))
        for entry in tables.entries.values()
    }


def refusals(result: TableUpdate) -> list[tuple[int, str]]:
    return [(place, error.code.name) for place, error in result.refused]


# --- flow-mods ----------------------------------------------------------------------------------


def test_add_replaces_entry_of_equal_match_and_priority() -> None:
    result = update(mod(port=1), mod(port=2), mod(port=3, priority=2), mod(match=WIDE, port=3))
    assert summary(result.tables) == {
        (1, "eth_type=0x800", "output:2"),
        (2, "eth_type=0x800", "output:3"),
        (1, "eth_type=0x800,ipv4_dst=0xa000000/0xff000000", "output:3"),
    }
    assert result.removed == []


@pytest.mark.parametrize(
    ("command", "match", "remaining"),
    [
        pytest.param(FlowCommand.DELETE, Match(), set(), id="all"),
        pytest.param(FlowCommand.DELETE, WIDE, {1, 4}, id="what-is-within"),
        pytest.param(FlowCommand.DELETE, NARROW, {1, 2, 4}, id="what-is-within-less"),
        pytest.param(FlowCommand.DELETE_STRICT, WIDE, {1, 3, 4}, id="the-one"),
        pytest.param(FlowCommand.DELETE_STRICT, Match(), {1, 2, 3, 4}, id="strictly-none"),
    ],
)
def test_delete_selects_entries_by_match(
    command: FlowCommand, match: Match, remaining: set[int]
) -> None:
    tables = update(
        *(mod(match=m, cookie=c) for c, m in enumerate((IP, WIDE, NARROW, MARKED), 1))
    ).tables
    result = update(mod(command, match), tables=tables)
    assert {entry.cookie for entry in result.tables.entries.values()} == remaining
    assert {removal.entry.cookie for removal in result.removed} == {1, 2, 3, 4} - remaining


def test_delete_selects_by_output_group_cookie_and_table() -> None:
    tables = update(
        group(GroupCommand.ADD, 7, (Output(1),)),
        mod(priority=1, port=1, cookie=0x10),
        mod(priority=2, port=2, cookie=0x11),
        mod(priority=3, instructions=Instructions((ToGroup(7),))),
        mod(priority=4, instructions=Instructions((Output(CONTROLLER),))),
        mod(priority=5, port=1, table=3),
    ).tables

    def remaining(**fields: int) -> set[int]:
        request = replace(mod(FlowCommand.DELETE, Match()), **fields)  # type: ignore[arg-type]
        return {entry.priority for entry in update(request, tables=tables).tables.entries.values()}

    assert remaining(out_port=1) == {2, 3, 4, 5}
    assert remaining(out_port=1, table=ALL_TABLES) == {2, 3, 4}
    assert remaining(out_group=7) == {1, 2, 4, 5}
    assert remaining(out_port=PortNumber.CONTROLLER) == {1, 2, 3, 5}
    assert remaining(cookie=0x11, cookie_mask=0x1) == {1, 3, 4, 5}
    assert remaining(cookie=0, cookie_mask=0x10, table=ALL_TABLES) == {1, 2}


def test_modify_changes_instructions_only() -> None:
    tables = update(
        mod(match=WIDE, cookie=5, hard_s=9), mod(match=NARROW, priority=2, cookie=6)
    ).tables
    result = update(
        mod(FlowCommand.MODIFY, WIDE, port=3, cookie=99, hard_s=1), tables=tables, now_ns=7
    )
    assert {
        (e.cookie, e.hard_s, e.created_ns, e.flow.actions) for e in result.tables.entries.values()
    } == {(5, 9, 0, (Output(3),)), (6, 0, 0, (Output(3),))}
    strict = update(mod(FlowCommand.MODIFY_STRICT, WIDE, port=2), tables=tables).tables
    assert sorted(str(e.flow.actions[0]) for e in strict.entries.values()) == [
        "output:1",
        "output:2",
    ]
    assert update(mod(FlowCommand.MODIFY, WIDE, port=3)).tables.entries == {}


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        pytest.param(mod(port=9), "ACTION_BAD_OUT_PORT", id="port"),
        pytest.param(
            mod(instructions=Instructions((ToGroup(1),))), "ACTION_BAD_OUT_GROUP", id="group"
        ),
        pytest.param(mod(table=8), "FLOW_BAD_TABLE", id="table"),
        pytest.param(mod(table=ALL_TABLES), "FLOW_BAD_TABLE", id="all-tables-are-for-deletions"),
        pytest.param(
            mod(instructions=Instructions(goto=0)), "INSTRUCTION_BAD_TABLE", id="goto-itself"
        ),
        pytest.param(
            mod(instructions=Instructions(goto=8)), "INSTRUCTION_BAD_TABLE", id="goto-nowhere"
        ),
        pytest.param(mod(buffer=3), "BUFFER_UNKNOWN", id="buffer"),
        pytest.param(mod(flags=0x20), "FLOW_BAD_FLAGS", id="flags"),
        pytest.param(replace(mod(), command=9), "FLOW_BAD_COMMAND", id="command"),
        pytest.param(
            mod(match=Match(), instructions=Instructions((SetField("ip_dscp", 1),))),
            "ACTION_MATCH_INCONSISTENT",
            id="a-dscp-of-no-ip",
        ),
        pytest.param(mod(match=MARKED, flags=FlowFlag.CHECK_OVERLAP), "FLOW_OVERLAP", id="overlap"),
    ],
)
def test_refused_flow_mod_leaves_no_trace_and_stops_no_other(refused: FlowMod, code: str) -> None:
    result = update(mod(match=WIDE), refused, mod(match=NARROW))
    assert refusals(result) == [(1, code)]
    assert result.tables.entries == update(mod(match=WIDE), mod(match=NARROW)).tables.entries


def test_update_does_not_change_its_arguments() -> None:
    before = update(mod(), group(GroupCommand.ADD, 1, (Output(1),))).tables
    entries, groups = dict(before.entries), dict(before.groups)
    update(
        mod(FlowCommand.DELETE, Match()),
        group(GroupCommand.DELETE, ALL_GROUPS),
        mod(port=2),
        tables=before,
    )
    assert (before.entries, before.groups) == (entries, groups)


def test_serial_changes_with_reset_counts_only() -> None:
    tables = update(mod()).tables
    (serial,) = (entry.serial for entry in tables.entries.values())

    def after(*mods: FlowMod) -> tuple[bool, bool]:
        result = update(*mods, tables=tables)
        return [e.serial for e in result.tables.entries.values()] == [
            serial
        ], result.resets_counters

    assert after(mod(port=2)) == (True, False)
    assert after(mod(port=2, flags=FlowFlag.RESET_COUNTS)) == (False, True)
    assert after(mod(FlowCommand.MODIFY, port=2)) == (True, False)
    assert after(mod(FlowCommand.MODIFY, port=2, flags=FlowFlag.RESET_COUNTS)) == (False, True)
    assert after(mod(FlowCommand.DELETE), mod(port=2)) == (False, True)


def test_full_table_replaces_entries_and_takes_no_more() -> None:
    tables = update(*(mod(priority=number) for number in range(MAX_ENTRIES))).tables
    assert len(tables.entries) == MAX_ENTRIES
    full = update(mod(priority=5, port=2), mod(priority=MAX_ENTRIES), tables=tables)
    assert refusals(full) == [(1, "FLOW_TABLE_FULL")]
    assert (5, str(IP), str(Output(2))) in summary(full.tables)


@pytest.mark.parametrize(
    ("idle_s", "hard_s", "used_s", "now_s", "reason"),
    [
        pytest.param(0, 0, 0, 10**9, None, id="none"),
        pytest.param(0, 5, 4, 5, RemovedReason.HARD_TIMEOUT, id="hard"),
        pytest.param(0, 5, 4, 4.9, None, id="not-yet"),
        pytest.param(3, 0, 0, 3, RemovedReason.IDLE_TIMEOUT, id="idle-since-it-was-made"),
        pytest.param(3, 0, 2, 4.9, None, id="not-idle-for-long"),
        pytest.param(3, 0, 2, 5, RemovedReason.IDLE_TIMEOUT, id="idle-since-it-was-used"),
        pytest.param(3, 4, 2, 6, RemovedReason.HARD_TIMEOUT, id="whichever-comes-first"),
    ],
)
def test_entry_expires_by_idle_and_hard_timeout(
    idle_s: int, hard_s: int, used_s: int, now_s: float, reason: RemovedReason | None
) -> None:
    tables = update(mod(idle_s=idle_s, hard_s=hard_s)).tables
    (entry,) = tables.entries.values()
    result = TableUpdate(tables, PORTS, int(now_s * S))
    result.expire({entry.serial: used_s * S})
    assert [one.reason for one in result.removed] == ([reason] if reason is not None else [])
    assert len(result.tables.entries) == (reason is None)


# --- groups -------------------------------------------------------------------------------------

ONE = group(GroupCommand.ADD, 1, (Output(1),))


@pytest.mark.parametrize(
    ("mods", "code"),
    [
        pytest.param([ONE, ONE], "GROUP_EXISTS", id="twice"),
        pytest.param([group(GroupCommand.MODIFY, 1)], "GROUP_UNKNOWN", id="modified-before-it-is"),
        pytest.param([replace(ONE, type=9)], "GROUP_BAD_TYPE", id="kind"),
        pytest.param([replace(ONE, command=9)], "GROUP_BAD_COMMAND", id="command"),
        pytest.param([group(GroupCommand.ADD, ANY_GROUP)], "GROUP_INVALID", id="number"),
        pytest.param([group(GroupCommand.ADD, 1, kind=2)], "GROUP_INVALID", id="indirect-of-none"),
        pytest.param([group(GroupCommand.ADD, 1, (Output(9),))], "ACTION_BAD_OUT_PORT", id="port"),
        pytest.param(
            [group(GroupCommand.ADD, 1, (ToGroup(9),))], "ACTION_BAD_OUT_GROUP", id="group"
        ),
        pytest.param(
            [group(GroupCommand.ADD, 1, (Output(1),), kind=3)], "GROUP_BAD_WATCH", id="unwatched"
        ),
        pytest.param([replace(ONE, buckets=(Bucket((), 5),))], "GROUP_INVALID", id="weight"),
        pytest.param(
            [replace(ONE, buckets=(Bucket((), 0, watch_port=1),))],
            "GROUP_WATCH_UNSUPPORTED",
            id="watched-port-without-failover",
        ),
        pytest.param(
            [
                ONE,
                group(GroupCommand.ADD, 2, (ToGroup(1),)),
                group(GroupCommand.MODIFY, 1, (ToGroup(2),)),
            ],
            "GROUP_LOOP",
            id="loop",
        ),
        pytest.param(
            [ONE, group(GroupCommand.ADD, 2, (ToGroup(1),)), group(GroupCommand.DELETE, 1)],
            "GROUP_CHAINED",
            id="needed-by-another",
        ),
    ],
)
def test_invalid_group_mod_is_refused(mods: Sequence[GroupMod], code: str) -> None:
    result = update(*mods)
    assert refusals(result) == [(len(mods) - 1, code)]
    assert result.tables.groups == update(*mods[:-1]).tables.groups


def test_deleting_group_removes_its_entries() -> None:
    result = update(
        ONE,
        mod(instructions=Instructions(write=(ToGroup(1),))),
        mod(priority=2),
        group(GroupCommand.DELETE, ALL_GROUPS),
    )
    assert [(removal.entry.priority, removal.reason) for removal in result.removed] == [
        (1, RemovedReason.GROUP_DELETE)
    ]
    assert (len(result.tables.entries), result.tables.groups) == (1, {})


def test_action_set_is_ordered_as_specified() -> None:
    first, later = SetField("ip_dscp", 1), SetField("ip_dscp", 2)
    assert ordered_actions([Output(1), first, later]) == (later, Output(1))
    assert ordered_actions([Output(1), ToGroup(5), first]) == (first, ToGroup(5))


# --- several tables -----------------------------------------------------------------------------


def _frame(to: int, dscp: int) -> bytes:
    return bytes(12) + b"\x08\0\x45" + bytes([dscp << 2]) + bytes(14) + to.to_bytes(4)


matches = st.one_of(
    st.just(Match()),
    st.just(IP),
    st.builds(lambda d: Match.of(eth_type=0x0800, ip_dscp=d), st.integers(0, 3)),
    st.builds(
        lambda to, mask: Match.of(eth_type=0x0800, ipv4_dst=(to & mask, mask)),
        st.integers(0, 3),
        st.sampled_from([1, 2, 3]),
    ),
    st.builds(lambda port: Match.of(in_port=port), st.integers(1, 2)),
)
lists = st.lists(
    st.one_of(
        st.builds(Output, st.integers(1, 3)),
        st.builds(SetField, st.just("ip_dscp"), st.integers(0, 3)),
    ),
    max_size=2,
).map(tuple)


@st.composite
def several_tables(draw: st.DrawFn) -> list[FlowMod]:
    """Entries in three tables, each table with at most one entry of a priority.

    OpenFlow therefore defines which entry takes a packet.
    """
    mods = []
    for table in range(3):
        for priority in draw(st.lists(st.integers(0, 5), unique=True, max_size=4)):
            goto = draw(st.sampled_from([None, *range(table + 1, 3)]))
            instructions = Instructions(draw(lists), draw(lists), draw(st.booleans()), goto)
            plain = mod(match=draw(matches), instructions=instructions)
            mods.append(replace(plain, table=table, priority=priority))
    return mods


def _step_by_step(tables: FlowTables, in_port: int, frame: bytes) -> tuple[list[object], list[int]]:
    """Executes OpenFlow 1.3.5, 5.1: what leaves, and the serials of the visited entries."""
    at: int | None = 0
    emitted, action_set, visited = list[object](), tuple[Action, ...](), list[int]()

    def execute(actions: Iterable[Action], frame: bytes) -> bytes:
        for action in actions:
            if isinstance(action, SetField):
                frame = rewritten_frame(frame, [(action.name, action.value)])
            elif isinstance(action, Output):
                emitted.append((action.port, frame))
        return frame

    while at is not None:
        packet = packet_fields(frame, in_port)
        fitting = [e for e in tables.entries.values() if e.table == at and e.match.fits(packet)]
        if not fitting:
            return emitted, visited
        entry = max(fitting, key=lambda e: e.priority)
        visited.append(entry.serial)
        frame = execute(entry.instructions.apply, frame)
        action_set = (*(() if entry.instructions.clear else action_set), *entry.instructions.write)
        at = entry.instructions.goto
    execute(ordered_actions(action_set), frame)
    return emitted, visited


@given(several_tables(), st.integers(1, 2), st.integers(0, 3), st.integers(0, 3))
def test_pipeline_equals_step_by_step_execution(
    mods: list[FlowMod], in_port: int, to: int, dscp: int
) -> None:
    tables = update(*(m for m in mods if _is_valid(m))).tables
    flattened, frame = pipeline(tables), _frame(to, dscp)
    fitting = [flow for flow in flattened.flows if flow.match.fits(packet_fields(frame, in_port))]
    flow = max(fitting, key=lambda flow: flow.rank, default=None)
    expected, visited = _step_by_step(tables, in_port, frame)
    assert _emitted(flow, frame) == expected
    assert (
        [entry.serial for entry in flattened.entries[flow.key]] == visited
        if flow
        else visited == []
    )


def _is_valid(mod: FlowMod) -> bool:
    return not update(mod).refused


def _emitted(flow: Flow | None, frame: bytes) -> list[object]:
    copies = emissions(flow, {}, 0, {}) if flow else ()
    return [(emission.port, rewritten_frame(frame, emission.rewrites)) for emission in copies]


@given(several_tables())
def test_pipeline_has_one_flow_per_key(mods: list[FlowMod]) -> None:
    flattened = pipeline(update(*mods).tables)
    assert (
        len({flow.key for flow in flattened.flows})
        == len(flattened.flows)
        == len(flattened.entries)
    )


# --- invariants ---------------------------------------------------------------------------------

mods_ = st.builds(
    lambda command, match, priority, port, cookie: mod(
        command, match, port, priority=priority, cookie=cookie, cookie_mask=cookie & 1
    ),
    st.sampled_from(FlowCommand),
    st.sampled_from([Match(), IP, WIDE, NARROW, MARKED]),
    st.integers(0, 1),
    st.integers(1, 3),
    st.integers(0, 3),
)


@given(st.lists(mods_, max_size=12), st.integers(0, 12))
def test_one_update_equals_several(mods: list[FlowMod], cut: int) -> None:
    at_once = update(*mods)
    first = update(*mods[:cut])
    second = update(*mods[cut:], tables=first.tables)
    assert summary(at_once.tables) == summary(second.tables)
    assert len(at_once.removed) == len(first.removed) + len(second.removed)


@given(st.lists(mods_, max_size=12), st.sampled_from([Match(), IP, WIDE, NARROW, MARKED]))
def test_delete_leaves_no_selected_entry(mods: list[FlowMod], match: Match) -> None:
    tables = update(*mods, mod(FlowCommand.DELETE, match)).tables
    request = FlowStatsRequest(match, ALL_TABLES, PortNumber.ANY, ANY_GROUP, 0, 0)
    assert list(tables.selected(request)) == []


# --- counters -----------------------------------------------------------------------------------


def test_flow_counts_for_every_visited_entry() -> None:
    tables = update(mod(instructions=Instructions(goto=1)), mod(table=1, priority=4)).tables
    flattened = pipeline(tables)
    flow = next(flow for flow in flattened.flows if len(flattened.entries[flow.key]) == 2)
    counters = SwitchCounters()
    counters.update({flow.key: FlowCount(3, 300)}, flattened.counters, 7)
    assert {e.table: counters.count(e.serial) for e in tables.entries.values()} == {
        0: TrafficCount(3, 300, 7),
        1: TrafficCount(3, 300, 7),
    }
    counters.update({flow.key: FlowCount(5, 500)}, flattened.counters, 9)
    assert {counters.count(e.serial) for e in tables.entries.values()} == {TrafficCount(5, 500, 9)}


def test_removed_entries_and_flows_start_from_zero() -> None:
    tables = update(mod()).tables
    (entry,), flattened = tables.entries.values(), pipeline(tables)
    (flow,) = (flow for flow in flattened.flows if flattened.entries[flow.key])
    counters = SwitchCounters()
    counters.update({flow.key: FlowCount(3, 300)}, flattened.counters, 7)
    counters.remove([entry], [flow.key], ())
    assert counters.count(entry.serial) == TrafficCount()
    counters.update({flow.key: FlowCount(2, 200)}, flattened.counters, 9)
    assert counters.count(entry.serial) == TrafficCount(2, 200, 9)
