"""A small fabric with real packets: two servers, an optical and an electrical NIC each, one leaf, one OCS."""

import os
import subprocess
import sys
from functools import partial

import pytest

from emulator import lifecycle, namespaces, shaping
from emulator.light import Light
from emulator.mirrors import taken_over
from emulator.plant import connected, receive
from moefabric.errors import FabricError
from moefabric.management import RunDir
from moefabric.topology import Fabric
from tests.kernel.fabric_lab import GOODPUT, NEEDS, RATE_BPS, Machine, ocs_process, ping, wired

pytestmark = NEEDS


def shares_of_a_nic(machine: Machine, fabric: Fabric) -> list[float]:
    """What flows got, one after the other until one has the whole of it; on a machine that others use, some get less."""
    shares: list[float] = []
    while len(shares) < 5 and (not shares or shares[-1] < 0.95):
        shares.append(machine.goodput_bps(fabric) / RATE_BPS / GOODPUT)
        assert shares[-1] < 1.03
    return shares


def test_nothing_passes_a_switch_without_rules_and_all_does_with_them(
    machine: Machine, fabric: Fabric
) -> None:
    for switch in fabric.switches:
        machine.rules(fabric, switch)
    assert not ping(machine, fabric, within_s=1)
    machine.by(fabric, "e0")
    assert ping(machine, fabric)


def test_a_flow_over_the_eps_gets_the_rate_of_a_nic(machine: Machine, fabric: Fabric) -> None:
    machine.by(fabric, "e0")
    assert max(shares_of_a_nic(machine, fabric)) > 0.9


def test_light_carries_a_flow_at_the_rate_of_a_nic_and_darkness_carries_nothing(
    machine: Machine, fabric: Fabric
) -> None:
    machine.by(fabric, "o0")
    with connected(RunDir.named(fabric.name).plant(fabric.regions[0]), 5) as plant:
        facts, (mirrors, *listeners) = receive(plant)
        for listener in listeners:
            os.close(listener)
        crossbar = taken_over(facts, mirrors)
        assert not ping(machine, fabric, within_s=1)
        crossbar.load({1: Light(4, 0), 2: Light(3, 0)})
        assert ping(machine, fabric)
        assert max(shares_of_a_nic(machine, fabric)) > 0.9
        crossbar.load({})
        assert not ping(machine, fabric, within_s=1)


def test_a_link_that_lost_its_shape_is_named(machine: Machine, fabric: Fabric) -> None:
    switching = next(
        p["pid"]
        for p in lifecycle.inspect(fabric.name)["processes"]
        if p["name"] in {"ovs-vswitchd", "switches"}
    )
    shape = shaping.Shape("s0/e0", "s0-e0", RATE_BPS, 1500)
    here = partial(namespaces.within, namespaces.of(switching))
    here(partial(shaping.verify, [shape]))
    here(lambda: subprocess.run(["tc", "qdisc", "del", "dev", "s0-e0", "root"], check=True))
    with pytest.raises(FabricError, match="s0/e0: s0-e0 has qdisc noqueue where htb was set"):
        here(partial(shaping.verify, [shape]))
    here(partial(shaping.shape, [shape]))
    here(partial(shaping.verify, [shape]))


def test_inspect_tells_of_servers_nics_and_the_ocs(machine: Machine, fabric: Fabric) -> None:
    told = lifecycle.inspect(fabric.name)
    assert told["servers"][1]["addresses"] == ["10.0.1.1", "10.0.1.2"]
    assert told["servers"][1]["nics"] == [
        {"name": "s1/o0", "kind": "optical", "rate_bps": 5e7, "carrier": True},
        {"name": "s1/e0", "kind": "electrical", "rate_bps": 5e7, "carrier": True},
    ]
    assert told["ocs"][0] | {"management": ""} == {
        "name": "ocs0", "region": "r0", "management": "", "scpi_port": 5025, "ports": 2, "circuits": [],
    }  # fmt: skip
    assert {process["name"] for process in told["processes"]} in (
        {"ovsdb-server", "ovs-vswitchd"},
        {"switches"},
    )
    assert told["faults"] == []


SCPI = """
import socket, sys
with socket.create_connection((sys.argv[1], 5025), 3) as ocs:
    for words in ("*idn?", ":oxc:swit:conn:only (@1,2),(@4,3); *opc?", ":syst:err?"):
        ocs.sendall(words.encode() + b"\\n")
        print(ocs.recv(200).decode().strip())
"""


def test_an_ocs_process_lights_a_circuit_by_scpi_over_the_management_network(machine: Machine) -> None:
    fabric = wired("lit")
    management = machine.up(fabric, ocs_process).management
    machine.by(fabric, "o0")
    assert not ping(machine, fabric, within_s=1)
    words = [sys.executable, "-c", SCPI, management.ocs(fabric.regions[0])]
    said = machine.here(
        partial(subprocess.run, words, capture_output=True, text=True, timeout=10)
    ).stdout.splitlines()
    assert (said[-2], said[-1].split(",")[0].lstrip("+")) == ("1", "0")
    assert ping(machine, fabric)
    assert machine.down("lit")
