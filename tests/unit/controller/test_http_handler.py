"""HTTP around northbound requests: who is refused, deadlines, sizes and crowds."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from typing import Any

import pytest

from moefabric.controller.client import ControllerClient
from moefabric.controller.service import http_handler
from moefabric.controller.service.http_handler import MOST_BODY_BYTES
from moefabric.core.errors import ControlError
from moefabric.runtime.connection_limit import ConnectionLimit
from tests.support.fabrics import fabric
from tests.support.northbound import TOKEN, TOKEN_FILE, served
from tests.support.recovery_bench import Bench

Headers = dict[str, str]


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    with served(Bench(fabric(2, 2)).controllers["r0"]) as bound:
        yield bound


def exchange(
    address: tuple[str, int], method: str, path: str, headers: Headers, body: bytes | None = None
) -> tuple[int, Any, Headers]:
    """Send one request whose headers replace the usual ones; an empty header is left out."""
    usual = {
        "Host": "{}:{}".format(*address),
        "Authorization": f"Bearer {TOKEN}",
        "Content-Type": "application/json",
    }
    connection = HTTPConnection(*address, timeout=10)
    connection.putrequest(method, path, skip_host=True)
    length = {} if body is None else {"Content-Length": str(len(body))}
    for name, text in (usual | length | headers).items():
        if text:
            connection.putheader(name, text)
    connection.endheaders(body)
    response = connection.getresponse()
    reply = json.loads(response.read())
    connection.close()
    return response.status, reply, dict(response.headers)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({"Authorization": ""}, 401, id="no-token"),
        pytest.param({"Authorization": f"Bearer {TOKEN[:-1]}6"}, 401, id="other-token"),
        pytest.param({"Authorization": f"Basic {TOKEN}"}, 401, id="other-scheme"),
        pytest.param({"Authorization": "Bearer \xe9"}, 401, id="not-ascii"),
        pytest.param({"Host": "attacker.example"}, 421, id="rebound-name"),
        pytest.param({"Host": "localhost"}, 421, id="other-name"),
        pytest.param({"Host": ""}, 421, id="no-host"),
        pytest.param({"Origin": "http://attacker.example"}, 403, id="web-page"),
        pytest.param({"Origin": "null"}, 403, id="sandboxed-page"),
        pytest.param({"Content-Type": "text/plain"}, 415, id="form-without-preflight"),
        pytest.param({"Content-Type": ""}, 415, id="no-type"),
        pytest.param({"Content-Length": str(MOST_BODY_BYTES + 1)}, 413, id="too-large"),
        pytest.param({"Content-Length": "9" * 5000}, 413, id="many-digits"),
        pytest.param({"Content-Length": "-1"}, 411, id="negative-length"),
        pytest.param({"Transfer-Encoding": "chunked"}, 411, id="chunked"),
    ],
)
def test_request_is_refused_and_changes_nothing(
    address: tuple[str, int], headers: Headers, status: int
) -> None:
    body = b'{"circuits": ["s0/o0~s1/o0"]}'
    refused, reply, response = exchange(address, "POST", "/light", headers, body)
    assert (refused, list(reply)) == (status, ["error"])
    assert response["Connection"] == "close"
    assert ("WWW-Authenticate" in response) == (status == 401)
    assert exchange(address, "GET", "/circuits", {})[1]["circuits"] == []
    counted = {"path": "refused", "status": status, "count": 1}
    assert counted in exchange(address, "GET", "/statistics", {})[1]["requests"]
    assert exchange(address, "POST", "/light", {}, body)[1]["circuits_after"] == ["s0/o0~s1/o0"]


@pytest.mark.parametrize("path", ["/health", "/circuits", "/failures", "/nothing"])
def test_queries_need_the_token_too(address: tuple[str, int], path: str) -> None:
    assert exchange(address, "GET", path, {"Authorization": ""})[0] == 401


def test_request_without_content_length_is_refused(address: tuple[str, int]) -> None:
    status, reply, _ = exchange(address, "POST", "/demand", {})
    assert (status, reply["error"]) == (411, "a Content-Length is needed")


def test_client_names_the_refusal(address: tuple[str, int]) -> None:
    with (
        ControllerClient(address, "wrong") as client,
        pytest.raises(ControlError, match=rf"Bearer TOKEN is needed.*{TOKEN_FILE}$"),
    ):
        client.health()


@pytest.mark.parametrize(
    "head", [b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"TRACE / HTTP/1.1\r\n\r\n", b"X" * 70_000]
)
def test_malformed_head_gets_an_error_or_an_end(address: tuple[str, int], head: bytes) -> None:
    with socket.create_connection(address, 10) as peer:
        peer.sendall(head)
        try:
            response = b"".join(iter(lambda: peer.recv(65536), b""))
        except ConnectionError:
            return
        assert response == b"" or b'{"error": ' in response


def slow_peers(address: tuple[str, int]) -> dict[str, socket.socket]:
    """Connect peers that stop at different points of a request."""
    head = f"POST /light HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\n".encode()
    rest = b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    starts = {
        "silent": b"",
        "half a head": head,
        "half a body": head + f"Authorization: Bearer {TOKEN}\r\n".encode() + rest,
    }
    peers = {name: socket.create_connection(address, 10) for name in starts}
    for name, peer in peers.items():
        peer.sendall(starts[name])
    return peers


def test_peers_that_are_too_slow_are_disconnected(
    address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_handler, "_REQUEST_S", 0.2)
    with ControllerClient(address, TOKEN) as client, ExitStack() as undo:
        client.health()
        for name, peer in slow_peers(address).items():
            undo.enter_context(peer)
            assert peer.recv(1) == b"", name
        connection = client._http.sock
        client.health()  # it was idle for longer than a request may take
        assert client._http.sock is connection


def test_flood_of_peers_without_token_leaves_clients_connected() -> None:
    connections = ConnectionLimit(http_handler.hang_up, most_strangers=4)
    controller = Bench(fabric(2, 2)).controllers["r0"]
    with served(controller, connections) as address, ExitStack() as undo:
        client = undo.enter_context(ControllerClient(address, TOKEN))
        client.health()
        connection = client._http.sock
        peers = [undo.enter_context(socket.create_connection(address, 10)) for _ in range(40)]
        assert [peer.recv(1) for peer in peers[:36]] == [b""] * 36
        client.health()
        assert (client._http.sock, len(connections)) == (connection, 5)
        assert undo.enter_context(ControllerClient(address, TOKEN)).health()["region"] == "r0"


def test_idle_client_makes_room_for_another_one() -> None:
    connections = ConnectionLimit(http_handler.hang_up, most_trusted=1)
    controller = Bench(fabric(2, 2)).controllers["r0"]
    with served(controller, connections) as address, ExitStack() as undo:
        first, second = (undo.enter_context(ControllerClient(address, TOKEN)) for _ in range(2))
        for client in (first, second):
            assert client.health()["region"] == "r0"
        assert first._http.sock.recv(1) == b""


def test_clients_of_other_machines_are_closed_before_they_are_read() -> None:
    """A machine answers at all of its addresses, whichever interface a packet comes by."""
    controller, own = Bench(fabric(2, 2)).controllers["r0"], frozenset({"127.0.0.1"})
    with served(controller, hosts=own) as address:
        with socket.create_connection(address, 10, ("127.0.0.2", 0)) as other:
            assert other.recv(1) == b""
        assert exchange(address, "GET", "/health", {})[0] == 200
