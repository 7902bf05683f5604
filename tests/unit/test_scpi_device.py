"""SCPI: what each line does and says, with the device as a value and time as a number."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.ocs.build import Build
from emulator.ocs.scpi import Scpi
from emulator.ocs.scpi_status import ERRORS_KEPT
from emulator.ocs.scpi_words import CommandError, port_lists
from moefabric.ocs_profile import Profile
from tests.ocs_lab import Bench, Client

POLATIS = Profile()


def bench(profile: Profile = POLATIS) -> Bench:
    return Bench(12, Build(profile), {"scpi": Scpi})


def line(client: Client, said: str) -> str | None:
    """What a line is answered with at once, without its end; None is nothing."""
    heard = client.told(said.encode() + b"\n").decode()
    assert heard == "" or heard.endswith("\n")
    return heard[:-1] or ("" if heard else None)


def told(*lines: str, profile: Profile = POLATIS) -> list[str | None]:
    """What a new device replies to each line. All light settles before the next."""
    device = bench(profile)
    client, replies = device.client("scpi"), []
    for said in lines:
        at_once = line(client, said)
        device.timers.pass_all()
        later = client.wire.taken().decode().rstrip("\n")
        replies.append(at_once if at_once is not None else later or None)
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
    assert told(*lines, profile=Profile(busy="refuse")) == [
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
    device = bench()
    client, other = device.client("scpi"), device.client("scpi")
    assert line(client, ":oxc:swit:conn:add (@1),(@13);*opc?") is None
    device.timers.pass_ns(10_000_000)
    assert line(other, ":oxc:swit:conn:add (@2),(@14);*opc?") is None
    assert line(other, "*idn?") is None, "replies keep the order of their lines"
    device.timers.pass_ns(14_999_999)
    assert client.wire.taken() == b""
    device.timers.pass_ns(1)
    assert client.wire.taken() == b"1\n"
    device.timers.pass_ns(10_000_000)
    assert other.wire.taken() == b"1\nPolatis,N-OST-12x12-LU1-DMHNS,000001,6.5.2.18\n"
    assert line(client, "*opc?") == "1"


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


@given(st.text(max_size=60))
def test_a_port_list_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(CommandError):
        assert len(port_lists(text, 2)) == 2
