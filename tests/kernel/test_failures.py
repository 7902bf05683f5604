"""Failures under traffic: controllers detect them without help, and every byte arrives."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from moefabric.controller.client import ControllerClient
from moefabric.core.errors import FabricError
from moefabric.emulator.fabric import hardware_injection
from moefabric.runtime.failure_log import read_failure_log
from moefabric.runtime.waiting import Deadline
from moefabric.testbed.testbed import data_paths
from tests.kernel.fabric_lab import Machine
from tests.support.agents_lab import arm, collect, paced_flow
from tests.support.failure_lab import RING, Detection, FailureLab, failure_lab, four_servers

RATE_BPS = 10e6
SECONDS = 0.6
"""So long the NICs are busy where nothing fails."""
FLOWS_A_NIC = 3
BYTES = int(RATE_BPS / FLOWS_A_NIC * SECONDS / 8)


@pytest.fixture(scope="module")
def lab(machine: Machine) -> Iterator[FailureLab]:
    with failure_lab(machine, four_servers("fails", RATE_BPS), agents=True) as made:
        yield made


@pytest.fixture
def ring(lab: FailureLab) -> Iterator[FailureLab]:
    """The fabric with light from each server to the next, given all back afterwards."""
    lab.clients["r0"].light(RING)
    yield lab
    hardware_injection.clear(lab.run_dir)


@pytest.mark.parametrize(
    ("kind", "what", "who", "kinds", "action"),
    [
        pytest.param(
            "nic", ["s0/e0"], ["r0", "eps"], {"electrical-nic"}, "s0 sends by s0/e1",
            id="one-electrical-nic",
        ),
        pytest.param(
            "nic", ["s0/e0", "s0/e1"], ["r0", "eps"], {"electrical-nic"},
            "s1 relays for s0 over s0/o0~s1/o0", id="all-electrical-nics",
        ),
        pytest.param(
            "nic", ["s0/o0"], ["r0"], {"optical-nic"}, "its pair is on the EPS", id="optical-nic"
        ),
        pytest.param(
            "ocs-port", ["s0/o0"], ["r0"], {"ocs-port"}, "its pair is on the EPS", id="ocs-port"
        ),
        pytest.param("ocs", ["ocs0"], ["r0"], {"ocs"}, "all of r0 is on the EPS", id="ocs"),
    ],
)  # fmt: skip
def test_controllers_reroute_and_restore_without_losing_bytes(
    ring: FailureLab,
    kind: str,
    what: Sequence[str],
    who: Sequence[str],
    kinds: set[str],
    action: str,
) -> None:
    before = ring.rules()
    flows = [
        paced_flow(way.src, way.dst, BYTES, RATE_BPS / FLOWS_A_NIC, way.path)
        for way in data_paths(ring.fabric)
    ]
    number = time.monotonic_ns()
    start_ns = arm(ring.fleet, number, flows, 15.0)
    time.sleep(
        max(0.0, start_ns / 1e9 + 0.3 * SECONDS - time.monotonic())
    )  # in the midst of the transfers
    found = ring.inject(kind, what, who)
    records = collect(ring.fleet, number)
    assert [record.why for record in records if not record.ok] == []
    assert len(records) == len(flows)
    assert all(record.last_received_ns > record.first_sent_ns for record in records)
    assert {one.kind for one in found} <= kinds
    assert any(action in one.action for one in found), found
    # They were told of it: nobody had to miss anything first.
    assert max(one.detected_s for one in found) < 0.5
    Deadline.after(5).wait_for(lambda: logged_since(ring, number) >= reported(found), "the log")
    ring.clear(RING)
    assert ring.rules() == before


def reported(found: Sequence[Detection]) -> Counter[tuple[str, str]]:
    """Return how many controllers have detected each component's failure, and have recovered."""
    return Counter((phase, one.what) for one in found for phase in ("detected", "recovered"))


def logged_since(ring: FailureLab, at_ns: int) -> Counter[tuple[str, str]]:
    """Return the events of the failure log by phase and component."""
    log = read_failure_log(ring.run_dir)
    return Counter((one.phase, name) for one in log if one.at_ns > at_ns for name in one.what)


def relayed(client: ControllerClient) -> bool:
    return client.relays() == {"s0": "s1"}


def restart(ring: FailureLab, machine: Machine, who: str) -> None:
    """Kill a controller, and wait until its successor is ready."""
    region = ring.fabric.regions[0] if who == "r0" else None
    os.kill(int(ring.run_dir.controller_pid_file(region).read_text()), signal.SIGKILL)
    ring.clients[who].close()
    machine.run(partial(ring.clients[who].wait_ready, 10.0))


def test_restarted_controllers_learn_failures_and_keep_the_relay(
    ring: FailureLab, machine: Machine
) -> None:
    ring.inject("nic", ["s0/e0", "s0/e1"], ["r0", "eps"])
    expected = ring.rules()
    flows = [
        paced_flow(way.src, way.dst, 10_000, None, way.path) for way in data_paths(ring.fabric)
    ]
    for who in ("eps", "r0"):
        restart(ring, machine, who)
        Deadline.after(30).wait_for(partial(relayed, ring.clients[who]), f"the relay at {who}")
        records = ring.fleet.run(time.monotonic_ns(), flows, deadline_s=10.0)
        assert [record.why for record in records if not record.ok] == []
    Deadline.after(30).wait_for(lambda: ring.rules() == expected, "the rules of before")
    ring.clear(RING)


@pytest.mark.parametrize("kind", ["nic", "ocs-port"])
def test_restarted_controller_uses_no_circuit_of_a_failed_nic(
    ring: FailureLab, machine: Machine, kind: str
) -> None:
    ring.inject(kind, ["s0/o0"], ["r0"])
    expected = ring.rules()
    restart(ring, machine, "r0")
    flows = [
        paced_flow(way.src, way.dst, 10_000, None, way.path) for way in data_paths(ring.fabric)
    ]
    records = ring.fleet.run(time.monotonic_ns(), flows, deadline_s=10.0)
    assert [record.why for record in records if not record.ok] == []
    Deadline.after(30).wait_for(lambda: ring.rules() == expected, "the rules of before")


def test_server_failure_is_reported_as_one_failure_and_cleared(ring: FailureLab) -> None:
    (found,) = ring.inject("server", ["s3"], ["r0"])
    assert (found.what, found.kind) == ("s3", "server")
    assert set(ring.clients["r0"].circuits()) <= set(RING[:2])
    ring.clear(RING)
    flows = [
        paced_flow(way.src, way.dst, 1000, None, way.path)
        for way in data_paths(ring.fabric)
        if way.dst == "s3"
    ]
    records = ring.fleet.run(time.monotonic_ns(), flows, deadline_s=10.0)
    assert all(record.ok for record in records), [record.why for record in records]


def test_inject_refuses_absent_components(ring: FailureLab) -> None:
    with pytest.raises(FabricError, match="fault nic: s9/e0 is not one of s0/o0, s0/o1, s0/e0"):
        hardware_injection.inject(ring.run_dir, "nic", ["s9/e0"])
    with pytest.raises(FabricError, match="s0/e0: no such fault"):
        hardware_injection.clear(ring.run_dir, "nic", ["s0/e0"])
    assert hardware_injection.injected_failures(ring.run_dir) == []
