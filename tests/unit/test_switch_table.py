"""Flow tables and groups as values: what a controller's messages make of them, and what several tables come to as one."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.switch.flow import CONTROLLER, Action, Flow, Output, SetField, ToGroup
from emulator.switch.match import Match
from emulator.switch.memory import rewritten
from emulator.switch.messages import Bucket, FlowMod, FlowsAsked, GroupMod
from emulator.switch.openflow_actions import Instructions
from emulator.switch.openflow_counts import Carried, Ledger
from emulator.switch.openflow_groups import in_order
from emulator.switch.openflow_numbers import (
    ALL_GROUPS,
    ALL_TABLES,
    ANY_GROUP,
    NO_BUFFER,
    FlowCommand,
    FlowFlag,
    GroupCommand,
    PortNumber,
    Removed,
)
from emulator.switch.openflow_pipeline import pipeline
from emulator.switch.packet import fields
from emulator.switch.seam import Count
from emulator.switch.steps import emissions
from emulator.switch.table import Changed, Tables, changed

PORTS = frozenset({1, 2, 3})
IP = Match.of(eth_type=0x0800)
WIDE = Match.of(eth_type=0x0800, ipv4_dst=(0x0A000000, 0xFF000000))
NARROW = Match.of(eth_type=0x0800, ipv4_dst=(0x0A010000, 0xFFFF0000))
MARKED = Match.of(eth_type=0x0800, ip_dscp=3)
S = 1_000_000_000


def mod(command: FlowCommand = FlowCommand.ADD, match: Match = IP, port: int = 1, **words: object) -> FlowMod:
    """A flow-mod; `port` is what it sends packets to."""
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
    return replace(plain, **words)  # type: ignore[arg-type]


def group(command: GroupCommand, number: int, *lists: tuple[Action, ...], kind: int = 0) -> GroupMod:
    buckets = tuple(Bucket(1 if kind == 1 else 0, PortNumber.ANY, ANY_GROUP, actions) for actions in lists)
    return GroupMod(command, kind, number, buckets)


def told(*mods: FlowMod | GroupMod, tables: Tables | None = None, now_ns: int = 0) -> Changed:
    return changed(tables or Tables(), mods, PORTS, now_ns)


def shown(tables: Tables) -> set[tuple[int, str, str]]:
    """Priority, match and actions of every entry."""
    return {
        (entry.priority, str(entry.match), " ".join(map(str, entry.instructions.actions)))
        for entry in tables.entries.values()
    }


def refusals(made: Changed) -> list[tuple[int, str]]:
    return [(place, error.refusal.name) for place, error in made.refused]


# --- flow-mods -----------------------------------------------------------------------------------------------------------


def test_an_entry_replaces_its_namesake_and_no_other() -> None:
    made = told(mod(port=1), mod(port=2), mod(port=3, priority=2), mod(match=WIDE, port=3))
    assert shown(made.tables) == {
        (1, "eth_type=0x800", "output:2"),
        (2, "eth_type=0x800", "output:3"),
        (1, "eth_type=0x800,ipv4_dst=0xa000000/0xff000000", "output:3"),
    }
    assert made.gone == ()


@pytest.mark.parametrize(
    ("command", "match", "left"),
    [
        pytest.param(FlowCommand.DELETE, Match(), set(), id="all"),
        pytest.param(FlowCommand.DELETE, WIDE, {1, 4}, id="what-is-within"),
        pytest.param(FlowCommand.DELETE, NARROW, {1, 2, 4}, id="what-is-within-less"),
        pytest.param(FlowCommand.DELETE_STRICT, WIDE, {1, 3, 4}, id="the-one"),
        pytest.param(FlowCommand.DELETE_STRICT, Match(), {1, 2, 3, 4}, id="strictly-none"),
    ],
)
def test_a_deletion_takes_what_it_means(command: FlowCommand, match: Match, left: set[int]) -> None:
    tables = told(*(mod(match=m, cookie=c) for c, m in enumerate((IP, WIDE, NARROW, MARKED), 1))).tables
    made = told(mod(command, match), tables=tables)
    assert {entry.cookie for entry in made.tables.entries.values()} == left
    assert {gone.entry.cookie for gone in made.gone} == {1, 2, 3, 4} - left


def test_a_deletion_is_narrowed_by_output_group_cookie_and_table() -> None:
    tables = told(
        group(GroupCommand.ADD, 7, (Output(1),)),
        mod(priority=1, port=1, cookie=0x10),
        mod(priority=2, port=2, cookie=0x11),
        mod(priority=3, instructions=Instructions((ToGroup(7),))),
        mod(priority=4, instructions=Instructions((Output(CONTROLLER),))),
        mod(priority=5, port=1, table=3),
    ).tables

    def left(**words: int) -> set[int]:
        asked = replace(mod(FlowCommand.DELETE, Match()), **words)  # type: ignore[arg-type]
        return {entry.priority for entry in told(asked, tables=tables).tables.entries.values()}

    assert left(out_port=1) == {2, 3, 4, 5}
    assert left(out_port=1, table=ALL_TABLES) == {2, 3, 4}
    assert left(out_group=7) == {1, 2, 4, 5}
    assert left(out_port=PortNumber.CONTROLLER) == {1, 2, 3, 5}
    assert left(cookie=0x11, cookie_mask=0x1) == {1, 3, 4, 5}
    assert left(cookie=0, cookie_mask=0x10, table=ALL_TABLES) == {1, 2}


def test_a_modification_changes_what_is_done_and_nothing_else() -> None:
    tables = told(mod(match=WIDE, cookie=5, hard_s=9), mod(match=NARROW, priority=2, cookie=6)).tables
    made = told(mod(FlowCommand.MODIFY, WIDE, port=3, cookie=99, hard_s=1), tables=tables, now_ns=7)
    assert {(e.cookie, e.hard_s, e.made_ns, e.flow.actions) for e in made.tables.entries.values()} == {
        (5, 9, 0, (Output(3),)),
        (6, 0, 0, (Output(3),)),
    }
    strict = told(mod(FlowCommand.MODIFY_STRICT, WIDE, port=2), tables=tables).tables
    assert sorted(str(e.flow.actions[0]) for e in strict.entries.values()) == ["output:1", "output:2"]
    assert told(mod(FlowCommand.MODIFY, WIDE, port=3)).tables.entries == {}


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        pytest.param(mod(port=9), "ACTION_BAD_OUT_PORT", id="port"),
        pytest.param(mod(instructions=Instructions((ToGroup(1),))), "ACTION_BAD_OUT_GROUP", id="group"),
        pytest.param(mod(table=8), "FLOW_BAD_TABLE", id="table"),
        pytest.param(mod(table=ALL_TABLES), "FLOW_BAD_TABLE", id="all-tables-are-for-deletions"),
        pytest.param(mod(instructions=Instructions(goto=0)), "INSTRUCTION_BAD_TABLE", id="goto-itself"),
        pytest.param(mod(instructions=Instructions(goto=8)), "INSTRUCTION_BAD_TABLE", id="goto-nowhere"),
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
def test_a_refused_message_leaves_no_trace_and_stops_no_other(asked: FlowMod, why: str) -> None:
    made = told(mod(match=WIDE), asked, mod(match=NARROW))
    assert refusals(made) == [(1, why)]
    assert made.tables.entries == told(mod(match=WIDE), mod(match=NARROW)).tables.entries


def test_arguments_come_back_as_they_went_in() -> None:
    before = told(mod(), group(GroupCommand.ADD, 1, (Output(1),))).tables
    entries, groups = dict(before.entries), dict(before.groups)
    told(mod(FlowCommand.DELETE, Match()), group(GroupCommand.DELETE, ALL_GROUPS), mod(port=2), tables=before)
    assert (before.entries, before.groups) == (entries, groups)


def test_counters_stay_with_an_entry_unless_they_shall_start_anew() -> None:
    tables = told(mod()).tables
    (serial,) = (entry.serial for entry in tables.entries.values())

    def after(*mods: FlowMod) -> tuple[bool, bool]:
        made = told(*mods, tables=tables)
        return [e.serial for e in made.tables.entries.values()] == [serial], made.recounted

    assert after(mod(port=2)) == (True, False)
    assert after(mod(port=2, flags=FlowFlag.RESET_COUNTS)) == (False, True)
    assert after(mod(FlowCommand.MODIFY, port=2)) == (True, False)
    assert after(mod(FlowCommand.DELETE), mod(port=2)) == (False, True)


@pytest.mark.parametrize(
    ("idle_s", "hard_s", "used_s", "now_s", "why"),
    [
        pytest.param(0, 0, 0, 10**9, None, id="none"),
        pytest.param(0, 5, 4, 5, Removed.HARD_TIMEOUT, id="hard"),
        pytest.param(0, 5, 4, 4.9, None, id="not-yet"),
        pytest.param(3, 0, 0, 3, Removed.IDLE_TIMEOUT, id="idle-since-it-was-made"),
        pytest.param(3, 0, 2, 4.9, None, id="not-idle-for-long"),
        pytest.param(3, 0, 2, 5, Removed.IDLE_TIMEOUT, id="idle-since-it-was-used"),
        pytest.param(3, 4, 2, 6, Removed.HARD_TIMEOUT, id="whichever-comes-first"),
    ],
)
def test_an_entry_ends_when_its_time_is_out(
    idle_s: int, hard_s: int, used_s: int, now_s: float, why: Removed | None
) -> None:
    tables = told(mod(idle_s=idle_s, hard_s=hard_s)).tables
    (entry,) = tables.entries.values()
    left, gone = tables.timed_out({entry.serial: used_s * S}, int(now_s * S))
    assert [each.why for each in gone] == ([why] if why is not None else [])
    assert len(left.entries) == (why is None)


# --- groups --------------------------------------------------------------------------------------------------------------

ONE = group(GroupCommand.ADD, 1, (Output(1),))


@pytest.mark.parametrize(
    ("mods", "why"),
    [
        pytest.param([ONE, ONE], "GROUP_EXISTS", id="twice"),
        pytest.param([group(GroupCommand.MODIFY, 1)], "GROUP_UNKNOWN", id="modified-before-it-is"),
        pytest.param([replace(ONE, type=9)], "GROUP_BAD_TYPE", id="kind"),
        pytest.param([replace(ONE, command=9)], "GROUP_BAD_COMMAND", id="command"),
        pytest.param([group(GroupCommand.ADD, ANY_GROUP)], "GROUP_INVALID", id="number"),
        pytest.param([group(GroupCommand.ADD, 1, kind=2)], "GROUP_INVALID", id="indirect-of-none"),
        pytest.param([group(GroupCommand.ADD, 1, (Output(9),))], "ACTION_BAD_OUT_PORT", id="port"),
        pytest.param([group(GroupCommand.ADD, 1, (ToGroup(9),))], "ACTION_BAD_OUT_GROUP", id="group"),
        pytest.param([group(GroupCommand.ADD, 1, (Output(1),), kind=3)], "GROUP_BAD_WATCH", id="unwatched"),
        pytest.param(
            [replace(ONE, buckets=(Bucket(5, PortNumber.ANY, ANY_GROUP, ()),))], "GROUP_INVALID", id="weight"
        ),
        pytest.param(
            [ONE, group(GroupCommand.ADD, 2, (ToGroup(1),)), group(GroupCommand.MODIFY, 1, (ToGroup(2),))],
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
def test_a_group_that_makes_no_sense_is_refused(mods: Sequence[GroupMod], why: str) -> None:
    made = told(*mods)
    assert refusals(made) == [(len(mods) - 1, why)]
    assert made.tables.groups == told(*mods[:-1]).tables.groups


def test_entries_go_with_the_group_they_send_to() -> None:
    made = told(
        ONE,
        mod(instructions=Instructions(write=(ToGroup(1),))),
        mod(priority=2),
        group(GroupCommand.DELETE, ALL_GROUPS),
    )
    assert [(gone.entry.priority, gone.why) for gone in made.gone] == [(1, Removed.GROUP_DELETE)]
    assert (len(made.tables.entries), made.tables.groups) == (1, {})


def test_an_action_set_is_done_in_openflows_order() -> None:
    first, later = SetField("ip_dscp", 1), SetField("ip_dscp", 2)
    assert in_order([Output(1), first, later]) == (later, Output(1))
    assert in_order([Output(1), ToGroup(5), first]) == (first, ToGroup(5))


# --- several tables ------------------------------------------------------------------------------------------------------


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
deeds = st.lists(
    st.one_of(
        st.builds(Output, st.integers(1, 3)), st.builds(SetField, st.just("ip_dscp"), st.integers(0, 3))
    ),
    max_size=2,
).map(tuple)


@st.composite
def several_tables(draw: st.DrawFn) -> list[FlowMod]:
    """Entries in three tables, no two of a table with one priority, so that OpenFlow says which takes a packet."""
    made = []
    for table in range(3):
        for priority in draw(st.lists(st.integers(0, 5), unique=True, max_size=4)):
            goto = draw(st.sampled_from([None, *range(table + 1, 3)]))
            told = Instructions(draw(deeds), draw(deeds), draw(st.booleans()), goto)
            made.append(mod(match=draw(matches), table=table, priority=priority, instructions=told))
    return made


def _step_by_step(tables: Tables, in_port: int, frame: bytes) -> tuple[list[object], list[int]]:
    """OpenFlow 1.3.5, 5.1, read aloud: what leaves, and the serials of the entries that were met."""
    at: int | None = 0
    left, last, met = list[object](), tuple[Action, ...](), list[int]()

    def do(actions: Iterable[Action], frame: bytes) -> bytes:
        for action in actions:
            if isinstance(action, SetField):
                frame = rewritten(frame, [(action.name, action.value)])
            elif isinstance(action, Output):
                left.append((action.port, frame))
        return frame

    while at is not None:
        packet = fields(frame, in_port)
        here = [e for e in tables.entries.values() if e.table == at and e.match.fits(packet)]
        if not here:
            return left, met
        entry = max(here, key=lambda e: e.priority)
        met.append(entry.serial)
        frame = do(entry.instructions.apply, frame)
        last = (*(() if entry.instructions.clear else last), *entry.instructions.write)
        at = entry.instructions.goto
    do(in_order(last), frame)
    return left, met


@given(several_tables(), st.integers(1, 2), st.integers(0, 3), st.integers(0, 3))
def test_one_table_does_what_several_would(mods: list[FlowMod], in_port: int, to: int, dscp: int) -> None:
    tables = changed(Tables(), [m for m in mods if _makes_sense(m)], PORTS, 0).tables
    made, frame = pipeline(tables), _frame(to, dscp)
    taking = [flow for flow in made.flows if flow.match.fits(fields(frame, in_port))]
    flow = max(taking, key=lambda flow: flow.rank, default=None)
    expected, met = _step_by_step(tables, in_port, frame)
    assert _left(flow, frame) == expected
    assert [entry.serial for entry in made.entries[flow.key]] == met if flow else met == []


def _makes_sense(mod: FlowMod) -> bool:
    return not changed(Tables(), [mod], PORTS, 0).refused


def _left(flow: Flow | None, frame: bytes) -> list[object]:
    done = emissions(flow, {}, 0, lambda _: True) if flow else ()
    return [(emission.port, rewritten(frame, emission.rewritten)) for emission in done]


@given(several_tables())
def test_flows_of_one_key_are_never_two(mods: list[FlowMod]) -> None:
    made = pipeline(changed(Tables(), mods, PORTS, 0).tables)
    assert len({flow.key for flow in made.flows}) == len(made.flows) == len(made.entries)


# --- laws ----------------------------------------------------------------------------------------------------------------

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
def test_one_change_of_many_messages_is_as_good_as_many_changes(mods: list[FlowMod], cut: int) -> None:
    whole = told(*mods)
    first = told(*mods[:cut])
    second = told(*mods[cut:], tables=first.tables)
    assert shown(whole.tables) == shown(second.tables)
    assert len(whole.gone) == len(first.gone) + len(second.gone)


@given(st.lists(mods_, max_size=12), st.sampled_from([Match(), IP, WIDE, NARROW, MARKED]))
def test_a_deletion_leaves_nothing_that_it_means(mods: list[FlowMod], match: Match) -> None:
    tables = told(*mods, mod(FlowCommand.DELETE, match)).tables
    asked = FlowsAsked(ALL_TABLES, PortNumber.ANY, ANY_GROUP, 0, 0, match)
    assert list(tables.asked(asked)) == []


# --- counts --------------------------------------------------------------------------------------------------------------


def test_what_a_flow_carries_counts_for_every_entry_that_it_meets() -> None:
    tables = told(mod(instructions=Instructions(goto=1)), mod(table=1, priority=4)).tables
    made = pipeline(tables)
    flow = next(flow for flow in made.flows if len(made.entries[flow.key]) == 2)
    ledger = Ledger().read({flow.key: Count(3, 300)}, made.paths.items(), 7)
    assert {e.table: ledger.of(e) for e in tables.entries.values()} == {
        0: Carried(3, 300, 7),
        1: Carried(3, 300, 7),
    }
    again = ledger.read({flow.key: Count(5, 500)}, made.paths.items(), 9)
    assert {again.of(e) for e in tables.entries.values()} == {Carried(5, 500, 9)}
