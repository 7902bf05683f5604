"""TL1 as the driver writes and reads it: sessions, tags, acknowledgements, and what a device says of itself in between."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from controller.southbound.crossconnects import Moves
from controller.southbound.line import Line
from controller.southbound.tl1 import Answer, Tl1Device, parsed, ports
from moefabric.errors import ControlError

HEAD = "\r\n\n   ( nil ) 26-01-01 12:00:00\r\n"
REPORT = f'{HEAD}*C 7 REPT ALM PORT\r\n   "9:LOS;CR"\r\n;'


def message(tag: int, verdict: str, *lines: str, end: str = ";") -> str:
    return f"{HEAD}M  {tag} {verdict}\r\n" + "".join(f"   {line}\r\n" for line in lines) + end


LOGIN = message(1, "COMPLD")


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        pytest.param(message(3, "COMPLD"), Answer("3", "COMPLD"), id="done"),
        pytest.param(
            message(3, "COMPLD", '"1,9"', '"2,10"'),
            Answer("3", "COMPLD", '"1,9"\n   "2,10"'),
            id="with-lines",
        ),
        pytest.param(
            message(4, "DENY", "IDNV", "/* no port 99 */"),
            Answer("4", "DENY", "IDNV\n   /* no port 99 */"),
            id="denied",
        ),
        pytest.param("\r\nIP 5\r\n<", Answer("5", "IP"), id="in-progress"),
        pytest.param(REPORT, None, id="of-itself"),
    ],
)
def test_a_message_is(said: str, answer: Answer | None) -> None:
    assert parsed(said.replace("\r", "")) == answer


def test_ports_are_joined_by_ampersands() -> None:
    assert ports((1, 4, 10)) == "1&4&10"


@contextmanager
def device(*answers: str, hangs_up: bool = False) -> Iterator[tuple[Tl1Device, list[str]]]:
    """A driver, and a device that says these, one to each command. And what that heard."""
    heard: list[str] = []

    def converse(connection: socket.socket, left: Sequence[bytes]) -> None:
        text = b""
        with connection:
            for answer in left:
                while b";" not in text:
                    if not (part := connection.recv(999)):
                        return
                    text += part
                command, _, text = text.partition(b";")
                heard.append(command.decode().strip() + ";")
                connection.sendall(answer)
            if not hangs_up:
                connection.recv(999)

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        converse(connection, [answer.encode() for answer in answers])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        driver = Tl1Device(Line("ocs0", listener.getsockname()[:2], 0.5))
        yield driver, heard
        driver.close()
        thread.join(5)


def test_a_session_begins_with_a_login_and_patches_are_read() -> None:
    with device(LOGIN, message(2, "COMPLD", '"9,20"', '"1,14"')) as (driver, heard):
        assert driver.joined() == ((1, 14), (9, 20))
        assert heard == ["ACT-USER::root:1::root;", "RTRV-PATCH:::2:;"]


def test_what_goes_is_deleted_by_its_inputs_before_what_comes_is_entered() -> None:
    answers = (LOGIN, message(2, "COMPLD"), message(3, "COMPLD"))
    with device(*answers) as (driver, heard):
        assert driver.move(Moves(((1, 14), (2, 13)), ((1, 13), (2, 14)))) is None
        assert heard[1:] == ["DLT-PATCH::1&2:2:;", "ENT-PATCH::1&2,13&14:3:;"]


def test_what_a_device_says_of_itself_is_passed_over() -> None:
    with device(REPORT + LOGIN + REPORT, REPORT + message(2, "COMPLD", '"1,9"')) as (driver, _):
        assert driver.joined() == ((1, 9),)


def test_an_answer_in_parts_is_put_together() -> None:
    with device(LOGIN, message(2, "RTRV", '"1,9"', end=">") + message(2, "COMPLD", '"2,10"')) as (driver, _):
        assert driver.joined() == ((1, 9), (2, 10))


def test_a_change_that_is_acknowledged_is_accepted_and_settled_when_it_is_done() -> None:
    with device(LOGIN, "\r\nIP 2\r\n<" + message(2, "COMPLD")) as (driver, _):
        assert driver.move(Moves((), ((1, 9),))) is None
        driver.settled(0.5)
        driver.settled(0.0)


def test_a_change_that_fails_after_it_was_accepted_is_told() -> None:
    with device(LOGIN, "\r\nIP 2\r\n<" + message(2, "DENY", "SROF")) as (driver, _):
        assert driver.move(Moves((), ((1, 9),))) is None
        with pytest.raises(ControlError, match="ocs0: DENY SROF"):
            driver.settled(0.5)


def test_waiting_for_what_was_accepted_has_an_end() -> None:
    with device(LOGIN, "\r\nIP 2\r\n<") as (driver, _):
        driver.move(Moves((), ((1, 9),)))
        with pytest.raises(ControlError, match=r"no answer to the change within 0.05 s"):
            driver.settled(0.05)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(message(2, "DENY", "IDNV", "/* 99 */"), "ENT-PATCH: DENY IDNV /* 99 */", id="denied"),
        pytest.param(message(2, "PRTL", '"1,9"'), 'ENT-PATCH: PRTL "1,9"', id="done-in-part"),
    ],
)
def test_a_denial_is_told_in_the_devices_words(answer: str, words: str) -> None:
    with device(LOGIN, answer) as (driver, _):
        assert driver.move(Moves((), ((1, 9), (99, 10)))) == words


def test_a_login_that_is_denied_is_told() -> None:
    with (
        device(message(1, "DENY", "PIUI")) as (driver, _),
        pytest.raises(ControlError, match="ocs0: no login as root: DENY PIUI"),
    ):
        driver.joined()
