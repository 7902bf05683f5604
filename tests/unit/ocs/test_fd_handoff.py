"""Handoff of facts and descriptors over unix sockets."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from moefabric.core.errors import FabricError
from moefabric.emulator.ocs.event_publisher import MAX_CALLERS, MAX_PENDING
from moefabric.emulator.ocs.fd_handoff import (
    HandoffServer,
    connect,
    listen_in_namespace,
    receive_handoff,
    send_handoff,
)
from tests.support.ocs_process import wait_served

FACTS = {"name": "ocs0", "ports": 12, "settle_ns": 25_000_000, "serial": "000001"}


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    theirs.settimeout(0.5)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def test_handoff_passes_facts_and_descriptors(
    ends: tuple[socket.socket, socket.socket], pipe: tuple[int, int]
) -> None:
    send_handoff(ends[0], FACTS, pipe)
    facts, fds = receive_handoff(ends[1])
    assert facts == FACTS
    os.write(fds[1], b"through")
    assert os.read(pipe[0], 16) == b"through"
    assert not any(os.get_inheritable(fd) for fd in fds)
    for fd in fds:
        os.close(fd)


def test_handoff_passes_more_descriptors_than_a_message_holds(
    ends: tuple[socket.socket, socket.socket], pipe: tuple[int, int]
) -> None:
    send_handoff(ends[0], FACTS, [*([pipe[0]] * 599), pipe[1]])
    facts, fds = receive_handoff(ends[1])
    assert (facts, len(fds)) == (FACTS, 600)
    os.write(fds[-1], b"through")
    assert os.read(fds[0], 16) == b"through"
    for fd in fds:
        os.close(fd)
    with pytest.raises(FabricError, match="1025 descriptors are too much"):
        send_handoff(ends[0], FACTS, [pipe[0]] * 1025)


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        pytest.param(
            b"", "ocs0: nothing received in 0.5 s: the machine is too slow, or busy", id="nothing"
        ),
        pytest.param(b'{"name": ', "nothing received in 0.5 s", id="half-a-line"),
        pytest.param(b"[]\n", "facts are a JSON object", id="no-object"),
        pytest.param(b"what\n", "nothing received", id="no-json"),
        pytest.param(b'{"error": "no room"}\n', "no room", id="error"),
        pytest.param(b"x" * 8_400_000, "too much", id="too-long"),
    ],
)
def test_receive_handoff_refuses_invalid_data(
    ends: tuple[socket.socket, socket.socket], sent: bytes, message: str
) -> None:
    sending = threading.Thread(
        target=ends[0].sendall, args=(sent,)
    )  # a flood is more than a socket holds
    sending.start()
    with pytest.raises(FabricError, match=message):
        receive_handoff(ends[1], "ocs0")
    sending.join(30)


def test_receive_handoff_reports_closed_fabric(ends: tuple[socket.socket, socket.socket]) -> None:
    ends[0].close()
    with pytest.raises(FabricError, match="closed"):
        receive_handoff(ends[1])


@pytest.fixture
def handoff(tmp_path: Path, pipe: tuple[int, int]) -> Iterator[HandoffServer]:
    server = HandoffServer(tmp_path / "ocs0.handoff", FACTS, pipe)
    yield server
    server.close()


def receive(handoff: HandoffServer) -> socket.socket:
    """Return a connection that received a handoff and closed its descriptors."""
    sock = connect(handoff.path, deadline_s=2)
    sock.settimeout(2)
    facts, fds = receive_handoff(sock)
    assert facts == FACTS
    for fd in fds:
        os.close(fd)
    return sock


def test_switch_is_served_once_its_process_reports_ready(handoff: HandoffServer) -> None:
    with receive(handoff) as process:
        assert not handoff.is_served
        process.sendall(b'{"ready": true}\n')
        wait_served(handoff)


def test_next_process_gets_switch_when_previous_one_is_gone(handoff: HandoffServer) -> None:
    first = receive(handoff)
    with connect(handoff.path, deadline_s=2) as second:
        second.settimeout(0.1)
        with pytest.raises(FabricError, match=r"nothing received in 0\.1 s"):
            receive_handoff(second)
        first.close()
        second.settimeout(2)
        _, fds = receive_handoff(second)
        assert len(fds) == 2
        for fd in fds:
            os.close(fd)


def test_close_disconnects_process_and_removes_socket(handoff: HandoffServer) -> None:
    with receive(handoff) as process:
        handoff.close()
        assert process.recv(1) == b""
    assert not handoff.path.exists()
    handoff.close()


def test_path_in_use_is_named(handoff: HandoffServer) -> None:
    with pytest.raises(
        FabricError, match=r"can't listen on .*ocs0\.handoff: Address already in use"
    ):
        HandoffServer(handoff.path, FACTS, ())
    assert handoff.path.exists()


def test_connect_times_out_without_socket(tmp_path: Path) -> None:
    with pytest.raises(FabricError, match=r"nothing listens on .*absent\.handoff"):
        connect(tmp_path / "absent.handoff", deadline_s=0.1)


def test_address_in_use_is_named() -> None:
    with listen_in_namespace(None, "127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(
            FabricError, match=rf"can't listen on 127\.0\.0\.1:{port}: Address already in use"
        ):
            listen_in_namespace(None, "127.0.0.1", port)


def assert_answers_that_nothing_serves(folder: Path) -> None:
    """Ask as a new caller of a handoff whose switch no process serves."""
    with connect(folder / "ocs0.control", 5) as caller:
        caller.settimeout(30)
        caller.sendall(b'{"do": "list"}\n')
        assert b"no process serves it" in caller.recv(100)


@pytest.mark.parametrize("depth", [30_000, 900])
def test_deeply_nested_request_costs_its_caller_only(tmp_path: Path, depth: int) -> None:
    server = HandoffServer(tmp_path / "ocs0.handoff", FACTS, [])
    try:
        with connect(tmp_path / "ocs0.control", 5) as caller:
            caller.settimeout(30)
            caller.sendall(b'{"do": ' + b"[" * depth + b"]" * depth + b"}\n")
            assert caller.recv(1) == b""
        assert_answers_that_nothing_serves(tmp_path)
    finally:
        server.close()


@contextmanager
def served(folder: Path) -> Iterator[tuple[HandoffServer, socket.socket, socket.socket]]:
    """Yield a handoff, the process that serves its switch, and a caller of its control socket."""
    server = HandoffServer(folder / "ocs0.handoff", FACTS, [])
    try:
        with (
            connect(folder / "ocs0.handoff", 5) as process,
            connect(folder / "ocs0.control", 5) as caller,
        ):
            process.settimeout(30)
            caller.settimeout(30)
            receive_handoff(process)
            process.sendall(b'{"ready": true}\n')
            wait_served(server)
            yield server, process, caller
    finally:
        server.close()
    assert not server.is_alive


def test_flood_of_requests_costs_its_caller_only(tmp_path: Path) -> None:
    with served(tmp_path) as (server, process, caller):
        request = json.dumps({"do": "list", "padding": "x" * 60_000}).encode() + b"\n"
        for _ in range(MAX_PENDING):
            caller.sendall(request)
        caller.sendall(request)
        assert b"has not answered earlier requests" in caller.recv(200)
        assert server.is_served
        assert server.is_alive
        assert process.recv(20).startswith(b'{"request": 1, ')


def test_requests_fail_when_the_process_of_the_switch_ends(tmp_path: Path) -> None:
    with served(tmp_path) as (_, process, caller):
        caller.sendall(b'{"do": "list"}\n')
        assert process.recv(100).startswith(b'{"request": 1, ')
        process.close()
        assert b"its process has ended" in caller.recv(200)


def test_callers_that_have_left_keep_no_others_out(tmp_path: Path) -> None:
    server = HandoffServer(tmp_path / "ocs0.handoff", FACTS, [])
    try:
        for _ in range(MAX_CALLERS + 1):
            assert_answers_that_nothing_serves(tmp_path)
    finally:
        server.close()
