"""Reconfiguration of a region's circuits in the safe order, each step confirmed and timed.

The reconciler starts from the circuits that the device reports, not from those it remembers.
Traffic uses a circuit only after the device reports it and frames have passed in both directions.
So at no instant do the rules use a circuit that is not lit.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from moefabric.core import transition
from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.errors import ControlError, UnconfirmedError
from moefabric.core.forwarding import rule_changes, tree_marks
from moefabric.core.ocs import CrossConnectMode
from moefabric.core.protocols import LightProbe, OpticalSwitch, PacketSwitches
from moefabric.core.rules import Rule, RuleChange, direct_rules
from moefabric.core.topology import Nic
from moefabric.core.transition import ReconfigurationPhases

log = logging.getLogger(__name__)

_FALLBACK_SETTLE_S: Final = 1.0
_PROBE_TIMEOUT_S: Final = 1.5
"""Time without an arriving frame after which the missing circuits count as dark. It is long because
frames are late on a busy machine, and tearing down a lit circuit costs more than waiting."""
_DARK_PROBE_TIMEOUT_S: Final = 0.1
"""The same timeout for circuits that were dark at the last probe."""


@dataclass(frozen=True)
class Reconfiguration:
    """Outcome of a reconfiguration.

    Attributes:
        before: The circuits that carried traffic.
        after: The circuits that carry traffic now.
        dark: Requested circuits that the device reported but no frame passed. They are torn down;
            their pairs use the EPS.
        phases: Duration of each phase.
    """

    before: CircuitSet
    after: CircuitSet
    dark: CircuitSet
    phases: ReconfigurationPhases


def apply_changes(switches: PacketSwitches, changes: Sequence[RuleChange]) -> None:
    """Apply changes one after the other, as `moefabric.core.forwarding.rule_changes` requires.

    A switch that doesn't confirm may still forward by a tree's old rules. No other switch gets new
    rules of that tree then, unless the switch is no longer part of it.

    Raises:
        ControlError: if a switch doesn't confirm; the others have their rules by then.
    """
    errors, unsafe = list[str](), frozenset[str]()
    for number, change in enumerate(changes):
        safe = frozenset(r for r in change.add if r.path not in unsafe) if unsafe else change.add
        try:
            switches.apply(RuleChange(change.delete, safe))
        except UnconfirmedError as error:
            errors.append(str(error))
            absent = error.switches
            old = (rule for rule in change.delete if rule.switch in absent)
            new = (r for later in changes[number + 1 :] for r in later.add if r.switch in absent)
            unsafe |= tree_marks(old) & tree_marks(new)
    if errors:
        raise ControlError("; ".join(dict.fromkeys(errors)))


class Reconciler:
    """Moves the circuits of one region to a target and keeps the rules safe meanwhile.

    Call `adopt` first, because only the device knows which circuits are lit at the start.

    Args:
        ocs: The region's OCS.
        switches: Its server switches.
        clock: Returns the seconds of a monotonic clock.
        settle_deadline_s: How long light may take to settle.
        probe: Proves light by frames; None to trust the device.
        mode: What happens to cross-connects that were not requested.
        link_up_s: How long links may stay down after light is back.
        rules: Returns the rules that put traffic on circuits.
        rules_without: Returns the function of these rules if some NICs carry nothing. Default: the
            rules depend on circuits only.

    Attributes:
        lit: The circuits that carry traffic.
        dark: The circuits that no frame passed when they were last probed.
        excluded: NICs whose circuits carry no traffic, lit or not.
        drop: Whether packets of a relay tree are dropped while its rules change, because the EPS
            could bring them back (`moefabric.core.forwarding.rule_changes`).
    """

    def __init__(
        self,
        ocs: OpticalSwitch,
        switches: PacketSwitches,
        clock: Callable[[], float] = time.perf_counter,
        settle_deadline_s: float = 10.0,
        probe: LightProbe | None = None,
        mode: CrossConnectMode = CrossConnectMode.OVERWRITE,
        link_up_s: float = 0.0,
        rules: transition.CircuitRules = direct_rules,
        rules_without: Callable[[frozenset[Nic]], transition.CircuitRules] | None = None,
    ) -> None:
        self.ocs, self.switches, self._clock = ocs, switches, clock
        self._settle_deadline_s, self._probe, self._mode = settle_deadline_s, probe, mode
        self._probe_timeout_s, self._rules = _PROBE_TIMEOUT_S + link_up_s, rules
        self._rules_without = rules_without
        self.lit, self.dark = CircuitSet(), CircuitSet()
        self.excluded: frozenset[Nic] = frozenset()
        self.drop, self._device_gone = False, False

    def adopt(self) -> CircuitSet:
        """Put traffic on the circuits that are lit, and return them.

        Raises:
            ControlError: if the OCS or a packet switch doesn't answer.
        """
        self.ocs.wait_settled(self._settle_deadline_s)
        carrying, _ = self._probe_circuits(self.ocs.circuits().without_nics(self.excluded))
        self._use(carrying)
        return carrying

    def exclude_nics(
        self, nics: frozenset[Nic], *, device_gone: bool = False
    ) -> tuple[RuleChange, ...]:
        """Use no circuit of these NICs from now on, even in a reconfiguration that is under way.

        Args:
            nics: The NICs; they replace those excluded before.
            device_gone: Whether the OCS has no power; then it is queried as little as possible.

        Returns:
            The changes of rules that take traffic off these circuits, for `apply_changes`.
        """
        before = self._rules(self.lit)
        self.excluded, self._device_gone = nics, device_gone
        self.lit = self.lit.without_nics(nics)
        if self._rules_without:
            self._rules = self._rules_without(nics)
        return rule_changes(before, self._rules(self.lit), drop=self.drop)

    def reconcile(self, target: CircuitSet) -> Reconfiguration:
        """Light the target circuits and put traffic on those that carry light.

        Raises:
            ControlError: if a device refuses, or the OCS ends up with other circuits. Traffic is
                then on the circuits that are lit, and on the EPS for all other pairs.
        """
        started_s, before, seconds = self._clock(), self.lit, dict[str, float]()
        target = target.without_nics(self.excluded)
        kept = self.lit.transition_to(target).kept
        try:
            with self._timed(seconds, "command_s"):
                shown = self.ocs.circuits()
            todo = list(
                transition.reconfiguration_steps(
                    self.lit, shown, target, self._mode, self._rules, drop=self.drop
                )
            )
            self.lit = CircuitSet(self.lit.circuits & shown.circuits & target.circuits)
            for step in todo:
                todo += self._execute(step, seconds)
        except ControlError as error:
            raise ControlError(f"{error}; {self._fall_back(kept, before)}") from error
        phases = replace(ReconfigurationPhases(), **seconds, total_s=self._clock() - started_s)
        dark = CircuitSet(target.circuits - self.lit.circuits)
        return Reconfiguration(before, self.lit, dark, phases)

    def _execute(
        self, step: transition.ReconfigurationStep, seconds: dict[str, float]
    ) -> tuple[transition.ReconfigurationStep, ...]:
        """Execute a step and add up its time; return the steps that follow from its outcome."""
        match step:
            case transition.DivertStep(changes):
                with self._timed(seconds, "divert_s"):
                    apply_changes(self.switches, changes)
            case transition.CommandStep(change):
                with self._timed(seconds, "command_s"):
                    self.ocs.reconfigure(change, self._mode)
                with self._timed(seconds, "settle_s"):
                    self.ocs.wait_settled(self._settle_deadline_s)
            case transition.VerifyStep():
                with self._timed(seconds, "verify_s"):
                    carrying, waited_s = self._verify(step)
                seconds["verify_s"] -= waited_s
                seconds["settle_s"] = seconds.get("settle_s", 0.0) + waited_s
                return transition.admission_steps(step, carrying, self._rules, drop=self.drop)
            case transition.AdmitStep(changes, carrying):
                self.lit = carrying.without_nics(self.excluded)
                with self._timed(seconds, "admit_s"):
                    if self.lit != carrying:
                        changes = self._full_changes(carrying)
                    apply_changes(self.switches, changes)
        return ()

    def _verify(self, step: transition.VerifyStep) -> tuple[CircuitSet, float]:
        """Compare the OCS with the target and probe new circuits.

        Returns:
            The new circuits that carry frames, and how long their light was late, in seconds.

        Raises:
            ControlError: if the device shows other circuits.
        """
        shown = self.ocs.circuits()
        missing = CircuitSet(step.target.circuits - shown.circuits)
        unexpected = CircuitSet(step.removed.circuits & shown.circuits)
        faults = [f"lacks {missing}"] if missing else []
        faults += [f"shows besides {unexpected}"] if unexpected else []
        if faults:
            raise ControlError(f"the OCS {' and '.join(faults)}")
        return self._probe_circuits(step.added)

    def _probe_circuits(self, circuits: CircuitSet) -> tuple[CircuitSet, float]:
        """Return the circuits that carry frames, and the time until the last one did, in s."""
        if self._probe is None or not circuits.circuits:
            return circuits, 0.0
        suspects = CircuitSet(circuits.circuits & self.dark.circuits)
        others = CircuitSet(circuits.circuits - suspects.circuits)
        carrying, waited_s = set[Circuit](), 0.0
        timeouts_s = self._probe_timeout_s, _DARK_PROBE_TIMEOUT_S
        for probed, timeout_s in zip((others, suspects), timeouts_s, strict=True):
            if probed:
                result = self._probe.probe(probed, timeout_s)
                carrying |= result.carrying.circuits
                waited_s += result.waited_s
        if dark := CircuitSet(circuits.circuits - carrying):
            log.warning("no light in %s", dark)
        self.dark = CircuitSet((self.dark.circuits | dark.circuits) - carrying)
        return CircuitSet(frozenset(carrying)), waited_s

    def _fall_back(self, kept: CircuitSet, before: CircuitSet) -> str:
        """Put traffic, after a fault, on the circuits known to be lit; return a description.

        Args:
            kept: The circuits that the reconfiguration didn't change.
            before: The circuits that carried traffic before it.
        """
        unknown = ""
        try:
            lit = self._known_lit(kept)
        except ControlError as error:
            lit, unknown = CircuitSet(), f", for the OCS doesn't say what is lit: {error}"
        try:
            self._use(lit, before)
        except ControlError as error:
            return f"the rules may not be those of what is lit ({lit}{unknown}): {error}"
        return f"traffic is on {lit}, all else on the EPS{unknown}"

    def _known_lit(self, kept: CircuitSet) -> CircuitSet:
        """Return the circuits that carry frames; if the OCS doesn't settle, only unchanged ones."""
        if self._device_gone:
            return CircuitSet()
        try:
            self.ocs.wait_settled(_FALLBACK_SETTLE_S)
        except ControlError:
            return CircuitSet(self.ocs.circuits().circuits & kept.circuits)
        shown = self.ocs.circuits()
        carrying, _ = self._probe_circuits(CircuitSet(shown.circuits - kept.circuits))
        return CircuitSet((shown.circuits & kept.circuits) | carrying.circuits)

    def _use(self, circuits: CircuitSet, *before: CircuitSet) -> None:
        """Put traffic on these circuits, whichever earlier rules are in force."""
        earlier, self.lit = self.lit, circuits.without_nics(self.excluded)
        apply_changes(self.switches, self._full_changes(earlier, *before))

    def _full_changes(self, *before: CircuitSet) -> tuple[RuleChange, ...]:
        """Return the changes from the rules of any of these earlier circuits to those of `lit`.

        They add all rules, because after a fault it is unknown which of them a switch has.
        """
        target = self._rules(self.lit)
        earlier = frozenset[Rule]().union(*map(self._rules, before))
        *first, last = rule_changes(earlier, target, drop=self.drop)
        return (*first, RuleChange(last.delete, target))

    @contextmanager
    def _timed(self, seconds: dict[str, float], phase: str) -> Iterator[None]:
        started_s = self._clock()
        yield
        seconds[phase] = seconds.get(phase, 0.0) + self._clock() - started_s
