"""Reconciliation: a change of light carried out in the safe order, each step confirmed and timed.

Traffic relies on light only after the device has shown it, so the rules say at any instant what is really lit, or less.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from moefabric.circuits import CircuitSet
from moefabric.errors import ControlError
from moefabric.records import Phases
from moefabric.rules import RuleChange, light_rules
from moefabric.seams import OpticalSwitch, PacketSwitches
from moefabric.transition import Admit, Divert, Step, Switch, Verify, steps

_GRACE_S = 1.0


class Reconciler:
    """The light of one region: what traffic relies on, and the way to another matching.

    `lit` are the circuits that the rules send traffic to. It is known only from the device: call `adopt` first, and again after any fault.
    """

    def __init__(
        self,
        ocs: OpticalSwitch,
        switches: PacketSwitches,
        clock: Callable[[], float] = time.perf_counter,
        settle_deadline_s: float = 10.0,
    ) -> None:
        self.ocs, self.switches, self._clock, self._settle_deadline_s = (
            ocs,
            switches,
            clock,
            settle_deadline_s,
        )
        self.lit = self._verified = CircuitSet()

    def adopt(self) -> CircuitSet:
        """Make the rules those of what the device shows, whatever they were. ControlError if it or a switch doesn't answer."""
        self.ocs.settled(self._settle_deadline_s)
        seen = self.ocs.lit()
        self._rely_on(seen)
        return seen

    def reconcile(self, target: CircuitSet) -> Phases:
        """Light `target` and put traffic on it; what the phases took, in seconds of the clock.

        ControlError if a device refuses, or shows other circuits in the end. Then the pairs whose circuits aren't seen lit are on the EPS, those
        whose circuits are, are not.
        """
        started = self._clock()
        phases = Phases()
        try:
            for step in steps(self.lit, target):
                phases = self._done(step, phases)
        except ControlError as fault:
            raise ControlError(f"{fault}; {self._fallen_back(self.lit.towards(target).kept)}") from fault
        return replace(phases, total_s=self._clock() - started)

    def _done(self, step: Step, phases: Phases) -> Phases:
        seconds: dict[str, float] = {}
        match step:
            case Divert(change):
                with self._timed(seconds, "divert_s"):
                    self.switches.change(change)
            case Switch(now, target):
                with self._timed(seconds, "command_s"):
                    self.ocs.reconfigure(now.towards(target))
                with self._timed(seconds, "settle_s"):
                    self.ocs.settled(self._settle_deadline_s)
            case Verify(target):
                with self._timed(seconds, "verify_s"):
                    self._verify(target)
            case Admit(change):
                with self._timed(seconds, "admit_s"):
                    self.switches.change(change)
                self.lit = self._verified
        return replace(phases, **seconds)

    def _verify(self, target: CircuitSet) -> None:
        seen = self.ocs.lit()
        if seen != target:
            missing, strange = (
                CircuitSet(target.circuits - seen.circuits),
                CircuitSet(seen.circuits - target.circuits),
            )
            said = [
                f"{name} {circuits}"
                for name, circuits in (("lacks", missing), ("shows besides", strange))
                if circuits
            ]
            raise ControlError(f"the OCS {' and '.join(said)}")
        self._verified = seen

    def _fallen_back(self, kept: CircuitSet) -> str:
        """Put the rules on what is known to have light after a fault, of which `kept` never moved; says how that went."""
        said = ""
        try:
            seen = self._known(kept)
        except ControlError as fault:
            seen, said = CircuitSet(), f", for the OCS doesn't say what is lit: {fault}"
        try:
            self._rely_on(seen)
        except ControlError as fault:
            return f"the rules may not be those of what is lit ({seen}{said}): {fault}"
        return f"traffic is on {seen}, all else on the EPS{said}"

    def _known(self, kept: CircuitSet) -> CircuitSet:
        """The circuits that the device shows, but while it still moves mirrors only those that didn't."""
        try:
            self.ocs.settled(_GRACE_S)
        except ControlError:
            return CircuitSet(self.ocs.lit().circuits & kept.circuits)
        return self.ocs.lit()

    def _rely_on(self, seen: CircuitSet) -> None:
        """Make the light rules those of `seen`: said in full, since after a fault nobody knows what a switch has of them."""
        before, self.lit = self.lit, seen
        wanted = light_rules(seen)
        self.switches.change(RuleChange(RuleChange.between(light_rules(before), wanted).delete, wanted))

    @contextmanager
    def _timed(self, seconds: dict[str, float], phase: str) -> Iterator[None]:
        started = self._clock()
        yield
        seconds[phase] = self._clock() - started
