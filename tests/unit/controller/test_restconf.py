"""The RESTCONF driver: paths, bodies, names of the list, and errors of the device."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from moefabric.controller.southbound.ocs.cross_connects import CrossConnectChange
from moefabric.controller.southbound.ocs.restconf import Restconf, RestconfDriver, parse_pairs
from moefabric.core.errors import ControlError
from moefabric.core.ocs import Ocs
from moefabric.core.ocs_dialect import DriverSettings

Requests = list[tuple[str, str, Any]]


@pytest.mark.parametrize(
    ("document", "pairs"),
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
def test_parse_pairs_accepts_both_names_of_the_list(
    document: Any, pairs: tuple[tuple[int, int], ...]
) -> None:
    assert parse_pairs(document) == pairs


@contextmanager
def device(
    *answers: tuple[int, Any], settle_s: float = 0.0
) -> Iterator[tuple[RestconfDriver, Requests, list[float]]]:
    """Yield a driver, the requests that its device received, and the driver's sleeps."""
    requests: Requests = []
    left, slept = list(answers), list[float]()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            requests.append((self.command, self.path, json.loads(body) if body else None))
            assert self.headers["Authorization"] == "Basic YWRtaW46cm9vdA=="
            status, document = left.pop(0)
            data = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(0 if status == 204 else len(data)))
            self.end_headers()
            self.wfile.write(b"" if status == 204 else data)

        def do_GET(self) -> None:
            self.answer()

        def do_DELETE(self) -> None:
            self.answer()

        def do_PATCH(self) -> None:
            self.answer()

        def log_message(self, *_: object) -> None:
            """Stay silent."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    address: Any = server.server_address
    ocs, account = Ocs("ocs0", 12, round(settle_s * 1e9)), Restconf.factory_account
    dial = socket.create_connection
    driver = Restconf().open(DriverSettings(ocs, address, 2, *account, dial, slept.append))
    yield driver, requests, slept
    driver.close()
    server.shutdown()
    server.server_close()
    thread.join(30)


NO_CONTENT = (204, None)


def test_apply_deletes_each_pair_before_one_patch() -> None:
    with device(NO_CONTENT, NO_CONTENT, NO_CONTENT) as (driver, requests, _):
        assert driver.apply(CrossConnectChange(((1, 14), (2, 13)), ((1, 13), (2, 14)))) is None
        assert requests == [
            ("DELETE", "/api/data/cross-connects/pair=1", None),
            ("DELETE", "/api/data/cross-connects/pair=2", None),
            (
                "PATCH",
                "/api/data/cross-connects/pair",
                {"pair": [{"ingress": 1, "egress": 13}, {"ingress": 2, "egress": 14}]},
            ),
        ]


def test_missing_list_means_no_cross_connects() -> None:
    with device((404, {})) as (driver, requests, _):
        assert driver.cross_connects() == ()
        assert requests == [("GET", "/api/data/optical-switch:cross-connects", None)]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param(
            {
                "ietf-restconf:errors": {
                    "error": [{"error-tag": "in-use", "error-message": "1 is joined"}]
                }
            },
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
def test_apply_returns_the_devices_error(body: Any, words: str) -> None:
    with device((409, body)) as (driver, *_):
        assert driver.apply(CrossConnectChange((), ((1, 13),))) == words


def test_apply_stops_at_a_refused_deletion() -> None:
    with device((404, b"no pair 1")) as (driver, requests, _):
        assert (
            driver.apply(CrossConnectChange(((1, 14),), ((1, 13),))) == "DELETE of 1: 404 no pair 1"
        )
        assert len(requests) == 1


def test_wait_settled_waits_for_the_settling_time() -> None:
    with device(NO_CONTENT, settle_s=5.0) as (driver, _, slept):
        driver.apply(CrossConnectChange((), ((1, 13),)))
        with pytest.raises(ControlError, match=r"ocs0: not settled within 0.1 s"):
            driver.wait_settled(0.1)
        driver.wait_settled(10)
        assert slept == [pytest.approx(5.0, abs=1.0)]


@pytest.mark.parametrize("body", [b"[", b"[]", b'{"pair": [{"ingress": 1}]}', b'{"pair": 3}'])
def test_malformed_list_of_pairs_is_an_error(body: bytes) -> None:
    with (
        device((200, body)) as (driver, *_),
        pytest.raises(ControlError, match="which lists no pairs"),
    ):
        driver.cross_connects()


def test_wrong_password_is_an_error() -> None:
    with (
        device((401, b"who?")) as (driver, *_),
        pytest.raises(ControlError, match=r"ocs0: GET .*: 401 who\?"),
    ):
        driver.cross_connects()
