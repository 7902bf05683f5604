"""Each law is broken by a policy that does what the law forbids, and by no other law's policy."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count

import pytest

from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Share, Split
from moefabric.core.topology import Fabric, Nic, Region
from moefabric.planner.laws import LAWS, Situation, broken, plan_faults, situations
from moefabric.planner.plan import Plan
from moefabric.planner.policy import EpsOnly, Policy, PolicyTraits, circuit_first_split
from moefabric.runner.policy_check import check_policy
from tests.support.policies import POLICIES

Choose = Callable[[Fabric, DemandMatrix, CircuitSet], CircuitSet]
Divide = Callable[[DemandMatrix, CircuitSet], Split]


def join(a: str, b: str) -> CircuitSet:
    return CircuitSet.of([f"{a}~{b}"])


def no_light(_fabric: Fabric, _demand: DemandMatrix, _lit: CircuitSet) -> CircuitSet:
    return CircuitSet()


@dataclass(frozen=True)
class Wrong(PolicyTraits):
    name: str = "wrong"
    choose: Choose = no_light
    divide: Divide = circuit_first_split
    reconfigures: bool = field(default=True, kw_only=True)

    def circuits(
        self, fabric: Fabric, region: Region, demand: DemandMatrix, current: CircuitSet
    ) -> CircuitSet:
        return self.choose(fabric, demand, current)

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        return self.divide(demand, circuits)


def changed_shares(change: Callable[[Share], Share]) -> Divide:
    def divide(demand: DemandMatrix, circuits: CircuitSet) -> Split:
        return Split(tuple(map(change, circuit_first_split(demand, circuits))))

    return divide


def alternating() -> Choose:
    calls = count()
    return lambda *_: join("s0/o0", "s1/o0") if next(calls) % 2 else CircuitSet()


def alternating_split() -> Divide:
    calls = count()

    def divide(demand: DemandMatrix, circuits: CircuitSet) -> Split:
        split = circuit_first_split(demand, circuits)
        return Split(split.shares[::-1]) if next(calls) % 2 else split

    return divide


def twice_at_a_nic(*_: object) -> CircuitSet:
    ends = Nic.parse("s0/o0"), Nic.parse("s1/o0"), Nic.parse("s2/o0")
    return CircuitSet(frozenset({Circuit(ends[0], ends[1]), Circuit(ends[0], ends[2])}))


def broken_laws(policy: Policy) -> set[str]:
    tried = situations(4)
    return {law.name for one in tried for law, _ in broken(policy, one) if not law.is_advice}


@pytest.mark.parametrize(
    ("law", "policy"),
    [
        ("matching", Wrong(choose=twice_at_a_nic)),
        ("ports", Wrong(choose=lambda *_: join("s0/o0", "s99/o0"))),
        (
            "out of service",
            Wrong(
                choose=lambda fabric, _demand, _lit: CircuitSet.of(
                    f"{nic}~{'s1/o0' if nic.server != 's1' else 's0/o0'}"
                    for nic in sorted(fabric.unusable_nics)[:1]
                )
            ),
        ),
        ("bytes", Wrong(divide=lambda *_: Split(()))),
        ("bytes", Wrong(divide=changed_shares(lambda s: replace(s, eps_bytes=s.eps_bytes / 2)))),
        (
            "bytes",
            Wrong(
                divide=changed_shares(
                    lambda s: replace(s, light_bytes=-1.0, eps_bytes=s.eps_bytes + 1)
                )
            ),
        ),
        (
            "light",
            Wrong(
                divide=changed_shares(lambda s: replace(s, light_bytes=s.eps_bytes, eps_bytes=0))
            ),
        ),
        (
            "light",
            Wrong(
                divide=changed_shares(
                    lambda s: replace(s, eps_bytes=0.0, forwarded=(("s0", s.eps_bytes),))
                )
            ),
        ),
        ("bound", Wrong(divide=lambda *_: Split(()))),
        ("determinism", Wrong(choose=alternating())),
        ("determinism", Wrong(divide=alternating_split())),
        (
            "static",
            Wrong(
                reconfigures=False,
                choose=lambda _fabric, demand, lit: (
                    join("s0/o0", "s1/o0")
                    if not lit or demand.array[0].sum() > demand.array[1].sum()
                    else CircuitSet()
                ),
            ),
        ),
    ],
)
def test_law_is_broken_by_what_it_forbids(law: str, policy: Policy) -> None:
    laws = broken_laws(policy)
    assert law in laws
    assert laws <= {law, "light", "bound", "out of service", "bytes"}, "other laws are broken, too"


@pytest.mark.parametrize("fault", [ValueError("no idea"), KeyError("s9")])
def test_exception_breaks_a_law_and_is_named(fault: Exception) -> None:
    def choose(*_: object) -> CircuitSet:
        raise fault

    situation = next(situations(3))
    ((law, why),) = broken(Wrong(choose=choose), situation)
    assert law is LAWS[0]
    assert why == f"{type(fault).__name__}: {fault}"


def test_wrong_types_are_named() -> None:
    def pairs(*_: object) -> CircuitSet:
        return [("s0", "s1")]  # type: ignore[return-value]

    assert (
        "circuits() returned list, not a CircuitSet"
        in check_policy(Wrong(choose=pairs)).laws[0].first
    )


def test_advice_breaks_nothing() -> None:
    report = check_policy(POLICIES["mixnet"], servers=[8], timed_servers=[2])
    assert report.keeps_all_laws
    assert {law.law.name: law.outcome for law in report.laws}["EPS"] == "warning"
    assert list(report.seconds) == [2]


def test_check_tries_servers_that_forward_only_with_policies_that_forward() -> None:
    forwarding = {name for name, policy in POLICIES.items() if policy.forwards}
    assert forwarding == {"multihop", "mixnet-multihop", "joint-multihop"}
    assert not any(one.fabric.forwarding for one in situations(4))
    assert any(one.fabric.forwarding for one in situations(4, forwarding=True))


def test_situations_repeat_and_have_everything() -> None:
    first, second = (list(map(str, situations(5))) for _ in range(2))
    assert first == second
    every = list(situations(5))
    assert any(one.lit for one in every)
    assert any(one.fabric.unusable_nics for one in every)
    assert not any(one.lit.nics & one.fabric.unusable_nics for one in every)
    assert isinstance(every[0], Situation)


def test_faults_of_a_plan_are_those_that_cannot_be_carried_out() -> None:
    situation = next(one for one in situations(4) if one.kind == "uniform")
    fabric, region = situation.fabric, situation.region
    plan = Plan(fabric, region, situation.demand, EpsOnly(), CircuitSet())
    assert list(plan_faults(plan)) == []
    strange = Plan(fabric, region, situation.demand, EpsOnly(), join("s0/o0", "s8/o0"))
    assert list(plan_faults(strange)) == ["s8/o0: not an optical NIC of r0"]
