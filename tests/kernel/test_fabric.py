"""Small fabric with real packets: two servers with an optical and an electrical NIC each."""

import json
import os
import socket
import subprocess
import sys
from functools import partial

import pytest

from moefabric.core.errors import FabricError
from moefabric.core.topology import Fabric
from moefabric.emulator.crossbar.bpf_crossbar import BpfCrossbar
from moefabric.emulator.crossbar.crossbar import Ports
from moefabric.emulator.fabric import lifecycle, shaping
from moefabric.emulator.fabric.daemon_protocol import request
from moefabric.emulator.linux import namespaces
from moefabric.emulator.ocs.fd_handoff import connect, receive_handoff
from moefabric.runtime.run_directory import RunDirectory
from tests.kernel.fabric_lab import GOODPUT, RATE_BPS, Machine, ocs_process, ping, small_fabric
from tests.support.attempts import measurements

pytestmark = pytest.mark.ovs


def nic_rate_shares(machine: Machine, fabric: Fabric) -> list[float]:
    """Return the shares of a NIC's rate that flows get, until one gets the full rate."""
    shares = measurements(
        lambda: machine.goodput_bps(fabric) / RATE_BPS / GOODPUT, lambda share: share > 0.95
    )
    assert max(shares) < 1.03
    return shares


def test_switch_forwards_only_with_rules(machine: Machine, small: Fabric) -> None:
    for switch in small.switches:
        machine.set_rules(small, switch)
    assert not ping(machine, small, within_s=1)
    machine.route_by(small, "e0")
    assert ping(machine, small)


def test_eps_flow_gets_nic_rate(machine: Machine, small: Fabric) -> None:
    machine.route_by(small, "e0")
    assert max(nic_rate_shares(machine, small)) > 0.9


def test_circuit_carries_flow_at_nic_rate_and_dark_ocs_carries_nothing(
    machine: Machine, small: Fabric
) -> None:
    machine.route_by(small, "o0")
    with connect(RunDirectory.of_fabric(small.name).ocs_socket(small.regions[0]), 5) as handoff:
        facts, (crossbar_fd, *listeners) = receive_handoff(handoff)
        for listener in listeners:
            os.close(listener)
        crossbar = BpfCrossbar(Ports(facts["ports"]), crossbar_fd)
        assert not ping(machine, small, within_s=1)
        crossbar.load({(1, 4): 0, (2, 3): 0})
        assert ping(machine, small)
        assert max(nic_rate_shares(machine, small)) > 0.9
        crossbar.load({})
        assert not ping(machine, small, within_s=1)


def own_namespace(fabric: Fabric) -> str:
    """Return the path of a running fabric's own namespace."""
    switch_pid = next(
        process["pid"]
        for process in lifecycle.inspect(fabric.name)["processes"]
        if process["name"] in {"ovs-vswitchd", "switches"}
    )
    return namespaces.path_of(switch_pid)


def test_verify_names_link_without_shaping(machine: Machine, small: Fabric) -> None:
    shape = shaping.Shape("s0/e0", "s0-e0", RATE_BPS)
    run_there = partial(namespaces.run_in, own_namespace(small))
    run_there(partial(shaping.verify_shapes, [shape]))
    run_there(lambda: subprocess.run(["tc", "qdisc", "del", "dev", "s0-e0", "root"], check=True))
    with pytest.raises(FabricError, match="s0/e0: s0-e0 has qdisc noqueue where htb was set"):
        run_there(partial(shaping.verify_shapes, [shape]))
    run_there(partial(shaping.apply_shapes, [shape]))
    run_there(partial(shaping.verify_shapes, [shape]))


