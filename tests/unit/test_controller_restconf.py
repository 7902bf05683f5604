"""RESTCONF as the driver writes and reads it: paths, bodies, both names of the list, and errors in the device's words."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import create_connection
from typing import Any

import pytest

from controller.southbound.crossconnects import Moves
from controller.southbound.restconf import DialledConnection, RestconfDevice, parsed_pairs
from moefabric.errors import ControlError

Heard = list[tuple[str, str, Any]]


@pytest.mark.parametrize(
    ("said", "pairs"),
    [
        pytest.param(
            {
                "optical-switch:cross-connects": {
                    "pair": [{"ingress": 2, "egress": 13}, {"ingress": 1, "egress": 14}]
                }
            },
            ((1, 14), (2, 13)),
            id="since-2017-08-04",
        ),
        pytest.param(
            {"optical-switch:cross-connects": {"pairs": [{"ingress": 1, "egress": 14}]}},
            ((1, 14),),
            id="before",
        ),
        pytest.param({"optical-switch:cross-connects": {}}, (), id="none"),
    ],
)
def test_pairs_are_read(said: Any, pairs: tuple[tuple[int, int], ...]) -> None:
    assert parsed_pairs(said) == pairs


@contextmanager
def device(
    *answers: tuple[int, Any], settle_s: float = 0.0
) -> Iterator[tuple[RestconfDevice, Heard, list[float]]]:
    """A driver, and a device that answers so; what that heard, with the header of each, and how long the driver slept."""
    heard: Heard = []
    left, slept = list(answers), list[float]()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            heard.append((self.command, self.path, json.loads(body) if body else None))
            assert self.headers["Authorization"] == "Basic YWRtaW46cm9vdA=="
            status, said = left.pop(0)
            told = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(0 if status == 204 else len(told)))
            self.end_headers()
            self.wfile.write(b"" if status == 204 else told)

        def do_GET(self) -> None:
            self.answer()

        def do_DELETE(self) -> None:
            self.answer()

        def do_PATCH(self) -> None:
            self.answer()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    address: Any = server.server_address
    http = DialledConnection(address, 2, create_connection)
    driver = RestconfDevice("ocs0", http, settle_s, sleep=slept.append)
    yield driver, heard, slept
    driver.close()
    server.shutdown()
    server.server_close()
    thread.join(5)


NO_CONTENT = (204, None)


def test_what_goes_is_deleted_before_what_comes_is_patched_in_one_piece() -> None:
    with device(NO_CONTENT, NO_CONTENT, NO_CONTENT) as (driver, heard, _):
        assert driver.move(Moves(((1, 14), (2, 13)), ((1, 13), (2, 14)))) is None
        assert heard == [
            ("DELETE", "/api/data/cross-connects/pair=1", None),
            ("DELETE", "/api/data/cross-connects/pair=2", None),
            (
                "PATCH",
                "/api/data/cross-connects/pair",
                {"pair": [{"ingress": 1, "egress": 13}, {"ingress": 2, "egress": 14}]},
            ),
        ]


def test_a_device_without_cross_connects_may_have_no_list_of_them() -> None:
    with device((404, {})) as (driver, heard, _):
        assert driver.joined() == ()
        assert heard == [("GET", "/api/data/optical-switch:cross-connects", None)]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(
            {"ietf-restconf:errors": {"error": [{"error-tag": "in-use", "error-message": "1 is joined"}]}},
            "PATCH: 409 1 is joined",
            id="with-a-message",
        ),
        pytest.param(
            {"ietf-restconf:errors": {"error": [{"error-tag": "in-use"}]}},
            "PATCH: 409 in-use",
            id="with-a-tag",
        ),
        pytest.param(b"<html>no</html>", "PATCH: 409 <html>no</html>", id="in-another-tongue"),
    ],
)
def test_a_refusal_is_told_in_the_devices_words(body: Any, words: str) -> None:
    with device((409, body)) as (driver, *_):
        assert driver.move(Moves((), ((1, 13),))) == words


def test_a_refused_deletion_ends_the_change() -> None:
    with device((404, b"no pair 1")) as (driver, heard, _):
        assert driver.move(Moves(((1, 14),), ((1, 13),))) == "DELETE of 1: 404 no pair 1"
        assert len(heard) == 1


def test_the_known_settle_time_is_waited_out_from_the_command_on() -> None:
    with device(NO_CONTENT, settle_s=5.0) as (driver, _, slept):
        driver.move(Moves((), ((1, 13),)))
        with pytest.raises(ControlError, match=r"ocs0: not settled within 0.1 s"):
            driver.settled(0.1)
        driver.settled(10)
        assert slept == [pytest.approx(5.0, abs=1.0)]


@pytest.mark.parametrize("body", [b"[", b"[]", b'{"pair": [{"ingress": 1}]}', b'{"pair": 3}'])
def test_what_lists_no_pairs_is_told(body: bytes) -> None:
    with device((200, body)) as (driver, *_), pytest.raises(ControlError, match="which lists no pairs"):
        driver.joined()


def test_a_wrong_password_is_told() -> None:
    with (
        device((401, b"who?")) as (driver, *_),
        pytest.raises(ControlError, match=r"ocs0: GET .*: 401 who\?"),
    ):
        driver.joined()
