"""Controller processes with Open vSwitch and an emulated OCS in a network namespace."""

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import ControlError
from moefabric.core.rules import Rule, direct_rules, server_rules
from moefabric.runtime.waiting import Deadline
from tests.support.controller_lab import MANAGEMENT, Lab, entries_as_said, entry_set, fabric, lab
from tests.support.namespaces import must
from tests.support.switch_processes import end, listens, planned_switch

pytestmark = pytest.mark.ovs

FABRIC = fabric(servers=2, optical=1, electrical=1)
REGION = FABRIC.regions[0]
CIRCUIT = "s0/o0~s1/o0"
LIT = direct_rules(CircuitSet.of([CIRCUIT]))
BASE = server_rules(FABRIC, REGION)


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Lab]:
    with lab(FABRIC, tmp_path) as new_lab:
        yield new_lab


def has(real: Lab, switch: str, rules: frozenset[Rule]) -> bool:
    return entries_as_said(real.entries(switch)) == entry_set(FABRIC, switch, rules)


def test_restarted_controller_adopts_circuits_and_removes_other_entries(real: Lab) -> None:
    first = real.start_all()
    real.client(REGION).light([CIRCUIT])
    assert has(real, "s0", BASE | LIT)
    assert end(first) == 0
    assert has(real, "s0", BASE | LIT), "the switch forgot its rules with its controller"
    real.ofctl("add-flow", "s0", "priority=60000,ip,nw_dst=10.0.1.0/24,actions=drop")
    real.ofctl("add-flow", "s1", "cookie=0x77,priority=1,actions=flood")
    real.ofctl("del-flows", "s1", "ip,nw_dst=10.0.0.0/24")
    real.start_controllers()
    client = real.client(REGION)
    while not was_ready(real):
        assert any(line.endswith("nw_tos=0 actions=output:2") for line in real.entries("s0")), (
            "light was let go of meanwhile"
        )
    assert client.circuits() == [CIRCUIT]
    assert has(real, "s0", BASE | LIT)
    assert has(real, "s1", BASE | LIT)


def test_killed_controller_is_restarted_and_sigterm_ends_all(real: Lab) -> None:
    supervisor = real.start_all()
    children = [
        int(pid)
        for pid in Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children")
        .read_text()
        .split()
    ]
    assert len(children) == 2
    os.kill(children[0], signal.SIGKILL)
    client = real.client(REGION)
    Deadline.after(15).wait_for(lambda: was_ready(real), "the second life of a controller")
    client.close()
    assert client.light([CIRCUIT])["circuits_after"] == [CIRCUIT]
    assert end(supervisor) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert not listens(MANAGEMENT.northbound_endpoint(REGION))


def was_ready(real: Lab) -> bool:
    try:
        with real.client(REGION).with_timeout(1) as trial:
            return bool(trial.health()["ready"])
    except ControlError:
        return False


def test_disconnected_switch_fails_a_change_and_gets_its_rules_later(real: Lab) -> None:
    real.start_all()
    client = real.client(REGION)
    real.ovs.vsctl(["del-controller", "s1"], Deadline.after(30))
    Deadline.after(30).wait_for(lambda: client.health()["switches"] == ["s0"], "the leaving of s1")
    with pytest.raises(ControlError, match="s1: not connected"):
        client.light([CIRCUIT])
    real.connect("s1")
    client.wait_ready(10)
    client.light([])
    client.light([CIRCUIT])
    assert has(real, "s0", BASE | LIT)
    assert has(real, "s1", BASE | LIT)


def test_arp_is_answered_to_the_requester_only(real: Lab) -> None:
    must("ip", "link", "add", "host", "type", "veth", "peer", "name", "s0-host")
    must("ip", "link", "add", "far", "type", "veth", "peer", "name", "s0-o0")
    for name in ("host", "s0-host", "far", "s0-o0"):
        must("ip", "link", "set", name, "up")
    dpid = FABRIC.openflow.dpid
    wired = planned_switch("s0", dpid("s0"), ("s0-host", 1), ("s0-o0", 2))
    real.start_ovs([wired, *(planned_switch(name, dpid(name)) for name in ("s1", "leaf0"))])
    real.start_ocs()
    real.wire()
    real.start_controllers()
    real.wait_listening()
    real.connect()
    real.client(REGION).wait_ready(15)
    asker = bytes.fromhex("02000a000001")
    ask = (
        b"\xff" * 6
        + asker
        + bytes.fromhex("0806000108000604 0001")
        + asker
        + bytes([10, 0, 0, 1])
        + bytes(6)
    )
    with listening("host") as host, listening("far") as far:
        host.send(ask + bytes([10, 0, 1, 99]))
        host.send(ask + bytes([10, 0, 1, 3]))
        reply = host.recv(2048)
        assert reply[:12] == asker + bytes.fromhex("02000a000101")
        assert reply[20:32] == bytes.fromhex("0002 02000a000101 0a000103")
        far.settimeout(0.2)
        with pytest.raises(TimeoutError):
            far.recv(2048)


def listening(interface: str) -> socket.socket:
    """Return a socket that sends and receives ARP on an interface."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0806))
    sock.bind((interface, 0x0806))
    # Ignore outgoing packets (PACKET_IGNORE_OUTGOING, packet(7)).
    sock.setsockopt(263, 23, struct.pack("i", 1))
    sock.settimeout(30)
    return sock


def test_address_in_use_is_reported_in_one_line(real: Lab) -> None:
    real.wire()
    words = ("--run-dir", str(real.run.path), "--region", "r0")
    real.start_controllers(*words)
    address = MANAGEMENT.openflow_endpoint(REGION)
    Deadline.after(15).wait_for(lambda: listens(address), "the first controller")
    result = subprocess.run(
        [sys.executable, "-m", "moefabric.controller", *words],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    errors = [line for line in result.stderr.splitlines() if not line.startswith("{")]
    assert (result.returncode, result.stdout) == (1, "")
    assert errors == [
        f"{address[0]}:{address[1]}: can't listen for switches: Address already in use"
    ]


def test_watch_follows_fabrics_in_a_folder(real: Lab) -> None:
    real.start_ovs()
    real.start_ocs()
    watching = real.start_controllers("--watch", str(real.folder))
    real.wire()
    real.wait_listening()
    real.connect()
    real.client(REGION).wait_ready(15)
    real.run.wiring_file.unlink()
    Deadline.after(30).wait_for(
        lambda: not listens(MANAGEMENT.northbound_endpoint(REGION)),
        "the end of a fabric's controllers",
    )
    real.wire()
    real.wait_listening()
    assert end(watching) == 0


def test_counters_are_per_rule(real: Lab) -> None:
    real.start_all()
    client = real.client(REGION)
    client.light([CIRCUIT])
    packet = "02000a00010102000a00000108004500001c00000000401100000a0000010a0001010001000100080000"
    for _ in range(3):
        real.ofctl("packet-out", "s0", f"in_port=1 packet={packet} actions=table")
    counted = {one["rule"]: one["packets"] for one in client.counters()["s0"]}
    assert counted == {
        "s0: to * by s0/e0": 0,
        "s0: to s0 by host": 0,
        "s0: to s1 by s0/o0 (light)": 3,
        "s0: to s1 on o0 by s0/o0 (light)": 0,
    }
