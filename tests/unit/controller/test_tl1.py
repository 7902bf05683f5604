"""The TL1 driver: sessions, tags, acknowledgements and autonomous messages."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from moefabric.controller.southbound.ocs.connection import DeviceConnection, LoginRefusedError
from moefabric.controller.southbound.ocs.cross_connects import CrossConnectChange
from moefabric.controller.southbound.ocs.tl1 import Tl1Driver, Tl1Response, parse_message
from moefabric.core.errors import ControlError

HEAD = "\r\n\n   ( nil ) 26-01-01 12:00:00\r\n"
REPORT = f'{HEAD}*C 7 REPT ALM PORT\r\n   "9:LOS;CR"\r\n;'


def message(tag: int, verdict: str, *lines: str, end: str = ";") -> str:
    return f"{HEAD}M  {tag} {verdict}\r\n" + "".join(f"   {line}\r\n" for line in lines) + end


LOGIN = message(1, "COMPLD")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        pytest.param(message(3, "COMPLD"), Tl1Response("3", "COMPLD"), id="done"),
        pytest.param(
            message(3, "COMPLD", '"1,9"', '"2,10"'),
            Tl1Response("3", "COMPLD", '"1,9"\n   "2,10"'),
            id="with-lines",
        ),
        pytest.param(
            message(4, "DENY", "IDNV", "/* no port 99 */"),
            Tl1Response("4", "DENY", "IDNV\n   /* no port 99 */"),
            id="denied",
        ),
        pytest.param("\r\nIP 5\r\n<", Tl1Response("5", "IP"), id="in-progress"),
        pytest.param(REPORT, None, id="of-itself"),
    ],
)
def test_parse_message(text: str, answer: Tl1Response | None) -> None:
    assert parse_message(text.replace("\r", "")) == answer


@contextmanager
def device(
    *answers: str, hangs_up: bool = False, password_env: str | None = None
) -> Iterator[tuple[Tl1Driver, list[str]]]:
    """Yield a driver of a device with one answer per command, and the device's commands."""
    commands: list[str] = []

    def converse(connection: socket.socket, left: Sequence[bytes]) -> None:
        text = b""
        with connection:
            for answer in left:
                while b";" not in text:
                    if not (part := connection.recv(999)):
                        return
                    text += part
                command, _, text = text.partition(b";")
                commands.append(command.decode().strip() + ";")
                connection.sendall(answer)
            if not hangs_up:
                connection.recv(999)

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        converse(connection, [answer.encode() for answer in answers])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        connection = DeviceConnection("ocs0", listener.getsockname()[:2], 0.5)
        driver = Tl1Driver(connection, password_env=password_env)
        yield driver, commands
        driver.close()
        thread.join(30)


def test_session_begins_with_a_login() -> None:
    with device(LOGIN, message(2, "COMPLD", '"9,20"', '"1,14"')) as (driver, commands):
        assert driver.cross_connects() == ((1, 14), (9, 20))
        assert commands == ["ACT-USER::root:1::root;", "RTRV-PATCH:::2:;"]


def test_apply_deletes_before_it_enters() -> None:
    answers = (LOGIN, message(2, "COMPLD"), message(3, "COMPLD"))
    with device(*answers) as (driver, commands):
        assert driver.apply(CrossConnectChange(((1, 14), (2, 13)), ((1, 13), (2, 14)))) is None
        assert commands[1:] == ["DLT-PATCH::1&2:2:;", "ENT-PATCH::1&2,13&14:3:;"]


def test_autonomous_messages_are_skipped() -> None:
    with device(REPORT + LOGIN + REPORT, REPORT + message(2, "COMPLD", '"1,9"')) as (driver, _):
        assert driver.cross_connects() == ((1, 9),)


def test_partial_responses_are_joined() -> None:
    with device(LOGIN, message(2, "RTRV", '"1,9"', end=">") + message(2, "COMPLD", '"2,10"')) as (
        driver,
        _,
    ):
        assert driver.cross_connects() == ((1, 9), (2, 10))


def test_acknowledged_change_settles_when_completed() -> None:
    with device(LOGIN, "\r\nIP 2\r\n<" + message(2, "COMPLD")) as (driver, _):
        assert driver.apply(CrossConnectChange((), ((1, 9),))) is None
        driver.wait_settled(0.5)
        driver.wait_settled(0.0)


def test_accepted_change_that_is_denied_is_an_error() -> None:
    with device(LOGIN, "\r\nIP 2\r\n<" + message(2, "DENY", "SROF")) as (driver, _):
        assert driver.apply(CrossConnectChange((), ((1, 9),))) is None
        with pytest.raises(ControlError, match="ocs0: DENY SROF"):
            driver.wait_settled(0.5)


def test_wait_settled_ends_at_its_deadline() -> None:
    with device(LOGIN, "\r\nIP 2\r\n<") as (driver, _):
        driver.apply(CrossConnectChange((), ((1, 9),)))
        with pytest.raises(ControlError, match=r"no answer to the change within 0.05 s"):
            driver.wait_settled(0.05)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(
            message(2, "DENY", "IDNV", "/* 99 */"), "ENT-PATCH: DENY IDNV /* 99 */", id="denied"
        ),
        pytest.param(message(2, "PRTL", '"1,9"'), 'ENT-PATCH: PRTL "1,9"', id="done-in-part"),
    ],
)
def test_apply_returns_the_denial(answer: str, words: str) -> None:
    with device(LOGIN, answer) as (driver, _):
        assert driver.apply(CrossConnectChange((), ((1, 9), (99, 10)))) == words


def test_denied_login_names_what_holds_the_password() -> None:
    with (
        device(message(1, "DENY", "PIUI"), password_env="LAB_OCS") as (driver, _),
        pytest.raises(LoginRefusedError, match=r"PIUI: set ocs\.user, or the password in LAB_OCS"),
    ):
        driver.cross_connects()


def test_denied_login_is_an_error() -> None:
    with (
        device(message(1, "DENY", "PIUI")) as (driver, _),
        pytest.raises(ControlError, match="ocs0: no login as root: DENY PIUI"),
    ):
        driver.cross_connects()
