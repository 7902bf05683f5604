"""The dashboard's HTTP interface, as programs and other sites meet it."""

import asyncio
import itertools
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from moefabric.ui.dashboard import hub, limited_http, server
from tests.support.dashboard_page import Served, served
from tests.support.dashboard_sources import MemorySource, MemorySources, memory_fabric

JSON_BODY = {"Content-Type": "application/json"}


@pytest.fixture
def source() -> MemorySource:
    return MemorySource(memory_fabric("lab", 4))


@pytest.fixture
def dashboard(source: MemorySource, tmp_path: Path) -> Iterator[Served]:
    with served(MemorySources(source), tmp_path) as running:
        yield running


def connect(dashboard: Served) -> HTTPConnection:
    host, port = dashboard.url.removeprefix("http://").split(":")
    return HTTPConnection(host, int(port), timeout=20)


def ask(
    dashboard: Served, path: str, value: Any = None, *, token: str = "", **headers: str
) -> tuple[HTTPResponse, Any]:
    """Return the reply to a request with the dashboard's token, and its text or JSON."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    sent = {"Authorization": f"Bearer {token or dashboard.dashboard.token}"} | named
    with closing(connect(dashboard)) as connection:
        if value is None:
            connection.request("GET", path, headers=sent)
        else:
            body = value if isinstance(value, bytes) else json.dumps(value).encode()
            connection.request("POST", path, body, JSON_BODY | sent)
        reply = connection.getresponse()
        is_stream = reply.headers.get_content_type() == "text/event-stream"
        text = "" if is_stream else reply.read().decode()  # a stream has no end
    is_json = reply.getheader("content-type") == "application/json"
    return reply, json.loads(text) if is_json else text


def stream(dashboard: Served, fabric: str = "lab") -> tuple[HTTPConnection, HTTPResponse]:
    connection = connect(dashboard)
    token = {"Authorization": f"Bearer {dashboard.dashboard.token}"}
    connection.request("GET", f"/api/stream?fabric={fabric}", headers=token)
    return connection, connection.getresponse()


def read_until(reply: HTTPResponse, topic: str) -> Any:
    while True:
        line = reply.readline().decode()
        assert line, f"the stream ended before {topic}"
        if line == f"event: {topic}\n":
            return json.loads(reply.readline().decode().removeprefix("data: "))


def test_the_page_itself_needs_no_token_and_says_what_it_may_load(dashboard: Served) -> None:
    reply, text = ask(dashboard, "/", token="none")
    assert (reply.status, "<script" in text) == (200, True)
    assert "default-src 'self'" in (reply.getheader("content-security-policy") or "")
    assert reply.getheader("x-frame-options") == "DENY"
    assert "<style" not in text
    assert "style=" not in text


@pytest.mark.parametrize("path", ["/api/stream", "/api/results", "/api/unknown", "/metrics"])
def test_data_needs_the_token(dashboard: Served, path: str) -> None:
    reply, document = ask(dashboard, path, token="wrong")
    assert (reply.status, document) == (401, {"error": "the token is missing or wrong"})


def test_metrics_are_those_of_the_exporter(dashboard: Served) -> None:
    dashboard.dashboard.metrics = limited_http.SharedReading(lambda: b"moefabric_fabric_up 1\n")
    reply, text = ask(dashboard, "/metrics")
    assert (reply.status, text) == (200, "moefabric_fabric_up 1\n")


def test_a_message_that_a_page_does_not_take_ends_its_stream(
    source: MemorySource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_SEND_S", 0.01)

    async def never(*_message: object) -> Any:
        await asyncio.Event().wait()

    async def watch() -> None:
        watched = hub.Hub(MemorySources(source))
        await server._Stream(watched, "lab")({"type": "http"}, never, never)
        assert not watched._subscriptions

    asyncio.run(watch())


def test_a_command_needs_the_token(dashboard: Served, source: MemorySource) -> None:
    fault = {"kind": "nic", "what": ["s0/e0"]}
    assert ask(dashboard, "/api/fabrics/lab/fault", fault, token="wrong")[0].status == 401
    assert source.failures() == []
    assert ask(dashboard, "/api/fabrics/lab/fault", fault)[0].status == 200
    assert source.failures() == [fault]


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://other.example"}, {"Host": "rebound.example"}]
)
def test_other_sites_are_refused_even_with_the_token(
    dashboard: Served, source: MemorySource, headers: dict[str, str]
) -> None:
    fault = {"kind": "nic", "what": ["s0/e0"]}
    assert ask(dashboard, "/api/fabrics/lab/fault", fault, **headers)[0].status == 403
    assert ask(dashboard, "/", **headers)[0].status == 403
    assert source.failures() == []


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("fabrics/lab/fault", b"{", {}, 400),
        ("fabrics/lab/fault", b"[" * 50_000, {}, 400),
        ("fabrics/lab/fault", b"[]", {}, 400),
        ("fabrics/lab/fault", b"{}" + b" " * 70_000, {}, 413),
        ("fabrics/lab/fault", b"{}", {"Content_Type": "text/plain"}, 415),
        ("fabrics/lab/fault", b'{"what": "s0/e0"}', {}, 400),
        ("fabrics/lab/light", b"{}", {}, 400),
        ("fabrics/lab/reboot", b"{}", {}, 404),
        ("fabrics/other/clear", b"{}", {}, 409),
        ("results/page", b'{"file": 1}', {}, 400),
        ("results/page", b'{"file": "../../etc/passwd"}', {}, 400),
        ("results/page", b"{}", {}, 400),
    ],
)
def test_wrong_requests_are_refused_in_one_line(
    dashboard: Served, path: str, body: bytes, headers: dict[str, str], status: int
) -> None:
    reply, document = ask(dashboard, f"/api/{path}", body, **headers)
    assert reply.status == status
    assert "\n" not in document["error"]


def test_a_stream_has_the_state_and_then_changes(dashboard: Served, source: MemorySource) -> None:
    connection, reply = stream(dashboard)
    with closing(connection):
        assert read_until(reply, "fabric")["name"] == "lab"
        assert read_until(reply, "failures") == []
        source.fault("nic", ["s1/o0"])
        assert read_until(reply, "failures") == [{"kind": "nic", "what": ["s1/o0"]}]


def test_more_pages_than_allowed_are_refused(
    dashboard: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "MOST_CLIENTS", 1)
    connection, reply = stream(dashboard)
    with closing(connection):
        read_until(reply, "fabric")
        refused, document = ask(dashboard, "/api/stream?fabric=lab")
    assert refused.status == 503
    assert document["error"] == "1 pages watch already: close one of them"


def test_the_server_ends_while_pages_watch(source: MemorySource, tmp_path: Path) -> None:
    with served(MemorySources(source), tmp_path) as dashboard:
        connection, reply = stream(dashboard)
        read_until(reply, "fabric")
    with closing(connection):
        while reply.readline():
            pass
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((connection.host, connection.port))


def idle(dashboard: Served, count: int) -> list[socket.socket]:
    host, port = dashboard.url.removeprefix("http://").split(":")
    return [socket.create_connection((host, int(port)), 20) for _ in range(count)]


def test_idle_connections_lock_nobody_out(dashboard: Served) -> None:
    connection, reply = stream(dashboard)
    with closing(connection), ExitStack() as opened:
        read_until(reply, "fabric")
        for peer in idle(dashboard, 300):
            opened.callback(peer.close)
        assert ask(dashboard, "/api/results")[0].status == 200
        assert ask(dashboard, "/", token="none")[0].status == 200
        assert read_until(reply, "failures") == []


@pytest.mark.parametrize("start", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_connection_without_a_whole_request_is_closed(
    dashboard: Served, monkeypatch: pytest.MonkeyPatch, start: bytes
) -> None:
    monkeypatch.setattr(limited_http, "FIRST_REQUEST_S", 0.2)
    [peer] = idle(dashboard, 1)
    with closing(peer), suppress(ConnectionResetError):
        peer.sendall(start)
        assert peer.recv(1) == b""


def test_rest_of_a_later_request_is_awaited_as_long(
    dashboard: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limited_http, "FIRST_REQUEST_S", 0.2)
    with closing(connect(dashboard)) as connection, suppress(ConnectionResetError):
        connection.request("GET", "/")
        connection.getresponse().read()
        connection.sock.sendall(b"GET / HTTP/1.1\r\n")
        assert connection.sock.recv(1) == b""


def test_requests_that_wait_share_a_reading() -> None:
    async def readings() -> tuple[list[bytes], int]:
        count, may_end = itertools.count(), threading.Event()

        def read() -> bytes:
            number = next(count)
            assert may_end.wait(10)
            return b"%d" % number

        reading = limited_http.SharedReading(read)
        first = asyncio.create_task(reading.value())
        await asyncio.sleep(0)
        later = [asyncio.create_task(reading.value()) for _ in range(20)]
        await asyncio.sleep(0)
        may_end.set()
        return [await first, *[await one for one in later]], next(count)

    assert asyncio.run(readings()) == ([b"0", *[b"1"] * 20], 2)
