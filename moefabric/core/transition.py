"""The safe order of a reconfiguration, as data: divert, command, verify, and then admit."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from moefabric.core.circuits import CircuitSet, Transition
from moefabric.core.forwarding import rule_changes
from moefabric.core.ocs import CrossConnectMode
from moefabric.core.rules import Rule, RuleChange, direct_rules

CircuitRules = Callable[[CircuitSet], frozenset[Rule]]
"""Returns the rules that put traffic on circuits."""


@dataclass(frozen=True)
class ReconfigurationPlan:
    """The steps to new circuits, up to their verification: divert, command, verify.

    Attributes:
        target: Circuits that the OCS must report afterwards.
        divert: Changes of rules (`moefabric.core.forwarding.rule_changes`) that take traffic off
            circuits that go dark or are dark. Until the admission, their pairs use the EPS.
        command: What the OCS has to change, if anything. It must not report the teardown any more.
        added: Circuits that must carry light before any traffic relies on them.
        strays: Whether the command also removes cross-connects that form no circuit.
    """

    target: CircuitSet
    divert: tuple[RuleChange, ...]
    command: Transition
    added: CircuitSet
    strays: bool = False

    @property
    def commands_ocs(self) -> bool:
        """True if the OCS has to change anything."""
        return self.strays or not self.command.is_empty


@dataclass(frozen=True)
class Admission:
    """The steps after a verification: take dark circuits out again, let traffic onto the others.

    Attributes:
        removal: What the OCS has to change, if anything.
        changes: Changes of rules, as in `ReconfigurationPlan`.
        carrying: All circuits that carry traffic afterwards.
    """

    removal: Transition
    changes: tuple[RuleChange, ...]
    carrying: CircuitSet


def reconfiguration_plan(
    carrying: CircuitSet,
    reported: CircuitSet,
    target: CircuitSet,
    mode: CrossConnectMode = CrossConnectMode.SAFE,
    rules: CircuitRules = direct_rules,
    *,
    drop: bool = False,
    strays: bool = False,
) -> ReconfigurationPlan | None:
    """Return the steps to new circuits, in which packets never meet dark ones; None without a step.

    Args:
        carrying: Circuits that carry traffic.
        reported: Circuits that the OCS reports. Those that carry no traffic stay, unless the mode
            overwrites them.
        target: Circuits to light.
        mode: The treatment of cross-connects that are in the way.
        rules: Returns the rules that put traffic on circuits.
        drop: As in `moefabric.core.forwarding.rule_changes`.
        strays: Whether the OCS has cross-connects that form no circuit; they go if the mode
            overwrites.
    """
    strays = strays and mode is CrossConnectMode.OVERWRITE
    common = carrying & reported & target
    leaving = reported - target
    removed = leaving if mode is CrossConnectMode.OVERWRITE else leaving & carrying
    if not strays and not removed.circuits and carrying == common == target:
        return None
    command = replace(reported.transition_to(target), teardown=removed)
    divert = rule_changes(rules(carrying), rules(common), drop=drop)
    added = target - common
    return ReconfigurationPlan(target, divert, command, added, strays)


def admission(
    plan: ReconfigurationPlan,
    proved: CircuitSet,
    rules: CircuitRules = direct_rules,
    *,
    drop: bool = False,
) -> Admission:
    """Return the steps after the verification of a plan.

    Args:
        proved: The added circuits through which frames came.
        rules: Returns the rules that put traffic on circuits.
        drop: As in `moefabric.core.forwarding.rule_changes`.
    """
    before = plan.target - plan.added
    dark = plan.added - proved
    lit = plan.target - dark
    removal = Transition(teardown=dark, kept=lit, setup=CircuitSet())
    return Admission(removal, rule_changes(rules(before), rules(lit), drop=drop), lit)


@dataclass(frozen=True)
class ReconfigurationPhases:
    """Seconds of the phases of one reconfiguration: a controller's wall seconds or model seconds.

    Attributes:
        demand_s: Receiving the demand.
        plan_s: Planning.
        divert_s: Taking traffic off circuits that go dark.
        command_s: Commanding the OCS.
        settle_s: The OCS's and the optics' own time.
        verify_s: Verifying the new circuits.
        admit_s: Letting traffic onto them.
        total_s: The whole reconfiguration.
    """

    demand_s: float = 0.0
    plan_s: float = 0.0
    divert_s: float = 0.0
    command_s: float = 0.0
    settle_s: float = 0.0
    verify_s: float = 0.0
    admit_s: float = 0.0
    total_s: float = 0.0

    @property
    def control_s(self) -> float:
        """All phases but settling."""
        return self.total_s - self.settle_s
