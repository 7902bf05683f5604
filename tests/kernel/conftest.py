"""A switch in the kernel, for the tests of it: its chassis, one with hosts on its ports, and that one emptied."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from emulator.switch.datapath import Chassis
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
