"""Fixtures of kernel tests: the switches' program, a switch with hosts, and a small fabric."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from moefabric.core.topology import Fabric
from moefabric.emulator.openflow_switch.datapath.shared_program import SharedProgram
from tests.kernel.fabric_lab import Machine, isolated_machine, small_fabric
from tests.kernel.switch_bench import HOSTS, Lab, lab
from tests.support.namespaces import must


@pytest.fixture(scope="module")
def program() -> Iterator[SharedProgram]:
    with closing(SharedProgram(8, flows=256)) as shared:
        yield shared


@pytest.fixture(scope="module")
def plugged(program: SharedProgram) -> Iterator[Lab]:
    with lab(HOSTS, program, number=7) as made:
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
    with isolated_machine() as isolated:
        yield isolated


@pytest.fixture(scope="module")
def small(machine: Machine) -> Iterator[Fabric]:
    """A small fabric that is up."""
    fabric = small_fabric("small")
    machine.up(fabric)
    yield fabric
    machine.down(fabric.name)
