"""What kernel tests share: a switch in the kernel (its chassis, one with hosts on its ports, and that one emptied), and a small fabric."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from emulator.switch.chassis import Chassis
from moefabric.topology import Fabric
from tests.kernel.fabric_lab import Machine, own_machine, wired
from tests.kernel.switch_bench import HOSTS, Lab, lab
from tests.namespaces import must


@pytest.fixture(scope="module")
def chassis() -> Iterator[Chassis]:
    with closing(Chassis(8, flows=256)) as made:
        yield made


@pytest.fixture(scope="module")
def plugged(chassis: Chassis) -> Iterator[Lab]:
    with lab(HOSTS, chassis, number=7) as made:
        for host in made.nics:  # a host with an address would answer ARP
            must(*made.hosts.argv(host, "ip", "address", "flush", "dev", "nic"))
        yield made


@pytest.fixture
def bench(plugged: Lab) -> Lab:
    """A switch without flows, and nothing waiting anywhere."""
    plugged.switch.load([])
    plugged.switch.received()
    for host in plugged.nics:
        plugged.heard(host)
    return plugged


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with own_machine() as made:
        yield made


@pytest.fixture(scope="module")
def fabric(machine: Machine) -> Iterator[Fabric]:
    made = wired("small")
    machine.up(made)
    yield made
    machine.down(made.name)
