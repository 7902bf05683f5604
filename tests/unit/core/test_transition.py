"""A reconfiguration is safe at every step: no rule ever points at a dark circuit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.circuits import CircuitSet, Transition
from moefabric.core.ocs import CrossConnectMode
from moefabric.core.rules import Rule, RuleChange, direct_rules
from moefabric.core.transition import (
    Admission,
    ReconfigurationPlan,
    admission,
    reconfiguration_plan,
)
from tests.support.fabrics import circuit_sets, fabrics

A, B, C, D = "s0/o0~s1/o0", "s0/o1~s1/o1", "s0/o0~s2/o0", "s2/o1~s3/o1"
NOTHING = CircuitSet()


@st.composite
def changes(draw: st.DrawFn) -> tuple[CircuitSet, CircuitSet]:
    """Two lights of one fabric, of which the second keeps some of the first."""
    wired = draw(fabrics())
    before, other = draw(circuit_sets(wired)), draw(circuit_sets(wired))
    common = {circuit for circuit in before if draw(st.booleans())}
    taken = {nic for circuit in common for nic in (circuit.a, circuit.b)}
    return before, CircuitSet(frozenset(common | {c for c in other if not {c.a, c.b} & taken}))


def planned(
    carrying: CircuitSet,
    reported: CircuitSet,
    target: CircuitSet,
    mode: CrossConnectMode = CrossConnectMode.SAFE,
) -> ReconfigurationPlan:
    """The plan of a change that has steps."""
    plan = reconfiguration_plan(carrying, reported, target, mode)
    assert plan is not None
    return plan


def test_reconfiguration_diverts_then_commands_then_verifies_then_admits() -> None:
    now, target = CircuitSet.of([A]), CircuitSet.of([C])
    plan = planned(now, now, target)
    assert plan == ReconfigurationPlan(
        target,
        divert=(RuleChange(delete=direct_rules(now), add=frozenset()),),
        command=now.transition_to(target),
        added=target,
    )
    assert admission(plan, target) == Admission(
        Transition(teardown=NOTHING, kept=target, setup=NOTHING),
        (RuleChange(delete=frozenset(), add=direct_rules(target)),),
        target,
    )


def test_circuit_without_light_is_removed_before_admission() -> None:
    now, target, lit = CircuitSet.of([A]), CircuitSet.of([A, D]), CircuitSet.of([A])
    assert admission(planned(now, now, target), NOTHING) == Admission(
        Transition(teardown=CircuitSet.of([D]), kept=lit, setup=NOTHING),
        (RuleChange(frozenset(), frozenset()),),
        lit,
    )


def test_no_change_needs_no_step() -> None:
    both = CircuitSet.of([A, B])
    assert reconfiguration_plan(both, both, CircuitSet.of([B, A])) is None


def test_circuit_lost_meanwhile_is_set_up_again_without_traffic() -> None:
    both, reported = CircuitSet.of([A, D]), CircuitSet.of([D])
    assert planned(both, reported, both) == ReconfigurationPlan(
        both,
        divert=(RuleChange(delete=direct_rules(CircuitSet.of([A])), add=frozenset()),),
        command=Transition(teardown=NOTHING, kept=reported, setup=CircuitSet.of([A])),
        added=CircuitSet.of([A]),
    )


@pytest.mark.parametrize(
    ("mode", "gone"),
    [
        pytest.param(CrossConnectMode.SAFE, [], id="stays-where-one-is-to-be-safe"),
        pytest.param(CrossConnectMode.UPDATE, [], id="stays-where-one-updates"),
        pytest.param(CrossConnectMode.OVERWRITE, [D], id="goes-where-one-overwrites"),
    ],
)
def test_circuits_of_others_follow_the_mode(mode: CrossConnectMode, gone: list[str]) -> None:
    ours, reported = CircuitSet.of([A]), CircuitSet.of([A, D])
    plan = reconfiguration_plan(ours, reported, ours, mode)
    assert (plan.command if plan else None) == (
        Transition(CircuitSet.of(gone), ours, NOTHING) if gone else None
    )


def test_lit_circuit_without_traffic_is_verified_without_a_command() -> None:
    reported = CircuitSet.of([A])
    plan = planned(NOTHING, reported, reported)
    assert plan.command.is_empty
    assert (plan.target, plan.added) == (reported, reported)


def test_unmarked_packets_move_to_the_pairs_other_circuit_before_theirs_goes_dark() -> None:
    plan = planned(CircuitSet.of([A, B]), CircuitSet.of([A, B]), CircuitSet.of([B]))
    [change] = plan.divert
    assert change.add == {
        Rule("s0", "s1", "s0/o1", None, light=True),
        Rule("s1", "s0", "s1/o1", None, light=True),
    }
    assert change.delete == {
        Rule("s0", "s1", "s0/o0", "o0", light=True),
        Rule("s1", "s0", "s1/o0", "o0", light=True),
    }


def lit_ports(light: CircuitSet) -> set[str]:
    """The NICs that end a circuit: where a light rule may point."""
    return {str(nic) for circuit in light for nic in (circuit.a, circuit.b)}


@given(changes())
def test_no_light_rule_ever_points_at_a_dark_circuit(change: tuple[CircuitSet, CircuitSet]) -> None:
    now, target = change
    held = {rule.match: rule for rule in direct_rules(now)}

    def apply(changes: tuple[RuleChange, ...], lit: CircuitSet) -> None:
        [rules] = changes
        for rule in rules.delete:
            del held[rule.match]
        held.update({rule.match: rule for rule in rules.add})
        assert {rule.out for rule in held.values()} <= lit_ports(lit)

    plan = reconfiguration_plan(now, now, target)
    if plan is None:
        assert now == target
        return
    apply(plan.divert, now)
    moved = plan.command
    assert moved.teardown.circuits | moved.kept.circuits == now.circuits
    assert {rule.out for rule in held.values()} <= lit_ports(moved.kept)
    lit = CircuitSet(moved.kept.circuits | moved.setup.circuits)
    assert {rule.out for rule in held.values()} <= lit_ports(lit)
    assert plan.target == lit == target
    outcome = admission(plan, plan.added)
    assert outcome.removal.is_empty
    apply(outcome.changes, lit)
    assert outcome.carrying == target
    assert set(held.values()) == direct_rules(target)
