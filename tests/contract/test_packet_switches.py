"""What any packet switches keep: one suite for those in memory, and for Open vSwitch and switches of ours under the real controller process's own Ryu."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from controller.client import ControllerClient
from controller.southbound.openflow.entries import Entry
from controller.southbound.openflow.memory import MemorySwitches
from emulator.ovs import Bridge
from moefabric.circuits import CircuitSet
from moefabric.rules import RuleChange, eps_rules, light_rules, server_rules
from tests.controller_lab import MANAGEMENT, Lab, entries_as_said, entry_set, fabric, needs, own_network
from tests.switch_processes import Door, wire

FABRIC = fabric()
REGION = FABRIC.regions[0]
A = CircuitSet.of(["s0/o0~s3/o2", "s0/o1~s3/o1", "s1/o0~s2/o1"])
B = CircuitSet.of(["s0/o1~s3/o1", "s0/o0~s2/o0", "s1/o0~s2/o1"])


@dataclass
class Answer:
    """Switches that can be told of circuits, and asked what entries they have."""

    light: Callable[[CircuitSet], object]
    entries: Callable[[str], set[Entry]]


class InMemory:
    """The switches in memory, told of circuits as a reconciliation would."""

    def __init__(self) -> None:
        self.switches, self.now = MemorySwitches(FABRIC), CircuitSet()

    def light(self, target: CircuitSet) -> None:
        kept = light_rules(self.now.towards(target).kept)
        self.switches.change(RuleChange.between(light_rules(self.now), kept))
        self.switches.change(RuleChange.between(kept, light_rules(target)))
        self.now = target

    def entries(self, switch: str) -> set[Entry]:
        return set(self.switches._tables[switch].values())


class OurLab(Lab):
    """A lab whose switches are ours, with wires that end nowhere. `ovs-ofctl` finds them where it finds Open vSwitch's."""

    def start_ovs(self, bridges: list[Bridge] | None = None) -> None:
        assert bridges is None
        made = [
            {
                "name": name,
                "datapath_id": self.fabric.dpid(name),
                "ports": {port: f"{name}-{port}" for port in self.fabric.ports(name).values()},
            }
            for name in self.fabric.switches
        ]
        for name in self.fabric.switches:
            for port in self.fabric.ports(name).values():
                wire(f"{name}-{port}", f"{name}-{port}e")
        self.door = Door(made, self.ovs.folder, self.undo)

    def connect(self, *switches: str) -> None:
        region_of = self.fabric.region_of
        named = switches or self.fabric.switches
        self.door.connect({name: MANAGEMENT.openflow(region_of.get(name)) for name in named})


KINDS = {"ovs": Lab, "bpf": OurLab}


@pytest.fixture(
    params=[
        "memory",
        pytest.param("ovs", marks=[pytest.mark.kernel, pytest.mark.ovs]),
        pytest.param("bpf", marks=[pytest.mark.kernel, pytest.mark.ovs]),
    ]
)
def answer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Answer]:
    if request.param == "memory":
        made = InMemory()
        yield Answer(made.light, made.entries)
        return
    if lacking := needs():
        pytest.skip(f"lacks {lacking}")
    with own_network(), ExitStack() as undo:
        real = KINDS[request.param](FABRIC, tmp_path, undo)
        real.start_all()
        client: ControllerClient = real.client(REGION)
        yield Answer(
            lambda circuits: client.light([str(circuit) for circuit in circuits]),
            lambda switch: entries_as_said(real.entries(switch)),
        )


def test_the_switches_have_exactly_the_rules_of_what_is_lit(answer: Answer) -> None:
    """One test for all states, since the real switches take a second to make."""
    for lit in (CircuitSet(), A, B, A, CircuitSet()):
        answer.light(lit)
        rules = server_rules(FABRIC, REGION) | eps_rules(FABRIC) | light_rules(lit)
        for switch in FABRIC.switches:
            assert answer.entries(switch) == entry_set(FABRIC, switch, rules), f"{switch} with {lit}"
