"""A change of light is safe at every step: no rule ever points at a dark circuit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.circuits import CircuitSet, Transition
from moefabric.ocs_control import Mode
from moefabric.rules import Rule, RuleChange, light_rules
from moefabric.transition import Admit, Divert, Step, Switch, Verify, conclusion, steps
from tests.fabrics import circuit_sets, fabrics

A, B, C, D = "s0/o0~s1/o0", "s0/o1~s1/o1", "s0/o0~s2/o0", "s2/o1~s3/o1"
NOTHING = CircuitSet()


@st.composite
def changes(draw: st.DrawFn) -> tuple[CircuitSet, CircuitSet]:
    """Two lights of one fabric, of which the second keeps some of the first."""
    wired = draw(fabrics())
    before, other = draw(circuit_sets(wired)), draw(circuit_sets(wired))
    kept = {circuit for circuit in before if draw(st.booleans())}
    taken = {nic for circuit in kept for nic in (circuit.a, circuit.b)}
    return before, CircuitSet(frozenset(kept | {c for c in other if not {c.a, c.b} & taken}))


def everything(
    relied_on: CircuitSet, seen: CircuitSet, target: CircuitSet, dark: CircuitSet = NOTHING
) -> list[Step]:
    """A whole change, in which all but `dark` proves to have light."""
    made = list(steps(relied_on, seen, target))
    if made and isinstance(made[-1], Verify):
        made += conclusion(made[-1], CircuitSet(made[-1].fresh.circuits - dark.circuits))
    return made


def test_a_change_diverts_then_switches_then_verifies_then_admits() -> None:
    now, target = CircuitSet.of([A]), CircuitSet.of([C])
    assert everything(now, now, target) == [
        Divert(RuleChange(delete=light_rules(now), add=frozenset())),
        Switch(now.towards(target)),
        Verify(target, gone=now, fresh=target),
        Admit(RuleChange(delete=frozenset(), add=light_rules(target)), target),
    ]


def test_a_circuit_that_carries_nothing_is_taken_out_before_traffic_comes() -> None:
    now, target, kept = CircuitSet.of([A]), CircuitSet.of([A, D]), CircuitSet.of([A])
    *_, out, admit = everything(now, now, target, dark=CircuitSet.of([D]))
    assert out == Switch(Transition(teardown=CircuitSet.of([D]), kept=kept, setup=NOTHING))
    assert admit == Admit(RuleChange(frozenset(), frozenset()), kept)


def test_no_change_is_no_step() -> None:
    both = CircuitSet.of([A, B])
    assert steps(both, both, CircuitSet.of([B, A])) == ()


def test_light_that_was_lost_behind_ones_back_is_made_again_and_has_no_traffic_meanwhile() -> None:
    both, seen = CircuitSet.of([A, D]), CircuitSet.of([D])
    divert, switch, verify = steps(both, seen, both)
    assert divert == Divert(RuleChange(delete=light_rules(CircuitSet.of([A])), add=frozenset()))
    assert switch == Switch(Transition(teardown=NOTHING, kept=seen, setup=CircuitSet.of([A])))
    assert verify == Verify(both, gone=NOTHING, fresh=CircuitSet.of([A]))


@pytest.mark.parametrize(
    ("mode", "gone"),
    [
        pytest.param(Mode.SAFE, [], id="stays-where-one-is-to-be-safe"),
        pytest.param(Mode.UPDATE, [], id="stays-where-one-updates"),
        pytest.param(Mode.OVERWRITE, [D], id="goes-where-one-overwrites"),
    ],
)
def test_light_that_another_made(mode: Mode, gone: list[str]) -> None:
    ours, seen = CircuitSet.of([A]), CircuitSet.of([A, D])
    told = [step for step in steps(ours, seen, ours, mode) if isinstance(step, Switch)]
    assert told == ([Switch(Transition(CircuitSet.of(gone), ours, NOTHING))] if gone else [])


def test_light_that_is_there_and_was_not_relied_on_is_proven_without_moving_it() -> None:
    seen = CircuitSet.of([A])
    divert, verify = steps(NOTHING, seen, seen)
    assert isinstance(divert, Divert)
    assert verify == Verify(seen, gone=NOTHING, fresh=seen)


def test_unmarked_packets_move_to_a_pairs_other_circuit_before_theirs_goes_dark() -> None:
    divert, *_ = steps(CircuitSet.of([A, B]), CircuitSet.of([A, B]), CircuitSet.of([B]))
    assert isinstance(divert, Divert)
    assert divert.change.add == {
        Rule("s0", "s1", "s0/o1", None, light=True),
        Rule("s1", "s0", "s1/o1", None, light=True),
    }
    assert divert.change.delete == {
        Rule("s0", "s1", "s0/o0", "o0", light=True),
        Rule("s1", "s0", "s1/o0", "o0", light=True),
    }


def lit_ports(light: CircuitSet) -> set[str]:
    """The NICs that end a circuit: where a light rule may point."""
    return {str(nic) for circuit in light for nic in (circuit.a, circuit.b)}


@given(changes())
def test_no_light_rule_ever_points_at_a_dark_circuit(change: tuple[CircuitSet, CircuitSet]) -> None:
    now, target = change
    held = {rule.match: rule for rule in light_rules(now)}
    lit, told = now, []
    for step in everything(now, now, target):
        told.append(type(step))
        match step:
            case Divert(rules) | Admit(rules, _):
                for rule in rules.delete:
                    del held[rule.match]
                held |= {rule.match: rule for rule in rules.add}
            case Switch(moved):
                assert moved.teardown.circuits | moved.kept.circuits == lit.circuits
                assert {rule.out for rule in held.values()} <= lit_ports(moved.kept)
                lit = CircuitSet(moved.kept.circuits | moved.setup.circuits)
            case Verify(expected, _, _):
                assert expected == lit
        assert {rule.out for rule in held.values()} <= lit_ports(lit)
    assert set(held.values()) == light_rules(target)
    assert lit == target
    assert told in ([], [Divert, Switch, Verify, Admit])
