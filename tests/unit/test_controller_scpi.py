"""SCPI as the driver writes and reads it, and what it does when a device is silent, strange or gone."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from time import monotonic

import pytest

from controller.southbound.crossconnects import obstacle
from controller.southbound.driven_ocs import DrivenOcs
from controller.southbound.line import Line
from controller.southbound.scpi import ScpiDevice, parsed_state, port_lists
from moefabric.circuits import CircuitSet
from moefabric.errors import ControlError
from moefabric.topology import Fabric, Ocs, Region

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
def test_cross_connects_are_two_lists(connects: list[tuple[int, int]], text: str) -> None:
    assert port_lists(connects) == text
    assert parsed_state(text) == tuple(connects)


@pytest.mark.parametrize(
    ("said", "connects"),
    [
        pytest.param("(@1, 2, 3), (@19, 18, 22)\r", ((1, 19), (2, 18), (3, 22)), id="blanks-between"),
        pytest.param(" (@),(@) ", (), id="blanks-around"),
    ],
)
def test_a_device_may_set_its_blanks_where_it_likes(said: str, connects: tuple[tuple[int, int], ...]) -> None:
    assert parsed_state(said) == connects


@pytest.mark.parametrize("said", ["", "1", "(@1,2),(@3)", "(@1),(@x)", "(1),(3)"])
def test_what_is_no_pair_of_lists_is_refused(said: str) -> None:
    with pytest.raises(ValueError, match=r"is not a pair of port lists|zip"):
        parsed_state(said)


@pytest.mark.parametrize(
    ("out", "into", "why"),
    [
        pytest.param([], [(2, 6)], None, id="free-ports"),
        pytest.param([(1, 7)], [(1, 6)], None, id="freed-in-the-same-change"),
        pytest.param([(2, 6)], [], "2-6 not connected", id="gone-already"),
        pytest.param([], [(1, 6)], "1-6 busy", id="a-busy-input"),
        pytest.param([], [(2, 7)], "2-7 busy", id="a-busy-output"),
    ],
)
def test_in_the_way_is(out: list[tuple[int, int]], into: list[tuple[int, int]], why: str | None) -> None:
    assert obstacle([(1, 7)], out, into) == why


@contextmanager
def device(
    *conversations: Sequence[bytes], hangs_up: bool = False
) -> Iterator[tuple[tuple[str, int], list[bytes]]]:
    """A peer that says these lines, one to each line with a question, in one connection after the other. And what it heard."""
    heard: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        for answers in conversations:
            try:
                connection, _ = listener.accept()
            except OSError:  # nobody called before the end
                return
            converse(connection, answers)

    def converse(connection: socket.socket, answers: Sequence[bytes]) -> None:
        left = list(answers)
        with connection, connection.makefile("rb") as lines:
            for line in lines:
                heard.append(line)
                if b"?" in line and left:
                    connection.sendall(left.pop(0))
                if b"?" in line and not left and hangs_up:
                    break

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        yield listener.getsockname()[:2], heard


def ocs(address: tuple[str, int], timeout_s: float = 5.0) -> DrivenOcs:
    return DrivenOcs(FABRIC, REGION, ScpiDevice(Line("ocs0", address, timeout_s)))


def test_a_change_is_one_line_with_the_error_queue_asked_in_it() -> None:
    with device([b"(@2,4),(@8,6)\n", b'0,"No error"\n']) as (address, heard), ocs(address) as driver:
        driver.reconfigure(CircuitSet.of(["s0/o1~s1/o1"]).towards(PAIR))
        assert heard == [
            b"*cls\n",
            b":oxc:swit:conn:stat?\n",
            b":oxc:swit:conn:sub (@2,4),(@8,6);:oxc:swit:conn:add (@1,3),(@7,5);:syst:err?\n",
        ]


def test_a_device_that_does_half_of_a_line_is_put_back_as_it_was() -> None:
    """Commands of a line stand alone: the light that was to go is gone, though what was to come was refused."""
    answers = [b"(@2,4),(@8,6)\n", b'-221,"Settings conflict"\n', b"(@),(@)\n", b'0,"No error"\n']
    with device(answers) as (address, heard), ocs(address) as driver:
        with pytest.raises(ControlError, match='ocs0 refuses: -221,"Settings conflict"; nothing has changed'):
            driver.reconfigure(CircuitSet.of(["s0/o1~s1/o1"]).towards(PAIR))
        assert heard[3:] == [
            b"*cls\n",
            b":oxc:swit:conn:stat?\n",
            b":oxc:swit:conn:add (@2,4),(@8,6);:syst:err?\n",
        ]


def test_a_device_that_can_not_be_put_back_is_told_of() -> None:
    answers = [b"(@2,4),(@8,6)\n", b'-221,"Settings conflict"\n', b"(@),(@)\n", b'-240,"Hardware error"\n']
    with (
        device(answers) as (address, _),
        ocs(address) as driver,
        pytest.raises(ControlError, match="part of it may be done, for it can't be undone either: -240"),
    ):
        driver.reconfigure(CircuitSet.of(["s0/o1~s1/o1"]).towards(PAIR))


def test_nothing_to_change_says_nothing() -> None:
    with device([]) as (address, heard), ocs(address) as driver:
        driver.reconfigure(PAIR.towards(PAIR))
        assert heard == []


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        pytest.param([], "ocs0 at 127.0.0.1:[0-9]+: it hung up", id="hangs-up"),
        pytest.param([b"(@1),(@"], "it hung up", id="hangs-up-in-the-middle-of-a-line"),
        pytest.param(
            [b"what?\n"], "conn:stat\\? says 'what\\?', which is no pair of port lists", id="strange-words"
        ),
    ],
)
def test_a_faulty_answer_is_told_with_its_place(answers: list[bytes], said: str) -> None:
    with (
        device(answers, answers, hangs_up=True) as (address, _),
        ocs(address) as driver,
        pytest.raises(ControlError, match=said),
    ):
        driver.lit()


def test_silence_ends_with_the_deadline_and_a_late_answer_is_not_taken_for_the_next() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ocs(listener.getsockname()[:2], 0.05) as driver:
        with pytest.raises(ControlError, match=r"no answer to :oxc:swit:conn:stat\? within 0.05 s"):
            driver.lit()
        first, _ = listener.accept()
        with first:
            first.sendall(b"(@),(@)\n")
            with pytest.raises(ControlError, match=r"no answer to \*opc\? within 0.01 s"):
                driver.settled(0.01)


def test_nobody_there_is_told_with_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()[:2]
    with (
        ocs(address) as driver,
        pytest.raises(ControlError, match=f"ocs0 at 127.0.0.1:{address[1]}: .*refused"),
    ):
        driver.lit()


def test_half_an_answer_is_forgotten_and_the_question_asked_again() -> None:
    with device([b"(@2"], [b"(@1,3),(@7,5)\n"], hangs_up=True) as (address, heard), ocs(address) as driver:
        assert driver.lit() == PAIR
        assert heard == 2 * [b"*cls\n", b":oxc:swit:conn:stat?\n"]


def test_a_device_that_was_started_anew_is_called_again_without_a_word() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ocs(listener.getsockname()[:2]) as driver:

        def serve() -> None:
            for _ in range(2):
                with listener.accept()[0] as connection, connection.makefile("rb") as lines:
                    assert [next(lines), next(lines)] == [b"*cls\n", b":oxc:swit:conn:stat?\n"]
                    connection.sendall(b"(@1,3),(@7,5)\n")

        thread = threading.Thread(target=serve)
        thread.start()
        assert [driver.lit(), driver.lit()] == [PAIR, PAIR]
        thread.join(5)


@pytest.mark.parametrize(
    ("shown", "told_again"),
    [
        pytest.param(b"(@1,3),(@7,5)\n", [], id="done"),
        pytest.param(b"(@),(@)\n", [b":oxc:swit:conn:add (@1,3),(@7,5);:syst:err?\n"], id="not-done"),
        pytest.param(b"(@1),(@7)\n", [b":oxc:swit:conn:add (@3),(@5);:syst:err?\n"], id="half-done"),
    ],
)
def test_after_a_lost_answer_the_device_is_told_what_it_has_not_done_and_no_more(
    shown: bytes, told_again: list[bytes]
) -> None:
    conversations = [b"(@),(@)\n", b""], [shown, *([b'0,"No error"\n'] if told_again else [])]
    with device(*conversations, hangs_up=True) as (address, heard), ocs(address) as driver:
        driver.reconfigure(CircuitSet().towards(PAIR))
    assert heard[3:] == [b"*cls\n", b":oxc:swit:conn:stat?\n", *told_again]


def test_a_device_that_hangs_up_on_every_command_is_given_up() -> None:
    answers = [b"(@),(@)\n", b""]
    with (
        device(answers, *(2 * [answers]), hangs_up=True) as (address, heard),
        ocs(address) as driver,
        pytest.raises(ControlError, match=r"it hung up|reset"),
    ):
        driver.reconfigure(CircuitSet().towards(PAIR))
    assert sum(b"add" in line for line in heard) == 3


def test_a_device_that_drips_is_not_waited_for_longer_than_one_that_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ocs(listener.getsockname()[:2], 0.2) as driver:
        over = threading.Event()

        def drip() -> None:
            with listener.accept()[0] as connection, suppress(OSError):  # until the driver has hung up
                while not over.wait(0.02):
                    connection.sendall(b"(")

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        started = monotonic()
        with pytest.raises(ControlError, match=r"no answer to :oxc:swit:conn:stat\? within 0.2 s"):
            driver.lit()
        assert monotonic() - started < 1
        over.set()
        thread.join(5)
