"""The project's controllers, as processes under Ryu, with switches in memory; without root."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv4Address

import pytest

from moefabric.config.run_directory import SCPI_PORT, FabricWiring, ManagementNetwork, RunDirectory
from moefabric.controller.client import ControllerClient
from moefabric.controller.southbound.openflow.flow_entries import FlowEntry
from moefabric.core.circuits import CircuitSet
from moefabric.core.rules import direct_rules, eps_rules, server_rules
from moefabric.emulator.linux.waiting import Deadline
from moefabric.emulator.openflow_switch.agent.agent import OpenFlowAgent
from moefabric.emulator.openflow_switch.agent.interfaces import MemoryInterfaces
from moefabric.emulator.openflow_switch.agent.switch import OpenFlowSwitch
from moefabric.emulator.openflow_switch.datapath.interface import Port
from moefabric.emulator.openflow_switch.datapath.memory_datapath import MemoryDatapath
from moefabric.emulator.openflow_switch.flows.flow import CONTROLLER, Output
from tests.support.controller_lab import end, entry_set, fabric, listens, scpi_device
from tests.support.openflow_lab import serving

FABRIC = fabric()
REGION = FABRIC.regions[0]
A = CircuitSet.of(["s0/o0~s3/o2", "s0/o1~s3/o1", "s1/o0~s2/o1"])
B = CircuitSet.of(["s0/o1~s3/o1", "s0/o0~s2/o0", "s1/o0~s2/o1"])


class CountingDatapath(MemoryDatapath):
    """A datapath in memory that counts its loads."""

    loads = 0

    def load(self, *arguments: object) -> None:
        super().load(*arguments)  # type: ignore[arg-type]
        self.loads += 1


@dataclass
class Bench:
    """The region controller's client, and the switches."""

    client: ControllerClient
    switches: Mapping[str, OpenFlowSwitch]
    datapaths: Mapping[str, CountingDatapath]
    controllers: "subprocess.Popen[bytes]"

    def entries(self, switch: str) -> set[FlowEntry]:
        """The entries of a switch except those with packets for the controller."""
        entries = set[FlowEntry]()
        for flow_entry in self.switches[switch].tables.entries.values():
            (out,) = flow_entry.instructions.apply
            assert isinstance(out, Output)
            if out.port is CONTROLLER:
                continue
            address, mask = flow_entry.match.ipv4_dst or (0, 0)
            assert isinstance(out.port, int)
            dscp = flow_entry.match.ip_dscp[0] if flow_entry.match.ip_dscp else None
            entries.add(FlowEntry(flow_entry.priority, address, mask.bit_count(), dscp, out.port))
        return entries


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Shared by all tests because the controllers start slowly."""
    management = ManagementNetwork(f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250}.0/24")
    run = RunDirectory(tmp_path_factory.mktemp("run"))
    run.wiring_file.write_text(FabricWiring(FABRIC, management).to_json())
    with ExitStack() as undo:
        undo.enter_context(scpi_device(FABRIC, (management.ocs_address(REGION), SCPI_PORT)))
        argv = [sys.executable, "-m", "moefabric.controller", "--run-dir", str(run.path)]
        controllers = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        undo.callback(end, controllers)
        interfaces = MemoryInterfaces()
        undo.callback(interfaces.close)
        agent = OpenFlowAgent(interfaces)
        datapaths, switches = dict[str, CountingDatapath](), dict[str, OpenFlowSwitch]()
        for name in FABRIC.switches:
            ports = [Port(number, f"{name}-{number}") for number in FABRIC.ports(name).values()]
            datapaths[name] = CountingDatapath(ports)
            undo.callback(datapaths[name].close)
            switches[name] = OpenFlowSwitch(
                FABRIC.dpid(name), datapaths[name], interfaces, time.monotonic_ns()
            )
            agent.add(name, switches[name])
        agent.connect(
            {
                name: management.openflow_endpoint(FABRIC.region_of.get(name))
                for name in FABRIC.switches
            }
        )
        undo.enter_context(serving(agent))
        endpoints = [management.openflow_endpoint(region) for region in (REGION, None)]
        Deadline.after(15).wait_for(lambda: all(map(listens, endpoints)), "the controllers")
        others, client = (
            undo.enter_context(ControllerClient(management.northbound_endpoint(region)))
            for region in (None, REGION)
        )
        for controller in (others, client):
            controller.wait_ready(15)
        yield Bench(client, switches, datapaths, controllers)


def test_switches_have_exactly_the_rules_of_lit_circuits(bench: Bench) -> None:
    for lit in (CircuitSet(), A, B, A, CircuitSet()):
        before = {name: datapath.loads for name, datapath in bench.datapaths.items()}
        bench.client.light([str(circuit) for circuit in lit])
        rules = server_rules(FABRIC, REGION) | eps_rules(FABRIC) | direct_rules(lit)
        for switch in FABRIC.switches:
            assert bench.entries(switch) == entry_set(FABRIC, switch, rules), f"{switch} with {lit}"
            # One load for the divert and one for the admit.
            assert bench.datapaths[switch].loads - before[switch] <= 2


def test_demands_move_circuits_one_after_the_other(bench: Bench) -> None:
    """The OCS is asked while a demand is planned; no answer is left for the next query."""
    size = len(REGION.servers)
    for pair in ((0, 1), (2, 3), (0, 3), (0, 3), (1, 2)):
        rows = [[8e9 if (a, b) == pair else 0.0 for b in range(size)] for a in range(size)]
        answer = bench.client.demand(rows)
        lit = CircuitSet.of(answer["circuits_after"])
        assert answer["plan"]["circuits"][pair[0]][pair[1]] == len(lit) > 0
        assert lit == CircuitSet.of(bench.client.circuits())
        rules = server_rules(FABRIC, REGION) | eps_rules(FABRIC) | direct_rules(lit)
        for switch in FABRIC.switches:
            assert bench.entries(switch) == entry_set(FABRIC, switch, rules)


def test_controller_answers_arp(bench: Bench) -> None:
    def number(server: str) -> bytes:
        return IPv4Address(next(iter(FABRIC.addresses(server)))).packed

    def mac(server: str) -> bytes:
        return bytes.fromhex(FABRIC.mac(server).replace(":", ""))

    head = b"\x08\x06" + bytes.fromhex("0001080006040001")
    request = b"\xff" * 6 + mac("s0") + head + mac("s0") + number("s0") + bytes(6) + number("s2")
    bench.datapaths["s0"].forward(1, request)
    Deadline.after(5).wait_for(lambda: bool(bench.datapaths["s0"].sent), "a reply")
    ((port, reply),) = bench.datapaths["s0"].sent
    assert (port, reply[:6], reply[22:28]) == (1, mac("s0"), mac("s2"))
