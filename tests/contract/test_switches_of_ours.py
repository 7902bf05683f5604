"""Our own controllers, real processes under Ryu, and switches of ours in memory: on loopback, without root."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv4Address

import pytest

from controller.client import ControllerClient
from controller.southbound.openflow.entries import Entry
from emulator.switch.agent import Agent
from emulator.switch.flow import CONTROLLER, Output
from emulator.switch.memory import MemoryDatapath
from emulator.switch.openflow_ports import MemoryInterfaces
from emulator.switch.openflow_switch import Switch
from emulator.switch.seam import Port
from emulator.waiting import Deadline
from moefabric.circuits import CircuitSet
from moefabric.management import SCPI_PORT, Management, RunDir, Wiring
from moefabric.rules import eps_rules, light_rules, server_rules
from tests.controller_lab import end, entry_set, fabric, listens, scpi_device
from tests.openflow_lab import serving

FABRIC = fabric()
REGION = FABRIC.regions[0]
A = CircuitSet.of(["s0/o0~s3/o2", "s0/o1~s3/o1", "s1/o0~s2/o1"])
B = CircuitSet.of(["s0/o1~s3/o1", "s0/o0~s2/o0", "s1/o0~s2/o1"])


class Counting(MemoryDatapath):
    """A datapath in memory that remembers how often it was loaded."""

    loads = 0

    def load(self, *told: object) -> None:
        super().load(*told)  # type: ignore[arg-type]
        self.loads += 1


@dataclass
class Bench:
    client: ControllerClient
    switches: Mapping[str, Switch]
    datapaths: Mapping[str, Counting]
    controllers: "subprocess.Popen[bytes]"

    def entries(self, switch: str) -> set[Entry]:
        """What a switch has, but for the entries that bring packets to the controller."""
        made = set[Entry]()
        for entry in self.switches[switch].tables.entries.values():
            (out,) = entry.instructions.apply
            assert isinstance(out, Output)
            if out.port is CONTROLLER:
                continue
            address, mask = entry.match.ipv4_dst or (0, 0)
            assert isinstance(out.port, int)
            dscp = entry.match.ip_dscp[0] if entry.match.ip_dscp else None
            made.add(Entry(entry.priority, address, mask.bit_count(), dscp, out.port))
        return made


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One for all tests, since the controllers take a second to start."""
    management = Management(f"127.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250}.0/24")
    run = RunDir(tmp_path_factory.mktemp("run"))
    run.wiring.write_text(Wiring(FABRIC, management).to_json())
    with ExitStack() as undo:
        undo.enter_context(scpi_device(FABRIC, (management.ocs(REGION), SCPI_PORT)))
        argv = [sys.executable, "-m", "controller", "--run-dir", str(run.path)]
        controllers = subprocess.Popen(argv, stdin=subprocess.DEVNULL)
        undo.callback(end, controllers)
        interfaces = MemoryInterfaces()
        undo.callback(interfaces.close)
        agent = Agent(interfaces)
        datapaths, switches = dict[str, Counting](), dict[str, Switch]()
        for name in FABRIC.switches:
            ports = [Port(number, f"{name}-{number}") for number in FABRIC.ports(name).values()]
            datapaths[name] = Counting(ports)
            undo.callback(datapaths[name].close)
            switches[name] = Switch(FABRIC.dpid(name), datapaths[name], interfaces, time.monotonic_ns())
            agent.add(name, switches[name])
        agent.connect({name: management.openflow(FABRIC.region_of.get(name)) for name in FABRIC.switches})
        undo.enter_context(serving(agent))
        places = [management.openflow(region) for region in (REGION, None)]
        Deadline.after(15).until(lambda: all(map(listens, places)), "the controllers")
        others, client = (
            undo.enter_context(ControllerClient(management.northbound(region))) for region in (None, REGION)
        )
        for each in (others, client):
            each.wait_ready(15)
        yield Bench(client, switches, datapaths, controllers)


def test_switches_have_exactly_the_rules_of_what_is_lit(bench: Bench) -> None:
    for lit in (CircuitSet(), A, B, A, CircuitSet()):
        before = {name: datapath.loads for name, datapath in bench.datapaths.items()}
        bench.client.light([str(circuit) for circuit in lit])
        rules = server_rules(FABRIC, REGION) | eps_rules(FABRIC) | light_rules(lit)
        for switch in FABRIC.switches:
            assert bench.entries(switch) == entry_set(FABRIC, switch, rules), f"{switch} with {lit}"
            # A divert and an admit, each of them one flip.
            assert bench.datapaths[switch].loads - before[switch] <= 2


def test_a_server_is_told_who_has_an_address(bench: Bench) -> None:
    def number(server: str) -> bytes:
        return IPv4Address(next(iter(FABRIC.addresses(server)))).packed

    def mac(server: str) -> bytes:
        return bytes.fromhex(FABRIC.mac(server).replace(":", ""))

    head = b"\x08\x06" + bytes.fromhex("0001080006040001")
    asked = b"\xff" * 6 + mac("s0") + head + mac("s0") + number("s0") + bytes(6) + number("s2")
    bench.datapaths["s0"].forward(1, asked)
    Deadline.after(5).until(lambda: bool(bench.datapaths["s0"].sent), "an answer")
    ((port, answer),) = bench.datapaths["s0"].sent
    assert (port, answer[:6], answer[22:28]) == (1, mac("s0"), mac("s2"))
