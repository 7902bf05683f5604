"""What any packet switches keep: one suite for those in memory and for Open vSwitch under the real controller process's own Ryu."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from controller.client import ControllerClient
from controller.southbound.openflow.entries import Entry
from controller.southbound.openflow.memory import MemorySwitches
from moefabric.circuits import CircuitSet
from moefabric.rules import RuleChange, eps_rules, light_rules, server_rules
from tests.controller_lab import entries_as_said, entry_set, fabric, lab, needs

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


@pytest.fixture(params=["memory", pytest.param("ovs", marks=[pytest.mark.kernel, pytest.mark.ovs])])
def answer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Answer]:
    if request.param == "memory":
        made = InMemory()
        yield Answer(made.light, made.entries)
        return
    if lacking := needs():
        pytest.skip(f"lacks {lacking}")
    with lab(FABRIC, tmp_path) as real:
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
