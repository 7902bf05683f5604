"""SCPI front end in virtual time: effects and replies of lines."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.ocs import DeviceProfile
from moefabric.emulator.ocs.device_spec import DeviceSpec
from moefabric.emulator.ocs.scpi.front_end import MAX_LINES
from moefabric.emulator.ocs.scpi.status import QUEUE_LENGTH, ScpiError
from moefabric.emulator.ocs.scpi.syntax import port_lists
from tests.support.ocs_lab import BenchClient, OcsBench

POLATIS = DeviceProfile()


def bench(profile: DeviceProfile = POLATIS) -> OcsBench:
    return OcsBench(12, DeviceSpec(profile), ["scpi"])


def send(client: BenchClient, line: str) -> str | None:
    """Send a line, and return the immediate reply without its end; None if there is none."""
    reply = client.send(line.encode() + b"\n").decode()
    assert reply == "" or reply.endswith("\n")
    return reply[:-1] or ("" if reply else None)


def replies_to(*lines: str, profile: DeviceProfile = POLATIS) -> list[str | None]:
    """Return the replies of a new device to lines. All light settles after each of them."""
    device = bench(profile)
    client, replies = device.client("scpi"), []
    for line in lines:
        immediate = send(client, line)
        device.timers.advance_all()
        later = client.connection.take().decode().rstrip("\n")
        replies.append(immediate if immediate is not None else later or None)
    return replies


STATE = ":oxc:swit:conn:stat?"


LAST_REPLIES: dict[str, tuple[list[str], str | None]] = {
    "identity": (["*IDN?"], "Polatis,N-OST-12x12-LU1-DMHNS,000001,6.5.2.18"),
    "complete": (["*OPC?"], "1"),
    "status": (["*STB?"], "0"),
    "status-with-an-error": (["nonsense", "*stb?"], "4"),
    "size": ([":oxc:swit:size?"], "12,12"),
    "nothing-joined": ([STATE], "(@),(@)"),
    "no-reply": ([":oxc:swit:conn:add (@1),(@17)"], None),
    "add": ([":oxc:swit:conn:add (@1),(@17)", STATE], "(@1),(@17)"),
    "element-wise": ([":oxc:swit:conn:add (@3,1,2),(@22,19,18)", STATE], "(@1,2,3),(@19,18,22)"),
    "kept": (
        [":oxc:swit:conn:add (@1),(@13)", ":oxc:swit:conn:add (@2),(@14)", STATE],
        "(@1,2),(@13,14)",
    ),
    "only": (
        [":oxc:swit:conn:add (@1),(@13)", ":oxc:swit:conn:only (@2),(@14)", STATE],
        "(@2),(@14)",
    ),
    "sub": (
        [":oxc:swit:conn:add (@1,2),(@13,14)", ":oxc:swit:conn:sub (@1),(@13)", STATE],
        "(@2),(@14)",
    ),
    "sub-inputs": (
        [":oxc:swit:conn:add (@1,2),(@13,14)", ":oxc:swit:conn:sub (@1),(@)", STATE],
        "(@2),(@14)",
    ),
    "only-nothing": (
        [":oxc:swit:conn:add (@1),(@13)", ":oxc:swit:conn:only (@),(@)", STATE],
        "(@),(@)",
    ),
    "disconnect-all": ([":oxc:swit:conn:add (@1),(@13)", ":oxc:swit:disc:all", STATE], "(@),(@)"),
    "reset": ([":oxc:swit:conn:add (@1),(@13)", "*rst", STATE], "(@),(@)"),
    "partner-of-an-input": ([":oxc:swit:conn:add (@2),(@18)", ":oxc:swit:conn:port? 2"], '"18"'),
    "partner-of-an-output": ([":oxc:swit:conn:add (@2),(@18)", ":oxc:swit:conn:port? 18"], '"2"'),
    "no-partner": ([":oxc:swit:conn:port? 2"], '""'),
    "no-error": ([":syst:err?"], '0,"No error"'),
    "no-errors": ([":syst:err:all?"], '0,"No error"'),
    "cleared": (["nonsense", "*cls", ":syst:err?"], '0,"No error"'),
    "empty-line": (["", STATE], "(@),(@)"),
}


@pytest.mark.parametrize(("lines", "last"), LAST_REPLIES.values(), ids=LAST_REPLIES)
def test_commands_reply_as_drivers_expect(lines: list[str], last: str | None) -> None:
    assert replies_to(*lines)[-1] == last


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
def test_headers_are_short_or_long_in_any_case(spelling: str) -> None:
    assert replies_to(":oxc:swit:conn:add (@1),(@13)", spelling)[-1] == "(@1),(@13)"


@pytest.mark.parametrize(
    "spelling", [":ox:swit:size?", ":oxc:switc:size?", ":oxc:swit:size", "oxc:swit:", ":*idn?"]
)
def test_other_abbreviations_are_undefined_headers(spelling: str) -> None:
    assert replies_to(spelling, ":syst:err?") == [None, f'-113,"Undefined header; {spelling}"']


@pytest.mark.parametrize(
    ("line", "reply"),
    [
        pytest.param(":oxc:swit:conn:add (@1),(@13);*opc?", "1", id="opc"),
        pytest.param(":oxc:swit:conn:only (@1),(@13); stat?", "(@1),(@13)", id="continues-path"),
        pytest.param(
            ":oxc:swit:conn:only (@1),(@13);*cls;stat?",
            "(@1),(@13)",
            id="common-commands-keep-the-path",
        ),
        pytest.param(
            ":oxc:swit:conn:add (@1),(@13);:oxc:swit:conn:stat?", "(@1),(@13)", id="from-the-root"
        ),
        pytest.param(
            ":oxc:swit:conn:add (@1),(@13);oxc:swit:size?",
            "12,12",
            id="from-the-root-without-colon",
        ),
        pytest.param("*stb?;:oxc:swit:size?;*opc?", "0;12,12;1", id="joined-replies"),
        pytest.param("nonsense;*opc?", "1", id="after-refused-command"),
    ],
)
def test_commands_of_a_line_are_executed_in_order(line: str, reply: str) -> None:
    assert replies_to(line) == [reply]


REFUSED: dict[str, tuple[str, str]] = {
    "no-lists": (":oxc:swit:conn:add", '-109,"Missing parameter; 2 port lists such as (@1,2)"'),
    "one-list": (":oxc:swit:conn:add (@1)", '-109,"Missing parameter; 1 port lists of 2"'),
    "three-lists": (
        ":oxc:swit:conn:add (@1),(@13),(@14)",
        '-108,"Parameter not allowed; 3 port lists of 2"',
    ),
    "no-parentheses": (
        ":oxc:swit:conn:add 1,13",
        '-102,"Syntax error; a port list such as (@1,2), not 1,13"',
    ),
    "no-comma": (
        ":oxc:swit:conn:add (@1)(@13)",
        '-102,"Syntax error; a comma and a port list, not (@13)"',
    ),
    "half": (":oxc:swit:conn:add (@1),", '-102,"Syntax error; a comma and a port list, not ,"'),
    "a-letter": (":oxc:swit:conn:add (@x),(@13)", '-104,"Data type error; a port number, not x"'),
    "a-gap": (
        ":oxc:swit:conn:add (@1,),(@13)",
        '-104,"Data type error; a port number, not nothing"',
    ),
    "too-many-ports": (
        ":oxc:swit:conn:add (@1:999999),(@13)",
        '-222,"Data out of range; more than 4096 ports in a list"',
    ),
    "no-such-input": (
        ":oxc:swit:conn:add (@99),(@13)",
        '-222,"Data out of range; 99: inputs are 1..12"',
    ),
    "no-such-output": (
        ":oxc:swit:conn:add (@1),(@1)",
        '-222,"Data out of range; 1: outputs are 13..24"',
    ),
    "output-twice": (
        ":oxc:swit:conn:add (@1,2),(@13,13)",
        '-221,"Settings conflict; output 13 twice"',
    ),
    "unequal": (
        ":oxc:swit:conn:add (@1,2),(@13)",
        '-200,"Execution error; 2 inputs for 1 outputs"',
    ),
    "sub-nothing": (
        ":oxc:swit:conn:sub (@1),(@13)",
        '-200,"Execution error; 1 is not joined to 13"',
    ),
    "port-of-no-port": (":oxc:swit:conn:port? 25", '-222,"Data out of range; 25: ports are 1..24"'),
    "port-of-nothing": (":oxc:swit:conn:port?", '-109,"Missing parameter; a port number"'),
    "port-of-a-letter": (":oxc:swit:conn:port? x", '-104,"Data type error; a port number, not x"'),
    "a-parameter-too-many": ("*idn? now", '-108,"Parameter not allowed; now"'),
    "undefined": ('say "hello"', '-113,"Undefined header; say"'),
}


@pytest.mark.parametrize(("line", "error"), REFUSED.values(), ids=REFUSED)
def test_refused_command_changes_nothing_and_queues_error(line: str, error: str) -> None:
    busy = ":oxc:swit:conn:add (@7),(@20)"
    assert replies_to(busy, line, STATE, ":syst:err?", ":syst:err?") == [
        None,
        None,
        "(@7),(@20)",
        error,
        '0,"No error"',
    ]


def test_profile_can_refuse_busy_ports() -> None:
    lines = [":oxc:swit:conn:add (@1),(@13)", ":oxc:swit:conn:add (@1),(@14)", STATE, ":syst:err?"]
    assert replies_to(*lines) == [None, None, "(@1),(@14)", '0,"No error"']
    assert replies_to(*lines, profile=DeviceProfile(busy="refuse")) == [
        None,
        None,
        "(@1),(@13)",
        '-221,"Settings conflict; busy: 1 is joined to 13"',
    ]


def test_error_queue_is_first_in_first_out() -> None:
    first, second = '-113,"Undefined header; a"', '-113,"Undefined header; b"'
    assert replies_to("a;b", ":syst:err?", ":SYSTem:ERRor:NEXT?") == [None, first, second]
    assert replies_to("a;b", ":syst:err:all?", ":syst:err:all?") == [
        None,
        f"{first},{second}",
        '0,"No error"',
    ]


def test_full_error_queue_ends_in_overflow() -> None:
    errors = replies_to(*["nonsense"] * (QUEUE_LENGTH + 5), *[":syst:err?"] * (QUEUE_LENGTH + 1))[
        QUEUE_LENGTH + 5 :
    ]
    assert errors[-3:] == [
        '-113,"Undefined header; nonsense"',
        '-350,"Queue overflow"',
        '0,"No error"',
    ]


def test_opc_query_waits_for_earlier_commands_only() -> None:
    device = bench()
    client, other = device.client("scpi"), device.client("scpi")
    assert send(client, ":oxc:swit:conn:add (@1),(@13);*opc?") is None
    device.timers.advance_ns(10_000_000)
    assert send(other, ":oxc:swit:conn:add (@2),(@14);*opc?") is None
    assert send(other, "*idn?") is None, "replies keep the order of their lines"
    device.timers.advance_ns(14_999_999)
    assert client.connection.take() == b""
    device.timers.advance_ns(1)
    assert client.connection.take() == b"1\n"
    device.timers.advance_ns(10_000_000)
    assert other.connection.take() == b"1\nPolatis,N-OST-12x12-LU1-DMHNS,000001,6.5.2.18\n"
    assert send(client, "*opc?") == "1"


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        pytest.param("(@)", [], id="empty"),
        pytest.param("(@1,2, 3)", [1, 2, 3], id="blanks-after-commas"),
        pytest.param("( @ 1:3 )", [1, 2, 3], id="a-range"),
        pytest.param("(@3:1,7)", [3, 2, 1, 7], id="a-range-backwards"),
    ],
)
def test_port_lists_allow_blanks_and_ranges(text: str, ports: list[int]) -> None:
    assert port_lists(text, 1) == [ports]


@given(st.text(max_size=60))
def test_any_port_list_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(ScpiError):
        assert len(port_lists(text, 2)) == 2


def test_no_line_of_a_long_burst_is_lost() -> None:
    client = bench().client("scpi")
    assert client.send(b"*stb?\n" * (MAX_LINES + 10)) == b"0\n" * (MAX_LINES + 10)
