"""The SCPI driver, and its reaction to silent, strange and absent devices."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic

import pytest

from moefabric.controller.southbound.ocs.connection import DeviceConnection
from moefabric.controller.southbound.ocs.cross_connects import find_conflict
from moefabric.controller.southbound.ocs.remote_ocs import RemoteOcs
from moefabric.controller.southbound.ocs.scpi import ScpiDriver, format_port_lists, parse_port_lists
from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import ControlError
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region

FABRIC = Fabric("f", (Region("r0", 0, ("s0", "s1"), Ocs("ocs0", 4)),), 8, 2, 0, 1e9, None)
REGION = FABRIC.regions[0]
PAIR = CircuitSet.of(["s0/o0~s1/o0"])


@pytest.mark.parametrize(
    ("connects", "text"),
    [
        pytest.param([], "(@),(@)", id="none"),
        pytest.param([(1, 7)], "(@1),(@7)", id="one"),
        pytest.param([(1, 7), (3, 5)], "(@1,3),(@7,5)", id="two"),
    ],
)
def test_port_lists_round_trip(connects: list[tuple[int, int]], text: str) -> None:
    assert format_port_lists(connects) == text
    assert parse_port_lists(text) == tuple(connects)


@pytest.mark.parametrize(
    ("text", "connects"),
    [
        pytest.param(
            "(@1, 2, 3), (@19, 18, 22)\r", ((1, 19), (2, 18), (3, 22)), id="blanks-between"
        ),
        pytest.param(" (@),(@) ", (), id="blanks-around"),
    ],
)
def test_parse_port_lists_ignores_blanks(text: str, connects: tuple[tuple[int, int], ...]) -> None:
    assert parse_port_lists(text) == connects


@pytest.mark.parametrize("text", ["", "1", "(@1,2),(@3)", "(@1),(@x)", "(1),(3)"])
def test_parse_port_lists_refuses_other_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a pair of port lists|zip"):
        parse_port_lists(text)


@pytest.mark.parametrize(
    ("out", "into", "why"),
    [
        pytest.param([], [(2, 6)], None, id="free-ports"),
        pytest.param([(1, 7)], [(1, 6)], None, id="freed-in-the-same-change"),
        pytest.param([(2, 6)], [], "2-6 not connected", id="gone-already"),
        pytest.param([], [(1, 6)], "1-6 busy: 1-7 connected", id="a-busy-input"),
        pytest.param([], [(2, 7)], "2-7 busy: 1-7 connected", id="a-busy-output"),
    ],
)
def test_find_conflict(
    out: list[tuple[int, int]], into: list[tuple[int, int]], why: str | None
) -> None:
    assert find_conflict([(1, 7)], out, into) == why


@contextmanager
def device(
    *conversations: Sequence[bytes], hangs_up: bool = False
) -> Iterator[tuple[tuple[str, int], list[bytes]]]:
    """Yield the address of a peer that answers queries by these lines, and what it received."""
    received: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        for answers in conversations:
            try:
                connection, _ = listener.accept()
            except OSError:  # no connection came
                return
            with suppress(ConnectionResetError):  # the driver has left an answer unread
                converse(connection, answers)

    def converse(connection: socket.socket, answers: Sequence[bytes]) -> None:
        left = list(answers)
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                received.append(line)
                if b"?" in line and left:
                    connection.sendall(left.pop(0))
                if b"?" in line and not left and hangs_up:
                    break

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield listener.getsockname()[:2], received


def ocs(address: tuple[str, int], timeout_s: float = 5.0) -> RemoteOcs:
    return RemoteOcs(FABRIC, REGION, ScpiDriver(DeviceConnection("ocs0", address, timeout_s)))


def test_change_is_one_line_that_queries_the_error_queue() -> None:
    with (
        device([b"(@2,4),(@8,6)\n", b'0,"No error"\n']) as (address, received),
        ocs(address) as driver,
    ):
        driver.reconfigure(CircuitSet.of(["s0/o1~s1/o1"]).transition_to(PAIR))
        assert received == [
            b"*cls\n",
            b":oxc:swit:conn:stat?\n",
            b":oxc:swit:conn:sub (@2,4),(@8,6);:oxc:swit:conn:add (@1,3),(@7,5);:syst:err?\n",
        ]


def test_state_is_asked_for_behind_the_completion() -> None:
    """One line has both queries and one line both answers; `*wai` keeps their order."""
    with device([b"1;(@1,3),(@7,5)\n"]) as (address, received), ocs(address) as driver:
        assert driver.settled_circuits(1) == PAIR
        assert received == [b"*cls\n", b"*opc?;*wai;:oxc:swit:conn:stat?\n"]


def test_strange_completion_leaves_no_answer_for_the_next_query() -> None:
    answers = [b"0;(@),(@)\n", b"(@1,3),(@7,5)\n"]
    with device(answers) as (address, _), ocs(address) as driver:
        with pytest.raises(ControlError, match=r"ocs0: \*opc\? says '0' instead of 1"):
            driver.settled_circuits(1)
        assert driver.circuits() == PAIR


def test_partly_executed_change_is_undone() -> None:
    """The device executes each command of a line by itself: here the removal, not the addition."""
    answers = [b"(@2,4),(@8,6)\n", b'-221,"Settings conflict"\n', b"(@),(@)\n", b'0,"No error"\n']
    with device(answers) as (address, received), ocs(address) as driver:
        with pytest.raises(
            ControlError, match='ocs0 refuses: -221,"Settings conflict"; nothing has changed'
        ):
            driver.reconfigure(CircuitSet.of(["s0/o1~s1/o1"]).transition_to(PAIR))
        assert received[3:] == [
            b"*cls\n",
            b":oxc:swit:conn:stat?\n",
            b":oxc:swit:conn:add (@2,4),(@8,6);:syst:err?\n",
        ]


def test_change_that_cannot_be_undone_is_reported() -> None:
    answers = [
        b"(@2,4),(@8,6)\n",
        b'-221,"Settings conflict"\n',
        b"(@),(@)\n",
        b'-240,"Hardware error"\n',
    ]
    with (
        device(answers) as (address, _),
        ocs(address) as driver,
        pytest.raises(
            ControlError, match="part of it may be done, for it can't be undone either: -240"
        ),
    ):
        driver.reconfigure(CircuitSet.of(["s0/o1~s1/o1"]).transition_to(PAIR))


def test_empty_transition_sends_nothing() -> None:
    with device([]) as (address, received), ocs(address) as driver:
        driver.reconfigure(PAIR.transition_to(PAIR))
        assert received == []


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        pytest.param([], "ocs0 at 127.0.0.1:[0-9]+: it hung up", id="hangs-up"),
        pytest.param([b"(@1),(@"], "it hung up", id="hangs-up-in-the-middle-of-a-line"),
        pytest.param(
            [b"what?\n"],
            "conn:stat\\? says 'what\\?', which is no pair of port lists",
            id="strange-words",
        ),
    ],
)
def test_malformed_answers_name_the_device(answers: list[bytes], text: str) -> None:
    with (
        device(answers, answers, hangs_up=True) as (address, _),
        ocs(address) as driver,
        pytest.raises(ControlError, match=text),
    ):
        driver.circuits()


def test_late_answer_is_not_taken_for_the_next() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        ocs(listener.getsockname()[:2], 0.05) as driver,
    ):
        with pytest.raises(ControlError, match=r"no answer to :oxc:swit:conn:stat\? within 0.05 s"):
            driver.circuits()
        first, _ = listener.accept()
        with first:
            first.sendall(b"(@),(@)\n")
            with pytest.raises(ControlError, match=r"no answer to \*opc\? within 0.01 s"):
                driver.wait_settled(0.01)


def test_refused_connection_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
    with (
        ocs(address) as driver,
        pytest.raises(ControlError, match=f"ocs0 at 127.0.0.1:{address[1]}: .*refused"),
    ):
        driver.circuits()


def test_read_is_repeated_after_a_partial_answer() -> None:
    with (
        device([b"(@2"], [b"(@1,3),(@7,5)\n"], hangs_up=True) as (address, received),
        ocs(address) as driver,
    ):
        assert driver.circuits() == PAIR
        assert received == 2 * [b"*cls\n", b":oxc:swit:conn:stat?\n"]


def test_restarted_device_is_reconnected() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        ocs(listener.getsockname()[:2]) as driver,
    ):

        def serve() -> None:
            for _ in range(2):
                with listener.accept()[0] as connection, connection.makefile("rb") as lines:
                    assert [next(lines), next(lines)] == [b"*cls\n", b":oxc:swit:conn:stat?\n"]
                    connection.sendall(b"(@1,3),(@7,5)\n")

        thread = threading.Thread(target=serve)
        thread.start()
        assert [driver.circuits(), driver.circuits()] == [PAIR, PAIR]
        thread.join(30)


@pytest.mark.parametrize(
    ("shown", "told_again"),
    [
        pytest.param(b"(@1,3),(@7,5)\n", [], id="done"),
        pytest.param(
            b"(@),(@)\n", [b":oxc:swit:conn:add (@1,3),(@7,5);:syst:err?\n"], id="not-done"
        ),
        pytest.param(
            b"(@1),(@7)\n", [b":oxc:swit:conn:add (@3),(@5);:syst:err?\n"], id="half-done"
        ),
    ],
)
def test_lost_answer_repeats_only_what_is_missing(shown: bytes, told_again: list[bytes]) -> None:
    conversations = [b"(@),(@)\n", b""], [shown, *([b'0,"No error"\n'] if told_again else [])]
    with device(*conversations, hangs_up=True) as (address, received), ocs(address) as driver:
        driver.reconfigure(CircuitSet().transition_to(PAIR))
    assert received[3:] == [b"*cls\n", b":oxc:swit:conn:stat?\n", *told_again]


def test_device_that_always_hangs_up_is_given_up() -> None:
    answers = [b"(@),(@)\n", b""]
    with (
        device(answers, *(2 * [answers]), hangs_up=True) as (address, received),
        ocs(address) as driver,
        pytest.raises(ControlError, match=r"it hung up|reset"),
    ):
        driver.reconfigure(CircuitSet().transition_to(PAIR))
    assert sum(b"add" in line for line in received) == 3


def test_slow_bytes_do_not_extend_the_deadline() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        ocs(listener.getsockname()[:2], 0.2) as driver,
    ):
        over = threading.Event()

        def drip() -> None:
            with (
                listener.accept()[0] as connection,
                suppress(OSError),
            ):  # until the driver has hung up
                while not over.wait(0.02):
                    connection.sendall(b"(")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        started = monotonic()
        with pytest.raises(ControlError, match=r"no answer to :oxc:swit:conn:stat\? within 0.2 s"):
            driver.circuits()
        assert monotonic() - started < 1
        over.set()
        thread.join(30)