def test_deviations_name_links_with_other_queues_and_limits(
    machine: Machine, small: Fabric
) -> None:
    def change(*commands: str) -> list[str]:
        for command in commands:
            words = ["tc", *command.split()]
            namespaces.run_in(own_namespace(small), partial(subprocess.run, words, check=True))
        return lifecycle.deviations(small.name)

    assert not change()
    limits = f"rate {RATE_BPS:.0f}bit ceil {RATE_BPS:.0f}bit burst 3125 cburst"
    assert change(
        "qdisc change dev s0-e0 parent 1:1 handle 10: pfifo limit 1000000",
        f"class change dev s1-o0 parent 1: classid 1:1 htb {limits} 31250 quantum 65536",
    ) == [
        "s0/e0: s0-e0 has pfifo limit 1000000, not pfifo limit 100000",
        "s1/o0: s1-o0 sends bursts 10 times as long as configured",
    ]
    assert not change(
        "qdisc change dev s0-e0 parent 1:1 handle 10: pfifo limit 100000",
        f"class change dev s1-o0 parent 1: classid 1:1 htb {limits} 3125 quantum 65536",
    )


def test_inspect_shows_servers_nics_and_ocs(machine: Machine, small: Fabric) -> None:
    inspection = lifecycle.inspect(small.name)
    assert inspection["servers"][1]["addresses"] == ["10.0.1.1", "10.0.1.2"]
    assert inspection["servers"][1]["nics"] == [
        {"name": "s1/o0", "kind": "optical", "rate_bps": 5e7, "carrier": True},
        {"name": "s1/e0", "kind": "electrical", "rate_bps": 5e7, "carrier": True},
    ]
    assert inspection["ocs"][0] | {"management": ""} == {
        "name": "ocs0", "region": "r0", "management": "", "scpi_port": 5025, "ports": 2,
        "circuits": [],
    }  # fmt: skip
    assert {process["name"] for process in inspection["processes"]} in (
        {"ovsdb-server", "ovs-vswitchd"},
        {"switches"},
    )
    assert inspection["faults"] == []


SCPI_CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], 5025), 3) as ocs:
    for words in ("*idn?", ":oxc:swit:conn:only (@1,2),(@4,3); *opc?", ":syst:err?"):
        ocs.sendall(words.encode() + b"\\n")
        print(ocs.recv(200).decode().strip())
"""


def test_scpi_client_on_management_network_lights_circuit(machine: Machine) -> None:
    fabric = small_fabric("lit")
    management = machine.up(fabric, ocs_process).management
    machine.route_by(fabric, "o0")
    assert not ping(machine, fabric, within_s=1)
    argv = [sys.executable, "-c", SCPI_CLIENT, management.ocs_address(fabric.regions[0])]
    replies = machine.run(
        partial(subprocess.run, argv, capture_output=True, text=True, timeout=10)
    ).stdout.splitlines()
    assert (replies[-2], replies[-1].split(",")[0].lstrip("+")) == ("1", "0")
    assert ping(machine, fabric)
    assert machine.down("lit")


def test_servers_have_names_and_interfaces_one_address(machine: Machine, small: Fabric) -> None:
    def printed(*command: str) -> str:
        result = machine.run_on(small.name, "s1", *command)
        assert result.returncode == 0, (command, result.stderr)
        return result.stdout

    assert printed("hostname") == "s1\n"
    assert printed("getent", "hosts", "s0.r0").split()[0] == "10.0.0.1"
    assert printed("getent", "hosts", "10.0.0.2").split() == ["10.0.0.2", "s0-gpu1"]
    shown = json.loads(printed("ip", "-4", "-j", "address", "show", "dev", "eth0"))
    assert [entry["local"] for entry in shown[0]["addr_info"]] == ["10.0.1.1"]
    machine.route_by(small, "e0")
    assert "1 received" in printed("ping", "-c", "1", "-w", "5", "s0-gpu1")


@pytest.mark.parametrize("line", ["[" * 4000, '{"do": ' + "[" * 900 + "]" * 900 + "}", "7", ""])
def test_invalid_request_costs_its_client_only(small: Fabric, line: str) -> None:
    run_dir = RunDirectory.of_fabric(small.name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(30)
        client.connect(str(run_dir.control_socket))
        client.sendall(line.encode() + b"\n")
        assert client.recv(1) == b""
    assert request(run_dir, {"do": "ping"})["faults"] == []
