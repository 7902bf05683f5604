"""Clients that are no switches of the fabric, at the OpenFlow port of a running controller."""

import resource
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from moefabric.core import switch_proof
from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import ControlError
from moefabric.core.rules import direct_rules, eps_rules, server_rules
from moefabric.runtime.waiting import Deadline
from tests.support.controller_bench import FABRIC, REGION, Bench, controllers_with_switches
from tests.support.controller_lab import entry_set
from tests.support.openflow_frames import (
    BARRIER_REPLY,
    FEATURES_REPLY,
    GROUP_DESCRIPTIONS,
    HELLO,
    MULTIPART_REPLY,
    TABLE_FEATURES,
    frame,
    multipart,
)

CIRCUITS = ["s0/o0~s3/o2", "s1/o0~s2/o1"]
TIMEOUT_S = 20.0


@pytest.fixture(scope="module", params=["bpf", "ovs-netdev", "bpf shared"])
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bench]:
    """Controllers of switches that prove their identity, and of switches that can't.

    Each has a process of its own, or they share one.
    """
    switch, _, shared = request.param.partition(" ")
    folder = tmp_path_factory.mktemp("run")
    with controllers_with_switches(folder, switch, shared=bool(shared)) as started:
        yield started


@contextmanager
def client(bench: Bench) -> Iterator[socket.socket]:
    """Yield a connection to the region's controller."""
    with socket.create_connection(bench.openflow, TIMEOUT_S) as sock:
        yield sock


def read_until_closed(sock: socket.socket) -> bytes:
    """Return what the controller sends until it closes the connection."""
    received = b""
    try:
        while part := sock.recv(1 << 16):
            received += part
    except ConnectionError:  # it left bytes unread
        pass
    return received


def impersonate(sock: socket.socket, switch: str) -> None:
    """Do a switch's whole handshake, except for a proof."""
    features = struct.pack("!QIBB2xII", FABRIC.openflow.dpid(switch), 0, 1, 0, 0, 0)
    sock.sendall(frame(HELLO) + frame(FEATURES_REPLY, features) + multipart(13))


def assert_all_switches_serve(bench: Bench) -> None:
    """Assert that the controller answers, and that its switches follow it."""
    assert sorted(bench.client.health()["switches"]) == sorted(REGION.servers)
    for wanted in (CIRCUITS, []):
        bench.client.light(wanted)
        rules = server_rules(FABRIC, REGION) | eps_rules(FABRIC)
        rules |= direct_rules(CircuitSet.of(wanted))
        for switch in REGION.servers:
            assert bench.entries(switch) == entry_set(FABRIC, switch, rules)


def reconnect(bench: Bench, switches: Sequence[str]) -> None:
    """Make switches connect again, and wait until the controller has all of them."""
    for switch in switches:
        bench.reconnect(switch)

    def lit() -> bool:
        with suppress(ControlError):  # a switch isn't back yet
            bench.client.light(CIRCUITS)
            bench.client.light([])
            return bool(bench.client.health()["ready"])
        return False

    Deadline.after(30).wait_for(lit, "all switches")


HANGING = {
    "hello-element": frame(HELLO, bytes.fromhex("0001000000000000")),
    "flow-statistics": frame(HELLO) + multipart(1, bytes(56)),
    "flow-statistics-match": frame(HELLO) + multipart(1, struct.pack("!H", 64) + bytes(62)),
    "group-descriptions": frame(HELLO) + multipart(GROUP_DESCRIPTIONS, bytes(16)),
    "table-features": frame(HELLO) + multipart(TABLE_FEATURES, bytes(72)),
    "no-length": struct.pack("!BBHI", 4, HELLO, 0, 1),
    "unknown-type": frame(HELLO) + frame(77),
    "other-version": frame(HELLO) + frame(BARRIER_REPLY, version=3),
    "short-multipart": frame(HELLO) + frame(MULTIPART_REPLY, b"\0"),
}


@pytest.mark.parametrize("sent", HANGING.values(), ids=HANGING)
def test_malformed_message_ends_its_connection_only(bench: Bench, sent: bytes) -> None:
    with client(bench) as sock:
        sock.sendall(sent)
        read_until_closed(sock)
        host, port = sock.getsockname()
    assert_all_switches_serve(bench)
    lines = [line for line in bench.log.splitlines() if f"{host}:{port}:" in line]
    assert len(lines) == 1, "one line says why the connection was closed"
    assert "connection closed: " in lines[0]


