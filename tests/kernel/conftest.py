"""Fixtures of kernel tests: a switch with hosts, and a small fabric."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from moefabric.core.topology import Fabric
from tests.kernel.fabric_lab import Machine, isolated_machine, small_fabric
from tests.kernel.switch_bench import HOSTS, Lab
from tests.kernel.switch_bench import lab as switch_lab
from tests.support.command_home import FABRIC, Home, new_home
from tests.support.namespaces import must, own_machine


@pytest.fixture(scope="module")
def plugged() -> Iterator[Lab]:
    with switch_lab(HOSTS) as made:
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


@pytest.fixture(scope="module", name="own_machine")
def machine_of_the_module() -> Iterator[None]:
    """A network namespace and a folder for run directories, of this module alone."""
    with own_machine():
        yield


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


@pytest.fixture
def home() -> Iterator[Home]:
    """A network namespace and a folder for the command."""
    with new_home() as home:
        yield home


@pytest.fixture(scope="module")
def home_with_fabric() -> Iterator[Home]:
    with new_home() as home:
        home.must("up", home.write("fabric.yaml", FABRIC.format(name="cli")))
        yield home
        home.must("down", "cli")


@pytest.fixture
def lab(home_with_fabric: Home) -> Home:
    """A fabric that stays up, without circuits."""
    home_with_fabric.must(
        "light", "--demand", home_with_fabric.write("nothing.json", "[[0, 0], [0, 0]]")
    )
    return home_with_fabric


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short name, because paths of Unix sockets are short."""
    with tempfile.TemporaryDirectory(prefix="mf", dir="/tmp") as folder:
        yield Path(folder)
