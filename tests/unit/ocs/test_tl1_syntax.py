"""Syntax of TL1: commands, port lists, messages."""

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moefabric.emulator.ocs.tl1.frames import (
    Message,
    acknowledgement,
    autonomous,
    heading,
    quote,
    response,
)
from moefabric.emulator.ocs.tl1.parameters import port_list, port_pairs, ports
from moefabric.emulator.ocs.tl1.syntax import (
    MAX_COMMAND_BYTES,
    Command,
    CommandReader,
    DeniedError,
    Field,
    parse_command,
)

NEW_YEAR = heading("ocs0", 1767225600.0)
VALID = range(1, 25)


def texts(*pieces: bytes) -> list[str | None]:
    commands = CommandReader()
    return [text for piece in pieces for text in commands.feed(piece)]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        pytest.param([b"A:::1:;"], ["A:::1:"], id="one"),
        pytest.param([b"A:::1:;B:::2:;C"], ["A:::1:", "B:::2:"], id="several"),
        pytest.param([b"A::", b":1", b":", b";"], ["A:::1:"], id="in-pieces"),
        pytest.param([b"A:::1:"], [], id="half-a-command"),
        pytest.param([b'A:"x;y"::1:;'], ['A:"x;y"::1:'], id="a-semicolon-in-quotes"),
        pytest.param([rb'A:"x\";y"::1:;'], [r'A:"x\";y"::1:'], id="a-quote-in-quotes"),
        pytest.param([b'A:"x;\nB:::1:;'], ['A:"x;\nB:::1:'], id="quotes-end-with-the-line"),
        pytest.param([b"x" * MAX_COMMAND_BYTES + b"x;B:::1:;"], [None, "B:::1:"], id="too-long"),
        pytest.param([b"x" * MAX_COMMAND_BYTES] * 3 + [b";B;"], [None, "B"], id="much-too-long"),
        pytest.param([b"\xff;"], ["\ufffd"], id="not-ascii"),
    ],
)
def test_reader_divides_bytes_into_commands(
    pieces: list[bytes], expected: list[str | None]
) -> None:
    assert texts(*pieces) == expected


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_reader_is_independent_of_segmentation(data: bytes, cuts: list[int]) -> None:
    places = sorted({0, *(min(cut, len(data)) for cut in cuts), len(data)})
    pieces = [data[a:b] for a, b in itertools.pairwise(places)]
    assert texts(*pieces) == texts(data)


def test_command_is_parsed_into_fields() -> None:
    parsed = parse_command(' \r\n set - port-PMON:"a b":1&&3:c7:::WAVE=1310,OFFSET=-1')
    assert isinstance(parsed, Command)
    assert (parsed.verb, parsed.tid, parsed.aid.value, parsed.ctag) == (
        "SET-PORT-PMON",
        "a b",
        "1&&3",
        "c7",
    )
    assert [word.value for word in parsed.fields(2)] == ["WAVE=1310", "OFFSET=-1"]
    assert parsed.fields(0) == []
    assert parsed.fields(3) == []


@pytest.mark.parametrize(
    ("text", "code", "ctag"),
    [
        pytest.param("RTRV-PATCH", "IICT", "0", id="nothing-else"),
        pytest.param("RTRV-PATCH:::", "IICT", "0", id="no-tag"),
        pytest.param("RTRV-PATCH:::a b:", "IICT", "0", id="a-tag-of-two-words"),
        pytest.param("RTRV-PATCH:::%:", "IICT", "0", id="a-strange-tag"),
        pytest.param("RTRV-PATCH:::123456789012345678901:", "IICT", "0", id="a-long-tag"),
        pytest.param("RTRV-PATCH:9::1:", "IITA", "1", id="a-target-that-is-a-number"),
        pytest.param("9:::1:", "IISP", "1", id="a-verb-that-is-a-number"),
        pytest.param('X::"a:1:', "IICT", "0", id="quotes-that-swallow-the-tag"),
        pytest.param('X:::1:::L="a', "IISP", "1", id="quotes-that-don't-end"),
    ],
)
def test_invalid_command_is_denied_with_its_tag(text: str, code: str, ctag: str) -> None:
    with pytest.raises(DeniedError) as denied_:
        parse_command(text)
    assert (denied_.value.code, denied_.value.ctag) == (code, ctag)


@pytest.mark.parametrize(
    ("text", "ports_"),
    [
        pytest.param("1", [1], id="one"),
        pytest.param("11&4&10", [11, 4, 10], id="list"),
        pytest.param("1&&4", [1, 2, 3, 4], id="range"),
        pytest.param("9&1&&3&24", [9, 1, 2, 3, 24], id="both"),
        pytest.param("3&&3", [3], id="range-of-one"),
        pytest.param(" 1 & 2 ", [1, 2], id="spaces"),
    ],
)
def test_port_list_is_parsed(text: str, ports_: list[int]) -> None:
    assert port_list(Field(text, 0), VALID) == ports_


@pytest.mark.parametrize(
    "text", ["0", "25", "-1", "x", "1&", "&1", "&", "1&&", "1&&25", "4&&1", "1&&2&&", "1.5", "٣"]
)
def test_invalid_port_list_is_denied(text: str) -> None:
    with pytest.raises(DeniedError) as denied_:
        port_list(Field(text, 0), VALID)
    assert denied_.value.code == "IDNV"


def test_empty_port_list_means_all_ports() -> None:
    assert ports(Field("", 0), VALID) == ports(Field("all", 0), VALID) == list(VALID)


def test_port_pairs_are_paired_element_by_element() -> None:
    assert port_pairs(Field("3&1&&2,13&&15", 0), range(1, 13), range(13, 25)) == [
        (3, 13),
        (1, 14),
        (2, 15),
    ]


@given(st.text(max_size=30))
def test_any_text_is_a_port_list_or_denied(text: str) -> None:
    try:
        numbers = port_list(Field(text, 0), VALID)
    except DeniedError:
        return
    assert set(numbers) <= set(VALID)


def test_message_layout() -> None:
    header = b"\r\n\n   ocs0 26-01-01 00:00:00\r\n"
    assert (
        response(NEW_YEAR, "1", "COMPLD", [quote("1,9")])
        == header + b'M  1 COMPLD\r\n   "1,9"\r\n;'
    )
    assert (
        response(NEW_YEAR, "1", "DENY", ["IDNV"], "no")
        == header + b"M  1 DENY\r\n   IDNV\r\n   /* no */\r\n;"
    )
    assert (
        response(NEW_YEAR, "1", "PRTL", ["SROF", '"1,9"'])
        == header + b'M  1 PRTL\r\n   SROF\r\n   "1,9"\r\n;'
    )
    alarm = Message("**", "REPT ALM EQPT", ('"1:MJ"',))
    assert autonomous(NEW_YEAR, 7, alarm) == header + b'** 7 REPT ALM EQPT\r\n   "1:MJ"\r\n;'
    assert acknowledgement("IP", "1") == b"\r\nIP 1\r\n<"
    assert response(heading("", 0.0), "1", "COMPLD").startswith(
        b"\r\n\n   ( nil ) 70-01-01 00:00:00\r\n"
    )


@example("a */ b; c")
@given(st.text(max_size=50))
def test_remark_cannot_end_message(remark: str) -> None:
    message = response(NEW_YEAR, "1", "DENY", ["IDNV"], remark)
    assert message.count(b";") == 1
    assert message.count(b"*/") == (1 if remark else 0)
    assert message.endswith(b"\r\n;")
