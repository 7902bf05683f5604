"""The safe order of a change of light, as data: divert, switch, verify; and then, of what has light, admit."""

from collections.abc import Callable
from dataclasses import dataclass

from moefabric.circuits import CircuitSet, Transition
from moefabric.ocs_control import Mode
from moefabric.rules import Rule, RuleChange, light_rules

LitRules = Callable[[CircuitSet], frozenset[Rule]]
"""The rules that put traffic on circuits."""


@dataclass(frozen=True)
class Divert:
    """Take the traffic off circuits that go dark, or have: their pairs are on the EPS until admitted again."""

    change: RuleChange


@dataclass(frozen=True)
class Switch:
    """Move the light."""

    change: Transition


@dataclass(frozen=True)
class Verify:
    """See that the OCS shows `target` and nothing of `gone`, and that there is light in what is `fresh`, before any traffic relies on it."""

    target: CircuitSet
    gone: CircuitSet
    fresh: CircuitSet


@dataclass(frozen=True)
class Admit:
    """Let traffic onto the new circuits."""

    change: RuleChange
    relied_on: CircuitSet
    """All that has traffic then."""


Step = Divert | Switch | Verify | Admit


def steps(
    relied_on: CircuitSet,
    seen: CircuitSet,
    target: CircuitSet,
    mode: Mode = Mode.SAFE,
    rules: LitRules = light_rules,
) -> tuple[Step, ...]:
    """How one comes to `target` from traffic on `relied_on`, where the OCS shows `seen`, without a packet on a dark circuit: up to the proof of light.

    Nothing to do is no step. What is lit besides and wasn't relied on stays, unless the mode is to overwrite it.
    """
    kept = CircuitSet(relied_on.circuits & seen.circuits & target.circuits)
    leaving = seen.circuits - target.circuits
    gone = CircuitSet(leaving if mode is Mode.OVERWRITE else leaving & relied_on.circuits)
    if not gone.circuits and relied_on == kept == target:
        return ()
    change = Transition(
        teardown=gone,
        kept=CircuitSet(seen.circuits & target.circuits),
        setup=CircuitSet(target.circuits - seen.circuits),
    )
    return (
        Divert(RuleChange.between(rules(relied_on), rules(kept))),
        *(() if change.empty else (Switch(change),)),
        Verify(target, gone, CircuitSet(target.circuits - kept.circuits)),
    )


def conclusion(verified: Verify, carrying: CircuitSet, rules: LitRules = light_rules) -> tuple[Step, ...]:
    """What follows on the proof: circuits that carry nothing are taken out again, traffic comes onto the others."""
    kept = CircuitSet(verified.target.circuits - verified.fresh.circuits)
    dark = CircuitSet(verified.fresh.circuits - carrying.circuits)
    lit = CircuitSet(verified.target.circuits - dark.circuits)
    taken_out = (Switch(Transition(teardown=dark, kept=lit, setup=CircuitSet())),) if dark.circuits else ()
    return (*taken_out, Admit(RuleChange.between(rules(kept), rules(lit)), lit))
