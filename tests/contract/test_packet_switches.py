"""Contract of packet switches: in memory, Open vSwitch, and ours under a controller process."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from moefabric.controller.client import ControllerClient
from moefabric.controller.southbound.openflow.flow_entries import FlowEntry
from moefabric.core.circuits import CircuitSet
from moefabric.core.rules import RuleChange, direct_rules, eps_rules, server_rules
from moefabric.emulator.fabric.datapath import DatapathKind
from moefabric.emulator.fabric.plan import SwitchPlan
from tests.support.certificates import make_certificates
from tests.support.controller_lab import (
    MANAGEMENT,
    Lab,
    entries_as_said,
    entry_set,
    fabric,
    management_network,
)
from tests.support.memory_switches import MemorySwitches
from tests.support.switch_processes import SwitchProcess, wire

FABRIC = fabric()
REGION = FABRIC.regions[0]
A = CircuitSet.of(["s0/o0~s3/o2", "s0/o1~s3/o1", "s1/o0~s2/o1"])
B = CircuitSet.of(["s0/o1~s3/o1", "s0/o0~s2/o0", "s1/o0~s2/o1"])


@dataclass
class Answer:
    """Switches: a function that lights circuits, and one that returns their entries."""

    light: Callable[[CircuitSet], object]
    entries: Callable[[str], set[FlowEntry]]


class InMemory:
    """Switches in memory whose rules change as a reconciler changes them."""

    def __init__(self) -> None:
        self.switches, self.now = MemorySwitches(FABRIC), CircuitSet()

    def light(self, target: CircuitSet) -> None:
        kept = direct_rules(self.now.transition_to(target).kept)
        self.switches.apply(RuleChange.between(direct_rules(self.now), kept))
        self.switches.apply(RuleChange.between(kept, direct_rules(target)))
        self.now = target

    def entries(self, switch: str) -> set[FlowEntry]:
        return set(self.switches._tables[switch].values())


class OurLab(Lab):
    """A lab with our switches, without links. `ovs-ofctl` finds them as it finds Open vSwitch's."""

    datapath = DatapathKind.BPF.value

    def start_ovs(self, switches: Sequence[SwitchPlan] = ()) -> None:
        assert not switches
        described = [
            {
                "name": name,
                "datapath_id": self.fabric.openflow.dpid(name),
                "ports": {
                    port: f"{name}-{port}" for port in self.fabric.openflow.ports(name).values()
                },
            }
            for name in self.fabric.switches
        ]
        for name in self.fabric.switches:
            for port in self.fabric.openflow.ports(name).values():
                wire(f"{name}-{port}", f"{name}-{port}e")
        self.process = SwitchProcess(
            described, self.ovs.folder, self.undo, self.run.read_token(), self.tls
        )

    def connect(self, *switches: str) -> None:
        region_of = self.fabric.region_of
        named = switches or self.fabric.switches
        self.process.connect(
            {name: MANAGEMENT.openflow_endpoint(region_of.get(name)) for name in named}
        )


KINDS = {"ovs": Lab, "bpf": OurLab}


@pytest.fixture(
    params=[
        "memory",
        pytest.param("ovs", marks=[pytest.mark.kernel, pytest.mark.ovs]),
        pytest.param("ovs-tls", marks=[pytest.mark.kernel, pytest.mark.ovs]),
        pytest.param("bpf-tls", marks=[pytest.mark.kernel, pytest.mark.ovs]),
        pytest.param("bpf", marks=[pytest.mark.kernel, pytest.mark.ovs]),
    ]
)
def answer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Answer]:
    if request.param == "memory":
        switches = InMemory()
        yield Answer(switches.light, switches.entries)
        return
    with management_network(), ExitStack() as undo:
        kind, *over_tls = request.param.split("-")
        real = KINDS[kind](FABRIC, tmp_path, undo)
        real.tls = make_certificates(tmp_path / "tls") if over_tls else None
        real.start_all()
        client: ControllerClient = real.client(REGION)
        yield Answer(
            lambda circuits: client.light([str(circuit) for circuit in circuits]),
            lambda switch: entries_as_said(real.entries(switch)),
        )


def test_switches_have_exactly_the_rules_of_lit_circuits(answer: Answer) -> None:
    """One test covers all states, since real switches take a second to start."""
    for lit in (CircuitSet(), A, B, A, CircuitSet()):
        answer.light(lit)
        rules = server_rules(FABRIC, REGION) | eps_rules(FABRIC) | direct_rules(lit)
        for switch in FABRIC.switches:
            assert answer.entries(switch) == entry_set(FABRIC, switch, rules), (
                f"{switch} with {lit}"
            )
