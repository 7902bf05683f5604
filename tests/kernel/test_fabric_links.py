"""Fabrics whose links have a behaviour: packets pass the relay, are delayed, counted and lost."""

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from moefabric.core.eps import Eps
from moefabric.core.link import EpsLink, LinkBehaviour, LinkPlace
from moefabric.core.topology import Fabric
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.fabric.programmed_links import PROCESS
from moefabric.runtime.waiting import Deadline
from tests.kernel.fabric_lab import Machine, ping, small_fabric

pytestmark = pytest.mark.ovs
DELAY_MS = 20
LINK = EpsLink(LinkBehaviour(delay_ns=DELAY_MS * 1_000_000, queue_bytes=20_000))
FABRIC = replace(small_fabric("link-nics"), eps=Eps(4, link=LINK))


@pytest.fixture(scope="module")
def delayed(machine: Machine) -> Iterator[Fabric]:
    machine.up(FABRIC)
    machine.route_by(FABRIC, "e0")
    yield FABRIC
    machine.down(FABRIC.name)


def least_round_trip_ms(machine: Machine, fabric: Fabric) -> float:
    words = ["ping", "-c", "3", "-i", "0.1", "-q", fabric.addressing.addresses("s1")[0]]
    reply: subprocess.CompletedProcess[str] = machine.run_on(fabric.name, "s0", *words)
    return float(reply.stdout.rsplit("= ", 1)[1].split("/")[0])


def test_round_trip_takes_the_delays_of_four_links(machine: Machine, delayed: Fabric) -> None:
    assert ping(machine, delayed)
    assert least_round_trip_ms(machine, delayed) >= 4 * DELAY_MS


def test_greedy_flow_overflows_the_queue_of_the_link(machine: Machine, delayed: Fabric) -> None:
    machine.goodput_bps(delayed)
    queues = machine.run(partial(lifecycle.queues, delayed.name))
    assert queues["s0/e0"]["drops"] + queues["leaf0 to s1/e0"]["drops"] > 0
    assert queues["leaf0 to s1/e0"]["bytes"] > 8_000_000
    lateness = machine.run(partial(lifecycle.link_lateness, delayed.name))
    assert lateness["frames"] > 10_000
    assert lateness["p50_ns"] <= lateness["p99_ns"] <= lateness["max_ns"]


def test_flows_of_hosts_react_to_marks(machine: Machine) -> None:
    link = EpsLink(LinkBehaviour(ecn_bytes=10_000))
    fabric = replace(FABRIC, name="link-ecn", eps=Eps(4, link=link))
    machine.up(fabric)
    machine.route_by(fabric, "e0")
    machine.goodput_bps(fabric)
    queues = machine.run(partial(lifecycle.queues, fabric.name)).values()
    assert sum(queue.get("marks", 0) for queue in queues) > 0
    assert sum(queue["drops"] for queue in queues) == 0
    [first, *_] = machine.run(partial(lifecycle.inspect, fabric.name))["links"]
    assert (first["name"], first["ecn_bytes"]) == ("s0/e0", 10_000)
    machine.down(fabric.name)


def test_circuits_have_no_delay(machine: Machine, delayed: Fabric) -> None:
    queues = machine.run(partial(lifecycle.queues, delayed.name))
    assert "marks" in queues["s0/e0"]
    assert "marks" not in queues["s0/o0"], "the kernel shapes circuits"


def test_end_of_the_relay_is_a_fault(machine: Machine) -> None:
    fabric = replace(FABRIC, name="link-fault")
    machine.up(fabric)
    shown = machine.run(partial(lifecycle.inspect, fabric.name))
    assert shown["faults"] == []
    [pid] = [process["pid"] for process in shown["processes"] if process["name"] == PROCESS]
    os.kill(pid, signal.SIGKILL)
    Deadline.after(30).wait_for(
        lambda: any(PROCESS in fault for fault in lifecycle.inspect(fabric.name)["faults"]), "fault"
    )
    assert machine.down(fabric.name)


def test_uplinks_alone_may_have_a_delay(machine: Machine) -> None:
    link = replace(LINK, place=LinkPlace.UPLINKS)
    fabric = replace(FABRIC, name="link-uplinks", eps=Eps(1, link=link))
    machine.up(fabric)
    queues = machine.run(partial(lifecycle.queues, fabric.name))
    assert {port for port, counts in queues.items() if "marks" in counts} >= {"leaf0 to spine0"}
    assert "marks" not in queues["s0/e0"]
    machine.down(fabric.name)
