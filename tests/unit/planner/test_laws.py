"""Each law is broken by a policy that does what the law forbids, and by no other law's policy."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from typing import Any

import numpy as np
import pytest

from moefabric.api.policy_check import check_policy
from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps
from moefabric.core.flows import Share, Split
from moefabric.core.nic import Nic
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region
from moefabric.planner.laws import LAWS, Situation, byte_faults, region_fabric, situations
from moefabric.planner.pair_order import PairOrderPolicy
from moefabric.planner.policy import Policy, PolicyTraits
from moefabric.planner.waterfill import circuit_first_split
from tests.support.policies import POLICIES, broken

Choose = Callable[[Fabric, DemandMatrix, CircuitSet], CircuitSet]
Divide = Callable[[DemandMatrix, CircuitSet], Split]


def join(a: str, b: str) -> CircuitSet:
    return CircuitSet.of([f"{a}~{b}"])


JOINED = join("s0/o0", "s1/o0")
ANY = region_fabric(4, 1, 1)


def joined(*_: object) -> CircuitSet:
    return JOINED


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
    none = CircuitSet()
    return lambda demand, lit: circuit_first_split(demand, lit if next(calls) % 2 else none)


def remembering() -> Choose:
    """Return a choice that joins servers once it has seen another demand of the same sum."""
    seen: dict[float, set[bytes]] = {}

    def choose(_fabric: Fabric, demand: DemandMatrix, _lit: CircuitSet) -> CircuitSet:
        known = seen.setdefault(round(float(demand.array.sum()), 3), set())
        known.add(demand.array.tobytes())
        return JOINED if len(known) > 1 else CircuitSet()

    return choose


def remembering_split() -> Divide:
    choose = remembering()
    return lambda demand, lit: circuit_first_split(
        demand, lit if choose(ANY, demand, lit) else CircuitSet()
    )


def twice_at_a_nic(*_: object) -> CircuitSet:
    ends = Nic.parse("s0/o0"), Nic.parse("s1/o0"), Nic.parse("s2/o0")
    return CircuitSet(frozenset({Circuit(ends[0], ends[1]), Circuit(ends[0], ends[2])}))


TWICE = (
    "CircuitConflictError: more than one circuit would end at s0/o0, "
    f"{__file__}:{twice_at_a_nic.__code__.co_firstlineno + 2}"
)


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
        ("determinism", Wrong(choose=joined, divide=alternating_split())),
        ("future", Wrong(choose=remembering())),
        ("future", Wrong(choose=joined, divide=remembering_split())),
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
    also = {"future"} if law == "determinism" else set()
    assert laws <= {law, "light", "bound", "out of service", "bytes", *also}, (
        "others are broken, too"
    )


@pytest.mark.parametrize("fault", [ValueError("no idea"), KeyError("s9")])
def test_exception_breaks_a_law_and_is_named(fault: Exception) -> None:
    def choose(*_: object) -> CircuitSet:
        raise fault

    situation = next(situations(3))
    ((law, why),) = broken(Wrong(choose=choose), situation)
    assert law is LAWS[0]
    line = choose.__code__.co_firstlineno + 1
    assert why == f"{type(fault).__name__}: {fault}, {__file__}:{line}"


def test_laws_after_an_exception_are_not_tried() -> None:
    def choose(_fabric: Fabric, demand: DemandMatrix, _lit: CircuitSet) -> CircuitSet:
        return CircuitSet() if len(demand.servers) > 2 else 1 / 0  # type: ignore[return-value]

    report = check_policy(Wrong(choose=choose), servers=[2])
    assert [law.outcome for law in report.laws] == ["broken", *["not tried"] * (len(LAWS) - 1)]
    assert "not tried bytes" in str(report)
    assert str(report).count("ZeroDivisionError: division by zero") == 1

    assert "not tried matching" in str(report)

    partly = check_policy(Wrong(choose=choose), servers=[2, 4])
    bytes_law = next(law for law in partly.laws if law.law == "bytes")
    half = partly.situations // 2
    assert (bytes_law.outcome, bytes_law.tried) == ("kept", half)
    assert f"tried in {half} of them" in str(partly)


def test_exception_at_a_size_that_is_only_timed_is_named() -> None:
    def choose(_fabric: Fabric, demand: DemandMatrix, _lit: CircuitSet) -> CircuitSet:
        return CircuitSet() if len(demand.servers) < 8 else 1 / 0  # type: ignore[return-value]

    report = check_policy(Wrong(choose=choose), servers=[4], timed_servers=[4, 8])
    calls, *others = report.laws
    assert not report.keeps_all_laws
    assert (calls.law, calls.outcome) == ("calls", "broken")
    assert f"{__file__}:{choose.__code__.co_firstlineno + 1} (8 servers of" in calls.first
    assert "1 time; first: ZeroDivisionError" in str(report)
    assert {law.outcome for law in others} <= {"kept", "warning"}


@pytest.mark.parametrize("pair", [(0, 0), (0, -1), (0, 4), (0, 1, 2), (0, 1.5), "01", None])
def test_pair_that_is_no_two_servers_breaks_the_law_of_calls(pair: Any) -> None:
    def order(_demand: object, _ports: object) -> list[Any]:
        return [(0, 1), pair]

    situation = next(situations(4))
    ((law, why),) = broken(PairOrderPolicy("pairs", order), situation)
    assert law.name == "calls"
    what = f"order returned the pair {pair!r}; a pair is two different positions from 0 to 3"
    assert why == f"ValueError: {what}, {__file__}:{order.__code__.co_firstlineno}"


def test_order_may_name_servers_of_a_pair_in_either_order_and_pairs_twice() -> None:
    pairs: list[Any] = [(1, 0), (np.int64(0), 1)]
    policy = PairOrderPolicy("pairs", lambda _demand, _ports: pairs)
    fabric = region_fabric(2, 3, 1)
    chosen = policy.circuits(fabric, fabric.regions[0], MESSAGE, CircuitSet())
    assert len(chosen.between("s0", "s1")) == len(chosen) == 2


def test_report_of_a_check_fits_80_columns() -> None:
    report = check_policy(POLICIES["mixnet"], servers=[4, 8], timed_servers=[2, 4, 8, 16, 32])
    assert max(map(len, report.lines())) > 60
    assert all(len(row) <= 80 for line in report.lines() for row in line.splitlines())


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
    assert {law.law: law.outcome for law in report.laws}["EPS"] == "warning"
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


MESSAGE = DemandMatrix(("s0", "s1"), [[0.0, 1e8], [0.0, 0.0]])
NIC_S = 1e8 * 8 / (100e9 * 1448 / 1514)
"""Seconds that a NIC takes for the message."""


def constant(*shares: Share) -> Divide:
    return lambda *_: Split(shares)


def dark_if_lit(_fabric: Fabric, _demand: DemandMatrix, lit: CircuitSet) -> CircuitSet:
    return CircuitSet() if lit else JOINED


def joined_if_first_sends(_fabric: Fabric, demand: DemandMatrix, _lit: CircuitSet) -> CircuitSet:
    return JOINED if demand.array[0].any() else CircuitSet()


@pytest.mark.parametrize(
    ("law", "policy", "text"),
    [
        ("matching", Wrong(choose=twice_at_a_nic), TWICE),
        (
            "ports",
            Wrong(choose=lambda *_: join("s9/o0", "s8/o0")),
            "s8/o0, s9/o0: not an optical NIC of r0",
        ),
        ("bytes", Wrong(divide=constant()), "s0 to s1: 0 shares of 100,000,000 bytes owed"),
        (
            "bytes",
            Wrong(divide=constant(*[Share("s0", "s1", 0.0, 5e7)] * 2)),
            "s0 to s1: 2 shares of 100,000,000 bytes owed",
        ),
        (
            "bytes",
            Wrong(divide=constant(Share("s0", "s1", 0.0, 1e8), Share("s1", "s0", 0.0, 1.0))),
            "s1 to s0: 1 shares of 0 bytes owed",
        ),
        (
            "bytes",
            Wrong(divide=constant(Share("s0", "s1", 0.0, 5e7))),
            "s0 to s1: 50,000,000 bytes sent, 100,000,000 owed",
        ),
        (
            "bytes",
            Wrong(divide=constant(Share("s0", "s1", -1000.0, 1e8 + 1000))),
            "s0 to s1: a part of -1,000 bytes",
        ),
        (
            "bytes",
            Wrong(divide=constant(Share("s0", "s1", 0.0, 1e8, forwarded=(("s1", inf),)))),
            "s0 to s1: a part of inf bytes",
        ),
        (
            "bytes",
            Wrong(
                divide=constant(
                    Share(
                        "s0", "s1", 0.0, 0.0, forwarded=(("s1", 1e8),), forwarded_by_lane=((5e7,),)
                    )
                )
            ),
            "s0 to s1: 50,000,000 bytes by lanes, 100,000,000 by trees",
        ),
        (
            "light",
            Wrong(divide=constant(Share("s0", "s1", 1e8, 0.0))),
            "s0 to s1: 100,000,000 bytes by light, but no circuit joins them",
        ),
        (
            "light",
            Wrong(divide=constant(Share("s0", "s1", 0.0, 0.0, forwarded=(("s1", 1e8),)))),
            "s0 to s1: other servers forward bytes, but servers don't forward here",
        ),
        (
            "bound",
            Wrong(divide=constant()),
            f"predicted to end in 0 s, {NIC_S / 3:g} s are needed at least",
        ),
        (
            "bound",
            Wrong(divide=constant(Share("s0", "s1", 0.0, 5e7))),
            f"predicted to end in {NIC_S / 4:g} s, {NIC_S / 3:g} s are needed at least",
        ),
        ("determinism", Wrong(choose=alternating()), "an equal demand gives other circuits"),
        (
            "determinism",
            Wrong(choose=joined, divide=alternating_split()),
            "an equal demand over equal circuits gives another split",
        ),
        (
            "static",
            Wrong(choose=joined_if_first_sends, reconfigures=False),
            "reconfigures is False, but another demand moves circuits",
        ),
        (
            "at rest",
            Wrong(choose=dark_if_lit),
            "circuits move although they were chosen for the same demand",
        ),
        ("EPS", Wrong(choose=joined), f"predicted {NIC_S:g} s, without circuits {NIC_S / 2:g} s"),
    ],
)
def test_breach_names_the_place_and_what_is_wrong(law: str, policy: Policy, text: str) -> None:
    """One message between two servers with one optical and two electrical NICs each."""
    situation = Situation(region_fabric(2, 1, 2), MESSAGE, CircuitSet())
    assert [why for each, why in broken(policy, situation) if each.name == law] == [text]


def test_circuits_at_nics_out_of_service_are_named() -> None:
    fabric = region_fabric(2, 1, 2).without_nics(JOINED.nics)
    breaches = broken(Wrong(choose=joined), Situation(fabric, MESSAGE, CircuitSet()))
    assert ("out of service", "s0/o0, s1/o0: out of service, but a circuit ends there") in [
        (law.name, why) for law, why in breaches
    ]


def test_circuits_without_an_eps_need_not_beat_it() -> None:
    fabric = replace(region_fabric(2, 1, 0), eps=None)
    assert list(broken(Wrong(choose=joined), Situation(fabric, MESSAGE, CircuitSet()))) == []


def test_circuits_as_fast_as_the_eps_break_nothing() -> None:
    situation = Situation(region_fabric(2, 1, 1), MESSAGE, CircuitSet())
    assert list(broken(Wrong(choose=joined), situation)) == []


def test_pair_with_two_shares_is_named() -> None:
    both = DemandMatrix(MESSAGE.servers, [[0.0, 1e8], [1e8, 0.0]])
    there, back = Share("s0", "s1", 0.0, 1e8), Share("s1", "s0", 0.0, 5e7)
    assert list(byte_faults(both, Split((there, back, back)))) == [
        "s1 to s0: 2 shares of 100,000,000 bytes owed"
    ]


def test_situation_is_described_in_a_line() -> None:
    situation = Situation(region_fabric(2, 3, 1), MESSAGE, CircuitSet(), "one message")
    nics = "2 servers of 3 optical and 1 electrical NICs"
    assert str(situation) == f"{nics}, demand one message"
    dark = replace(situation, fabric=situation.fabric.without_nics([Nic.parse("s0/o1")]))
    assert str(dark) == f"{nics} (1 out), demand one message"


def test_situations_cover_every_number_of_nics_and_kind_of_demand() -> None:
    every = list(situations(8))
    assert {one.fabric.optical for one in every} == {1, 2, 3, 4}
    assert {one.fabric.electrical for one in every} == {1, 2, 3}
    assert {len(one.fabric.unusable_nics) for one in every} == {0, 1, 2}
    assert all(one.fabric.eps == Eps(4, 1, 2.0) for one in every)
    assert all(one.region.ocs == Ocs("ocs0", 8 * one.fabric.optical) for one in every)
    forwarding = [one.fabric.forwarding for one in situations(8, forwarding=True)]
    assert forwarding == [False, True] * 4
    demands = {one.kind: one.demand.array / 1e8 for one in every}
    assert len(demands) == len(every) == 8
    assert not demands["none"].any()
    assert (demands["uniform"] == 1).all()
    assert demands["one with all"].tolist() == [[1.0] * 8] + [[1.0] + [0.0] * 7] * 7
    assert sorted(demands["permutation"].nonzero()[1]) == list(range(8))
    assert demands["permutation"].max(axis=1).tolist() == [8.0] * 8
    assert 0 < np.count_nonzero(demands["sparse"]) < 32
    assert sorted(set(demands["alike but one"].flat)) == pytest.approx([1, 1.0001], rel=1e-9)
    assert (demands["alike but one"] != 1).sum() == 7
    assert demands["hot servers"].sum(axis=1) == pytest.approx([8.0] * 8)
    assert demands["hot servers"].max() > 4 > demands["hot servers"].mean() == pytest.approx(1)
    assert 0.4 < np.median(demands["skewed"]) < 0.1 * demands["skewed"].max()


def test_lit_circuits_join_neighbours_by_their_first_nics() -> None:
    lit = {str(one.lit) for one in situations(5) if not one.fabric.unusable_nics}
    assert lit == {"no light"}
    assert "s0/o0~s1/o0 s2/o0~s3/o0" in {str(one.lit) for one in situations(5)}
