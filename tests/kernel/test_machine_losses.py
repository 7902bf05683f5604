"""What happens to a fabric on two machines when one of them, or the head, goes away."""

import json
from collections.abc import Iterator

import pytest

from moefabric.core.machines import Machine
from moefabric.runtime.waiting import Deadline
from tests.support.machine_namespaces import NamespaceMachine, machine_namespaces
from tests.support.placed_fabrics import PlacedFabric, machine_service, placed_fabric

pytestmark = pytest.mark.nightly
Machines = dict[str, NamespaceMachine]
NAME = "machines-lost"
LEASE_S = 8.0
WAIT_S = 60.0
REFUSED = [
    (("fault", "nic", "s2/o0"), "fault nic: s2/o0: machine m1: its part has ended"),
    (("fault", "server", "s3"), "fault server: s3: machine m1: its part has ended"),
    (("light", "s2/o0~s3/o0"), "r1 is on machine m1, which is lost: its part has ended"),
]
"""Commands about hardware of a lost machine, and their errors."""


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with machine_namespaces(["head", "m1"], subnet="10.97.0") as both:
        yield both


@pytest.fixture(scope="module")
def other(machines: Machines) -> Iterator[Machine]:
    with machine_service(machines["m1"], LEASE_S) as machine:
        yield machine


def wait_gone(placed: PlacedFabric, machine: str) -> None:
    Deadline.after(WAIT_S).wait_for(lambda: not placed.remains(machine), machine)


def test_down_on_any_machine_removes_all_parts(machines: Machines, other: Machine) -> None:
    with placed_fabric(NAME, machines, other) as placed:
        placed.command("down", NAME, on="m1")
        for machine in machines:
            wait_gone(placed, machine)


def test_lost_part_is_a_fault_and_the_rest_goes_down(machines: Machines, other: Machine) -> None:
    def faults() -> list[str]:
        return list(json.loads(placed.command("inspect", "--json").stdout)["faults"])

    with placed_fabric(NAME, machines, other) as placed:
        kill = "kill -KILL $(pgrep -of '[f]abric.daemon')"
        machines["m1"].run("sh", "-c", kill)
        Deadline.after(WAIT_S).wait_for(lambda: "machine m1: its part has ended" in faults(), "it")
        for words, error in REFUSED:
            refused = placed.command(*words, check=False)
            assert (refused.returncode, error in refused.stderr) == (1, True), refused.stderr
        placed.command("fault", "nic", "s0/o0")
        placed.command("down", NAME)
        assert not placed.remains("head")
        wait_gone(placed, "m1")


def test_part_ends_when_its_head_has_lost_power(machines: Machines, other: Machine) -> None:
    with placed_fabric(NAME, machines, other, goes_down=False) as placed:
        machines["head"].run("ip", "link", "set", "eth0", "down")  # no connection ends
        machines["head"].kill()
        wait_gone(placed, "m1")
