"""The safe order of a reconfiguration, as data: divert, command, verify, and then admit."""

from collections.abc import Callable
from dataclasses import dataclass

from moefabric.core.circuits import CircuitSet, Transition
from moefabric.core.forwarding import rule_changes
from moefabric.core.ocs import CrossConnectMode
from moefabric.core.rules import Rule, RuleChange, direct_rules

CircuitRules = Callable[[CircuitSet], frozenset[Rule]]
"""Returns the rules that put traffic on circuits."""


@dataclass(frozen=True)
class DivertStep:
    """Take traffic off circuits that go dark or are dark; until AdmitStep, their pairs use the EPS.

    `changes` are the result of `moefabric.core.forwarding.rule_changes`.
    """

    changes: tuple[RuleChange, ...]


@dataclass(frozen=True)
class CommandStep:
    """Command the OCS."""

    change: Transition


@dataclass(frozen=True)
class VerifyStep:
    """Verify the circuits before any traffic relies on them.

    Attributes:
        target: Circuits that the OCS must report.
        removed: Circuits that it must not report.
        added: Circuits that must carry light.
    """

    target: CircuitSet
    removed: CircuitSet
    added: CircuitSet


@dataclass(frozen=True)
class AdmitStep:
    """Let traffic onto new circuits.

    Attributes:
        changes: Rules to change, as in `DivertStep`.
        carrying: All circuits that carry traffic afterwards.
    """

    changes: tuple[RuleChange, ...]
    carrying: CircuitSet


ReconfigurationStep = DivertStep | CommandStep | VerifyStep | AdmitStep


def reconfiguration_steps(
    carrying: CircuitSet,
    reported: CircuitSet,
    target: CircuitSet,
    mode: CrossConnectMode = CrossConnectMode.SAFE,
    rules: CircuitRules = direct_rules,
    *,
    drop: bool = False,
) -> tuple[ReconfigurationStep, ...]:
    """Return the steps to new circuits, up to their verification. Packets never meet dark circuits.

    Args:
        carrying: Circuits that carry traffic.
        reported: Circuits that the OCS reports. Those that carry no traffic stay, unless the mode
            overwrites them.
        target: Circuits that are wanted.
        mode: The treatment of cross-connects that are in the way.
        rules: Returns the rules that put traffic on circuits.
        drop: As in `moefabric.core.forwarding.rule_changes`.

    Returns:
        The steps; none if nothing has to change.
    """
    common = CircuitSet(carrying.circuits & reported.circuits & target.circuits)
    leaving = reported.circuits - target.circuits
    overwrites = mode is CrossConnectMode.OVERWRITE
    removed = CircuitSet(leaving if overwrites else leaving & carrying.circuits)
    if not removed.circuits and carrying == common == target:
        return ()
    change = Transition(
        teardown=removed,
        kept=CircuitSet(reported.circuits & target.circuits),
        setup=CircuitSet(target.circuits - reported.circuits),
    )
    return (
        DivertStep(rule_changes(rules(carrying), rules(common), drop=drop)),
        *(() if change.is_empty else (CommandStep(change),)),
        VerifyStep(target, removed, CircuitSet(target.circuits - common.circuits)),
    )


def admission_steps(
    verified: VerifyStep,
    carrying: CircuitSet,
    rules: CircuitRules = direct_rules,
    *,
    drop: bool = False,
) -> tuple[ReconfigurationStep, ...]:
    """Return the steps after verification.

    New circuits without light are taken out again, and traffic is admitted to the others.

    Args:
        verified: The verification.
        carrying: Circuits through which frames came.
        rules: Returns the rules that put traffic on circuits.
        drop: As in `moefabric.core.forwarding.rule_changes`.
    """
    before = CircuitSet(verified.target.circuits - verified.added.circuits)
    dark = CircuitSet(verified.added.circuits - carrying.circuits)
    lit = CircuitSet(verified.target.circuits - dark.circuits)
    removal = CommandStep(Transition(teardown=dark, kept=lit, setup=CircuitSet()))
    admission = AdmitStep(rule_changes(rules(before), rules(lit), drop=drop), lit)
    return (removal, admission) if dark.circuits else (admission,)


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
