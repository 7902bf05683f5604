"""`moefabric check`: packets between all servers, and over circuits that move."""

from collections.abc import Iterator
from functools import partial

import pytest

from moefabric.controller.client import ControllerClient, wait_for_controllers
from moefabric.core.eps import Eps
from moefabric.core.errors import FabricError
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region
from moefabric.emulator.fabric.run_directories import sole_check
from moefabric.emulator.linux.command import run
from moefabric.runtime.run_directory import FabricWiring, RunDirectory
from moefabric.testbed.fabric_check import check_fabric
from moefabric.testbed.fabric_processes import fabric_processes
from tests.kernel.fabric_lab import Machine, isolated_machine

pytestmark = pytest.mark.ovs
LIT = "s0/o0~s2/o0"
REGIONS = tuple(
    Region(f"r{r}", r, (f"s{3 * r}", f"s{3 * r + 1}", f"s{3 * r + 2}"), Ocs(f"ocs{r}", 3, 0))
    for r in range(2)
)
FABRIC = Fabric("checked", REGIONS, 2, 1, 1, 50e6, Eps(3))
Running = tuple[Machine, FabricWiring]


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with isolated_machine() as machine:
        machine.run(lambda: run(["ip", "link", "set", "lo", "up"]))
        wiring = machine.up(FABRIC, fabric_processes)
        machine.run(partial(wait_for_controllers, wiring, 60))
        yield machine, wiring


def lit(running: Running, *circuits: str) -> list[str]:
    """Light circuits in region 0, if any are given, and return those that are lit."""
    machine, wiring = running

    def ask() -> list[str]:
        with ControllerClient.of_region(wiring, REGIONS[0]) as client:
            if circuits:
                client.light(circuits)
            return client.circuits()

    return machine.run(ask)


def test_all_pairs_connect_over_regions_and_circuits_come_back(running: Running) -> None:
    machine, wiring = running
    assert lit(running, LIT) == [LIT]
    check = machine.run(partial(check_fabric, wiring))
    assert check.passed, list(check.lines())
    assert (check.servers, check.pairs, check.regions, check.circuits) == (6, 30, 2, 4)
    assert lit(running) == [LIT]


def test_second_check_is_refused_while_the_first_is_under_way(running: Running) -> None:
    machine, wiring = running
    with (
        sole_check(RunDirectory.of_fabric(FABRIC.name)),
        pytest.raises(FabricError, match="checked: another process checks this fabric"),
    ):
        machine.run(partial(check_fabric, wiring))
    assert lit(running) == [LIT]


def test_servers_need_no_arp_for_other_regions(running: Running) -> None:
    machine, _ = running
    machine.run_on(
        FABRIC.name, "s0", "ping", "-c", "1", "-w", "5", FABRIC.addressing.addresses("s5")[1]
    )
    shown = machine.run_on(FABRIC.name, "s0", "ip", "neigh", "show", "dev", "eth0").stdout
    assert all("PERMANENT" in line for line in shown.splitlines()), shown


def test_lost_rules_are_found_by_pairs_and_circuits(running: Running) -> None:
    machine, wiring = running
    machine.set_rules(FABRIC, "s4")
    check = machine.run(partial(check_fabric, wiring))
    others = set(FABRIC.servers) - {"s4"}
    assert set(check.unconnected) == {f"{o} to s4" for o in others} | {f"s4 to {o}" for o in others}
    assert check.unlit == ("s3/o0~s4/o0", "s4/o0~s5/o0")
    assert not check.passed
