"""A reconfiguration is safe at every step: no rule ever points at a dark circuit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.circuits import CircuitSet, Transition
from moefabric.core.ocs import CrossConnectMode
from moefabric.core.rules import Rule, RuleChange, direct_rules
from moefabric.core.transition import (
    AdmitStep,
    CommandStep,
    DivertStep,
    ReconfigurationStep,
    VerifyStep,
    admission_steps,
    reconfiguration_steps,
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


def everything(
    carrying: CircuitSet, reported: CircuitSet, target: CircuitSet, dark: CircuitSet = NOTHING
) -> list[ReconfigurationStep]:
    """A whole change, in which all but `dark` proves to have light."""
    steps = list(reconfiguration_steps(carrying, reported, target))
    if steps and isinstance(steps[-1], VerifyStep):
        steps += admission_steps(steps[-1], CircuitSet(steps[-1].added.circuits - dark.circuits))
    return steps


def test_reconfiguration_diverts_then_commands_then_verifies_then_admits() -> None:
    now, target = CircuitSet.of([A]), CircuitSet.of([C])
    assert everything(now, now, target) == [
        DivertStep((RuleChange(delete=direct_rules(now), add=frozenset()),)),
        CommandStep(now.transition_to(target)),
        VerifyStep(target, removed=now, added=target),
        AdmitStep((RuleChange(delete=frozenset(), add=direct_rules(target)),), target),
    ]


def test_circuit_without_light_is_removed_before_admission() -> None:
    now, target, lit = CircuitSet.of([A]), CircuitSet.of([A, D]), CircuitSet.of([A])
    *_, out, admit = everything(now, now, target, dark=CircuitSet.of([D]))
    assert out == CommandStep(Transition(teardown=CircuitSet.of([D]), kept=lit, setup=NOTHING))
    assert admit == AdmitStep((RuleChange(frozenset(), frozenset()),), lit)


def test_no_change_needs_no_step() -> None:
    both = CircuitSet.of([A, B])
    assert reconfiguration_steps(both, both, CircuitSet.of([B, A])) == ()


def test_circuit_lost_meanwhile_is_set_up_again_without_traffic() -> None:
    both, reported = CircuitSet.of([A, D]), CircuitSet.of([D])
    divert, switch, verify = reconfiguration_steps(both, reported, both)
    assert divert == DivertStep(
        (RuleChange(delete=direct_rules(CircuitSet.of([A])), add=frozenset()),)
    )
    assert switch == CommandStep(
        Transition(teardown=NOTHING, kept=reported, setup=CircuitSet.of([A]))
    )
    assert verify == VerifyStep(both, removed=NOTHING, added=CircuitSet.of([A]))


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
    sequence = [
        step
        for step in reconfiguration_steps(ours, reported, ours, mode)
        if isinstance(step, CommandStep)
    ]
    assert sequence == (
        [CommandStep(Transition(CircuitSet.of(gone), ours, NOTHING))] if gone else []
    )


def test_lit_circuit_without_traffic_is_verified_without_a_command() -> None:
    reported = CircuitSet.of([A])
    divert, verify = reconfiguration_steps(NOTHING, reported, reported)
    assert isinstance(divert, DivertStep)
    assert verify == VerifyStep(reported, removed=NOTHING, added=reported)


def test_unmarked_packets_move_to_the_pairs_other_circuit_before_theirs_goes_dark() -> None:
    divert, *_ = reconfiguration_steps(
        CircuitSet.of([A, B]), CircuitSet.of([A, B]), CircuitSet.of([B])
    )
    assert isinstance(divert, DivertStep)
    [change] = divert.changes
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
    lit, sequence = now, []
    for step in everything(now, now, target):
        sequence.append(type(step))
        match step:
            case DivertStep((rules,)) | AdmitStep((rules,), _):
                for rule in rules.delete:
                    del held[rule.match]
                held |= {rule.match: rule for rule in rules.add}
            case CommandStep(moved):
                assert moved.teardown.circuits | moved.kept.circuits == lit.circuits
                assert {rule.out for rule in held.values()} <= lit_ports(moved.kept)
                lit = CircuitSet(moved.kept.circuits | moved.setup.circuits)
            case VerifyStep(expected, _, _):
                assert expected == lit
        assert {rule.out for rule in held.values()} <= lit_ports(lit)
    assert set(held.values()) == direct_rules(target)
    assert lit == target
    assert sequence in ([], [DivertStep, CommandStep, VerifyStep, AdmitStep])
