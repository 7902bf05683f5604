"""Fabrics whose management network needs more addresses than a /24 has."""

from functools import partial

import pytest

from moefabric.core.eps import Eps
from moefabric.core.topology import Fabric, Region
from moefabric.emulator.fabric import management_uplink, run_directories
from moefabric.emulator.linux.command import run
from moefabric.runtime.run_directory import RunDirectory
from tests.kernel.fabric_lab import Machine, isolated_machine

pytestmark = pytest.mark.ovs
PER_REGION, REGIONS = 25, 8


def claimed(machine: Machine, name: str, prefix: int) -> str:
    run_dir = RunDirectory.of_fabric(name)
    with run_directories.lock(run_dir):
        run_dir.make_identity()
        management, _ = machine.run(partial(management_uplink.claim_subnet, name, prefix))
    return management.subnet


def test_subnets_of_all_sizes_are_apart() -> None:
    with isolated_machine() as machine:
        # Another `up` has the name already, and not yet the address.
        machine.run(lambda: run(["ip", "link", "add", "name", "mf6", "type", "veth"]))
        prefixes = {"a": 24, "b": 22, "c": 24, "d": 23, "e": 24}
        assert [claimed(machine, name, prefix) for name, prefix in prefixes.items()] == [
            "198.18.0.0/24",
            "198.18.8.0/22",
            "198.18.1.0/24",
            "198.18.2.0/23",
            "198.18.4.0/24",
        ]
        assert machine.down("b")
        assert claimed(machine, "f", 22) == "198.18.8.0/22"


@pytest.mark.timeout(120)
def test_servers_of_a_larger_network_reach_each_other() -> None:
    regions = tuple(
        Region(f"r{r}", r, tuple(f"s{PER_REGION * r + i}" for i in range(PER_REGION)), None)
        for r in range(REGIONS)
    )
    fabric = Fabric("large", regions, 1, 0, 1, 50e6, Eps(256))
    with isolated_machine() as machine:
        management = machine.up(fabric).management
        assert management.network.prefixlen == 23
        last = management.server_address(fabric, fabric.servers[-1])
        words = ["ping", "-c", "1", "-w", "20", last]
        assert machine.run_on("large", "s0", *words).returncode == 0, last
