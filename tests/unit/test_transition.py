"""A change of light is safe at every step: no rule ever points at a dark circuit."""

from hypothesis import given
from hypothesis import strategies as st

from moefabric.circuits import CircuitSet
from moefabric.rules import Rule, RuleChange, light_rules
from moefabric.transition import Admit, Divert, Switch, Verify, steps
from tests.fabrics import circuit_sets, fabrics

A, B, C = "s0/o0~s1/o0", "s0/o1~s1/o1", "s0/o0~s2/o0"


@st.composite
def changes(draw: st.DrawFn) -> tuple[CircuitSet, CircuitSet]:
    """Two lights of one fabric, of which the second keeps some of the first."""
    wired = draw(fabrics())
    before, other = draw(circuit_sets(wired)), draw(circuit_sets(wired))
    kept = {circuit for circuit in before if draw(st.booleans())}
    taken = {nic for circuit in kept for nic in (circuit.a, circuit.b)}
    return before, CircuitSet(frozenset(kept | {c for c in other if not {c.a, c.b} & taken}))


def test_a_change_diverts_then_switches_then_verifies_then_admits() -> None:
    now, target = CircuitSet.of([A]), CircuitSet.of([C])
    assert steps(now, target) == (
        Divert(RuleChange(delete=light_rules(now), add=frozenset())),
        Switch(now, target),
        Verify(target),
        Admit(RuleChange(delete=frozenset(), add=light_rules(target))),
    )


def test_no_change_is_no_step() -> None:
    assert steps(CircuitSet.of([A, B]), CircuitSet.of([B, A])) == ()


def test_unmarked_packets_move_to_a_pairs_other_circuit_before_theirs_goes_dark() -> None:
    divert, *_ = steps(CircuitSet.of([A, B]), CircuitSet.of([B]))
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
    for step in steps(now, target):
        told.append(type(step))
        match step:
            case Divert(rules) | Admit(rules):
                for rule in rules.delete:
                    del held[rule.match]
                held |= {rule.match: rule for rule in rules.add}
            case Switch(before, after):
                settling = before.towards(after).kept
                assert before == lit
                assert {rule.out for rule in held.values()} <= lit_ports(settling)
                lit = after
            case Verify(expected):
                assert expected == lit
        assert {rule.out for rule in held.values()} <= lit_ports(lit)
    assert set(held.values()) == light_rules(target)
    assert lit == target
    assert told in ([], [Divert, Switch, Verify, Admit])
