"""The safe order of a change of light, as data: divert, switch, verify, admit."""

from dataclasses import dataclass

from moefabric.circuits import CircuitSet
from moefabric.rules import RuleChange, light_rules


@dataclass(frozen=True)
class Divert:
    """Take the traffic off circuits that go dark: their pairs are on the EPS until admitted again."""

    change: RuleChange


@dataclass(frozen=True)
class Switch:
    """Move the light: from `now` to `target`. What is in both stays lit."""

    now: CircuitSet
    target: CircuitSet


@dataclass(frozen=True)
class Verify:
    """See that the OCS shows `target`, before any traffic relies on it."""

    target: CircuitSet


@dataclass(frozen=True)
class Admit:
    """Let traffic onto the new circuits."""

    change: RuleChange


Step = Divert | Switch | Verify | Admit


def steps(now: CircuitSet, target: CircuitSet) -> tuple[Step, ...]:
    """How `target` comes of `now` without a packet on a dark circuit. Nothing to do is no step."""
    transition = now.towards(target)
    if transition.empty:
        return ()
    before, between, after = light_rules(now), light_rules(transition.kept), light_rules(target)
    return (
        Divert(RuleChange.between(before, between)),
        Switch(now, target),
        Verify(target),
        Admit(RuleChange.between(between, after)),
    )
