"""SCPI: what each line does and says, with the device as a value and time as a number."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.light import Ports
from emulator.ocs.scpi import ERRORS_KEPT, CommandError, Device, Said, answer, port_lists
from emulator.ocs.server import identity
from emulator.ocs.store import Busy, Store

PORTS = Ports(12, 12)
SETTLE_NS = 25_000_000


def device(busy: Busy = Busy.MOVE) -> Device:
    return Device(identity(PORTS, "000001"), Store(PORTS, SETTLE_NS, busy))


def told(*lines: str, busy: Busy = Busy.MOVE) -> list[str | None]:
    """What a new device replies to each line, sent at the instants 0, 1, 2... ns."""
    now, replies = device(busy), []
    for at, line in enumerate(lines):
        now, said = answer(now, line, at)
        replies.append(said.text if said else None)
    return replies


STATE = ":oxc:swit:conn:stat?"


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        pytest.param(["*IDN?"], "Polatis,N-OST-12x12-LU1-DMHNS,000001,6.5.2.18", id="who"),
        pytest.param(["*OPC?"], "1", id="complete"),
        pytest.param(["*STB?"], "0", id="status"),
        pytest.param(["nonsense", "*stb?"], "4", id="status-with-an-error"),
        pytest.param([":oxc:swit:size?"], "12,12", id="size"),
        pytest.param([STATE], "(@),(@)", id="nothing-joined"),
        pytest.param([":oxc:swit:conn:add (@1),(@17)"], None, id="set-commands-say-nothing"),
        pytest.param([":oxc:swit:conn:add (@1),(@17)", STATE], "(@1),(@17)", id="add"),
        pytest.param(
            [":oxc:swit:conn:add (@3,1,2),(@22,19,18)", STATE], "(@1,2,3),(@19,18,22)", id="element-wise"
        ),
        pytest.param(
            [":oxc:swit:conn:add (@1),(@13)", ":oxc:swit:conn:add (@2),(@14)", STATE],
            "(@1,2),(@13,14)",
            id="kept",
        ),
        pytest.param(
            [":oxc:swit:conn:add (@1),(@13)", ":oxc:swit:conn:only (@2),(@14)", STATE],
            "(@2),(@14)",
            id="only",
        ),
        pytest.param(
            [":oxc:swit:conn:add (@1,2),(@13,14)", ":oxc:swit:conn:sub (@1),(@13)", STATE],
            "(@2),(@14)",
            id="sub",
        ),
        pytest.param(
            [":oxc:swit:conn:add (@1,2),(@13,14)", ":oxc:swit:conn:sub (@1),(@)", STATE],
            "(@2),(@14)",
            id="sub-inputs",
        ),
        pytest.param(
            [":oxc:swit:conn:add (@1),(@13)", ":oxc:swit:conn:only (@),(@)", STATE],
            "(@),(@)",
            id="only-nothing",
        ),
        pytest.param(
            [":oxc:swit:conn:add (@1),(@13)", ":oxc:swit:disc:all", STATE], "(@),(@)", id="disconnect-all"
        ),
        pytest.param([":oxc:swit:conn:add (@1),(@13)", "*rst", STATE], "(@),(@)", id="reset"),
        pytest.param(
            [":oxc:swit:conn:add (@2),(@18)", ":oxc:swit:conn:port? 2"], '"18"', id="partner-of-an-input"
        ),
        pytest.param(
            [":oxc:swit:conn:add (@2),(@18)", ":oxc:swit:conn:port? 18"], '"2"', id="partner-of-an-output"
        ),
        pytest.param([":oxc:swit:conn:port? 2"], '""', id="no-partner"),
        pytest.param([":syst:err?"], '0,"No error"', id="no-error"),
        pytest.param([":syst:err:all?"], '0,"No error"', id="no-errors"),
        pytest.param(["nonsense", "*cls", ":syst:err?"], '0,"No error"', id="cleared"),
        pytest.param(["", STATE], "(@),(@)", id="an-empty-line"),
    ],
)
def test_each_command_does_and_says_what_drivers_expect(lines: list[str], last: str | None) -> None:
    assert told(*lines)[-1] == last


@pytest.mark.parametrize(
    "spelling",
    [
        ":OXC:SWITch:CONNect:STATe?",
        "OXC:SWITCH:CONNECT:STATE?",
        "oxc:swit:conn:stat?",
        ":oxc:switch:conn:State?",
        "  :oxc:swit:conn:stat?  ",
        ";;:oxc:swit:conn:stat?;",
    ],
)
def test_words_go_short_or_long_in_any_case(spelling: str) -> None:
    assert told(":oxc:swit:conn:add (@1),(@13)", spelling)[-1] == "(@1),(@13)"


@pytest.mark.parametrize(
    "spelling", [":ox:swit:size?", ":oxc:switc:size?", ":oxc:swit:size", "oxc:swit:", ":*idn?"]
)
def test_words_neither_short_nor_long_are_no_command(spelling: str) -> None:
    assert told(spelling, ":syst:err?") == [None, f'-113,"Undefined header; {spelling}"']


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        pytest.param(":oxc:swit:conn:add (@1),(@13);*opc?", "1", id="how-drivers-wait"),
        pytest.param(":oxc:swit:conn:only (@1),(@13); stat?", "(@1),(@13)", id="goes-on-from-the-path"),
        pytest.param(
            ":oxc:swit:conn:only (@1),(@13);*cls;stat?", "(@1),(@13)", id="common-commands-keep-the-path"
        ),
        pytest.param(":oxc:swit:conn:add (@1),(@13);:oxc:swit:conn:stat?", "(@1),(@13)", id="from-the-root"),
        pytest.param(
            ":oxc:swit:conn:add (@1),(@13);oxc:swit:size?", "12,12", id="from-the-root-without-colon"
        ),
        pytest.param("*stb?;:oxc:swit:size?;*opc?", "0;12,12;1", id="replies-of-a-line-go-together"),
        pytest.param("nonsense;*opc?", "1", id="a-refused-command-stops-no-other"),
    ],
)
def test_commands_of_a_line_are_done_in_order(line: str, reply: str) -> None:
    assert told(line) == [reply]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param(
            ":oxc:swit:conn:add", '-109,"Missing parameter; 2 port lists such as (@1,2)"', id="no-lists"
        ),
        pytest.param(":oxc:swit:conn:add (@1)", '-109,"Missing parameter; 1 port lists of 2"', id="one-list"),
        pytest.param(
            ":oxc:swit:conn:add (@1),(@13),(@14)",
            '-108,"Parameter not allowed; 3 port lists of 2"',
            id="three-lists",
        ),
        pytest.param(
            ":oxc:swit:conn:add 1,13",
            '-102,"Syntax error; a port list such as (@1,2), not 1,13"',
            id="no-parentheses",
        ),
        pytest.param(
            ":oxc:swit:conn:add (@1)(@13)",
            '-102,"Syntax error; a comma and a port list, not (@13)"',
            id="no-comma",
        ),
        pytest.param(
            ":oxc:swit:conn:add (@1),", '-102,"Syntax error; a comma and a port list, not ,"', id="half"
        ),
        pytest.param(
            ":oxc:swit:conn:add (@x),(@13)", '-104,"Data type error; a port number, not x"', id="a-letter"
        ),
        pytest.param(
            ":oxc:swit:conn:add (@1,),(@13)", '-104,"Data type error; a port number, not nothing"', id="a-gap"
        ),
        pytest.param(
            ":oxc:swit:conn:add (@1:999999),(@13)",
            '-222,"Data out of range; more than 4096 ports in a list"',
            id="a-flood",
        ),
        pytest.param(
            ":oxc:swit:conn:add (@99),(@13)",
            '-222,"Data out of range; 99: inputs are 1..12"',
            id="no-such-input",
        ),
        pytest.param(
            ":oxc:swit:conn:add (@1),(@1)",
            '-222,"Data out of range; 1: outputs are 13..24"',
            id="no-such-output",
        ),
        pytest.param(
            ":oxc:swit:conn:add (@1,2),(@13,13)",
            '-221,"Settings conflict; output 13 twice"',
            id="output-twice",
        ),
        pytest.param(
            ":oxc:swit:conn:add (@1,2),(@13)", '-200,"Execution error; 2 inputs for 1 outputs"', id="unequal"
        ),
        pytest.param(
            ":oxc:swit:conn:sub (@1),(@13)", '-200,"Execution error; 1 is not joined to 13"', id="sub-nothing"
        ),
        pytest.param(
            ":oxc:swit:conn:port? 25", '-222,"Data out of range; 25: ports are 1..24"', id="port-of-no-port"
        ),
        pytest.param(":oxc:swit:conn:port?", '-109,"Missing parameter; a port number"', id="port-of-nothing"),
        pytest.param(
            ":oxc:swit:conn:port? x", '-104,"Data type error; a port number, not x"', id="port-of-a-letter"
        ),
        pytest.param("*idn? now", '-108,"Parameter not allowed; now"', id="a-parameter-too-many"),
        pytest.param('say "hello"', '-113,"Undefined header; say"', id="unheard-of"),
    ],
)
def test_a_refused_command_changes_nothing_says_nothing_and_is_queued(line: str, said: str) -> None:
    busy = ":oxc:swit:conn:add (@7),(@20)"
    assert told(busy, line, STATE, ":syst:err?", ":syst:err?") == [
        None,
        None,
        "(@7),(@20)",
        said,
        '0,"No error"',
    ]


def test_a_switch_may_refuse_busy_ports() -> None:
    lines = [":oxc:swit:conn:add (@1),(@13)", ":oxc:swit:conn:add (@1),(@14)", STATE, ":syst:err?"]
    assert told(*lines) == [None, None, "(@1),(@14)", '0,"No error"']
    assert told(*lines, busy=Busy.REFUSE) == [
        None,
        None,
        "(@1),(@13)",
        '-221,"Settings conflict; busy: 1 is joined to 13"',
    ]


def test_errors_come_out_in_the_order_they_went_in_or_all_at_once() -> None:
    first, second = '-113,"Undefined header; a"', '-113,"Undefined header; b"'
    assert told("a;b", ":syst:err?", ":SYSTem:ERRor:NEXT?") == [None, first, second]
    assert told("a;b", ":syst:err:all?", ":syst:err:all?") == [None, f"{first},{second}", '0,"No error"']


def test_a_full_error_queue_ends_in_overflow() -> None:
    errors = told(*["nonsense"] * (ERRORS_KEPT + 5), *[":syst:err?"] * (ERRORS_KEPT + 1))[ERRORS_KEPT + 5 :]
    assert errors[-3:] == ['-113,"Undefined header; nonsense"', '-350,"Queue overflow"', '0,"No error"']


def test_complete_is_said_when_all_that_was_commanded_has_light() -> None:
    after, said = answer(device(), ":oxc:swit:conn:add (@1),(@13);*opc?", 1_000)
    assert said == Said("1", 25_001_000)
    after, _ = answer(after, ":oxc:swit:conn:add (@2),(@14)", 10_000_000)
    assert answer(after, "*opc?", 11_000_000)[1] == Said("1", 35_000_000)
    assert answer(after, "*idn?", 11_000_000)[1] == Said(device().identity, 11_000_000)
    assert answer(after, "*opc?", 50_000_000)[1] == Said("1", 50_000_000)


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        pytest.param("(@)", [], id="empty"),
        pytest.param("(@1,2, 3)", [1, 2, 3], id="blanks-after-commas"),
        pytest.param("( @ 1:3 )", [1, 2, 3], id="a-range"),
        pytest.param("(@3:1,7)", [3, 2, 1, 7], id="a-range-backwards"),
    ],
)
def test_port_lists_are_read_with_blanks_and_ranges(text: str, ports: list[int]) -> None:
    assert port_lists(text, 1) == [ports]


@given(st.lists(st.text(st.sampled_from(":*?;,()@ \t1359idnoxcswtabl\"'-é"), max_size=40), max_size=6))
def test_no_line_breaks_the_device(lines: list[str]) -> None:
    now = device()
    for line in lines:
        now, _ = answer(now, line, 0)
    assert now.store == device().store or now.store.connects


@given(st.text(max_size=60))
def test_a_port_list_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(CommandError):
        assert len(port_lists(text, 2)) == 2