def test_switch_without_openflow_1_3_is_told_so(bench: Bench) -> None:
    with client(bench) as sock:
        sock.sendall(frame(HELLO, version=2))
        sock.shutdown(socket.SHUT_WR)
        assert b"unsupported version" in read_until_closed(sock)
    assert_all_switches_serve(bench)


def test_impostor_does_not_replace_a_switch(bench: Bench) -> None:
    with client(bench) as sock:
        impersonate(sock, "s0")
        received = read_until_closed(sock)
        assert b"\x04\x0e" not in received, "the impostor was given rules"
        assert_all_switches_serve(bench)


def test_stranger_is_not_controlled(bench: Bench) -> None:
    with client(bench) as sock:
        features = struct.pack("!QIBB2xII", 0xBAD, 0, 1, 0, 0, 0)
        sock.sendall(frame(HELLO) + frame(FEATURES_REPLY, features) + multipart(13))
        assert b"\x04\x0e" not in read_until_closed(sock), "the stranger was given rules"
    assert_all_switches_serve(bench)


def test_proof_of_another_fabric_is_refused(bench: Bench) -> None:
    experimenter = struct.pack("!IIQ", 0x00026D66, 2, FABRIC.openflow.dpid("s0")) + bytes(32)
    with client(bench) as sock:
        sock.sendall(frame(HELLO) + frame(4, experimenter))
        impersonate(sock, "s0")
        assert b"\x04\x0e" not in read_until_closed(sock), "the impostor was given rules"
    assert_all_switches_serve(bench)


@pytest.mark.parametrize("bench", ["bpf"], indirect=True)
def test_last_proof_of_a_datapath_id_counts(bench: Bench) -> None:
    """A switch whose connection was lost unnoticed is not kept waiting by it."""
    with client(bench) as sock:
        received = b""
        while len(received) < 8 + 16 + switch_proof.CHALLENGE_BYTES:  # a hello, and the challenge
            received += sock.recv(1 << 16)
        challenge = received[24 : 24 + switch_proof.CHALLENGE_BYTES]
        proof = switch_proof.proof(bench.run.read_token(), challenge, FABRIC.openflow.dpid("s0"))
        head = struct.pack("!II", switch_proof.EXPERIMENTER, switch_proof.PROOF)
        sock.sendall(frame(HELLO) + frame(4, head + proof))
        impersonate(sock, "s0")
        read_until_closed(sock)  # the switch has connected again
    assert bench.log.count("s0: connects again") >= 2
    reconnect(bench, [])
    assert_all_switches_serve(bench)


def test_silent_connections_keep_no_switch_out(bench: Bench) -> None:
    silent = [socket.create_connection(bench.openflow, TIMEOUT_S) for _ in range(300)]
    try:
        reconnect(bench, ["s1"])
        assert_all_switches_serve(bench)
        host, port = silent[0].getsockname()
        read_until_closed(silent[0])
        assert f"{host}:{port}: connection closed: 256 handshakes are unfinished" in bench.log
    finally:
        for sock in silent:
            sock.close()


@pytest.mark.parametrize("end", ["close", "reset"])
def test_storm_of_reconnections_leaves_all_switches_ready(bench: Bench, end: str) -> None:
    linger = struct.pack("ii", 1, 0 if end == "reset" else 1)
    before = bench.open_files()
    for number in range(200):
        with client(bench) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            sock.sendall(frame(HELLO)[: number % 9])
    reconnect(bench, REGION.servers * 5)
    assert_all_switches_serve(bench)
    Deadline.after(30).wait_for(lambda: bench.open_files() <= before, "the end of all connections")


def test_controller_without_descriptors_accepts_again_when_it_has_some(bench: Bench) -> None:
    pid = bench.controller_pid
    used = {int(fd.name) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    fourth_free = [number for number in range(len(used) + 4) if number not in used][3]
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    assert before[0] == before[1], "the controller has not raised its limit"
    lines = bench.log.count("Too many open files")
    with ExitStack() as undo:
        undo.callback(resource.prlimit, pid, resource.RLIMIT_NOFILE, before)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (fourth_free, before[1]))
        for _ in range(16):
            undo.enter_context(socket.create_connection(bench.openflow, TIMEOUT_S))
        Deadline.after(30).wait_for(
            lambda: bench.log.count("Too many open files") > lines, "the shortage"
        )
        assert_all_switches_serve(bench)
    reconnect(bench, ["s2"])
    assert_all_switches_serve(bench)
