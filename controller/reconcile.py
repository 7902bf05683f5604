"""Reconciliation: a change of light carried out in the safe order, each step confirmed and timed.

It starts from what the device shows, not from what one remembers, and traffic relies on a circuit only after the device has shown it and frames
have come through it each way. So the rules say at any instant what is really lit, or less.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from controller.failures import whole
from moefabric.circuits import Circuit, CircuitSet
from moefabric.errors import ControlError
from moefabric.ocs_control import Mode
from moefabric.records import Phases
from moefabric.rules import Rule, RuleChange, light_rules
from moefabric.seams import LightProbe, OpticalSwitch, PacketSwitches
from moefabric.topology import Nic
from moefabric.transition import Admit, Divert, LitRules, Step, Switch, Verify, conclusion, steps

log = logging.getLogger(__name__)

_GRACE_S: Final = 1.0
_PROBING_S: Final = 1.5
"""How long nothing may come through anywhere before what is still missing is held to be dark: on a busy machine frames are late, and many at once
are later. To disbelieve light that is there costs more than to wait for light that isn't."""
_PROBING_DARK_S: Final = 0.1
"""The same for circuits that were dark the last time: nobody waits long for those again."""


@dataclass(frozen=True)
class Change:
    """How a change of light went."""

    before: CircuitSet
    """What traffic relied on."""
    after: CircuitSet
    """What it relies on now."""
    dark: CircuitSet
    """What was asked for, shown by the device, and carried no frame: taken out again, its pairs are on the EPS."""
    phases: Phases


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
        probe: LightProbe | None = None,
        mode: Mode = Mode.OVERWRITE,
        link_up_s: float = 0.0,
        rules: LitRules = light_rules,
    ) -> None:
        """`probe` proves light; without it, what the device shows is believed. Links may come up `link_up_s` after light.

        `rules` are those that put traffic on circuits.
        """
        self.ocs, self.switches, self._clock = ocs, switches, clock
        self._settle_deadline_s, self._probe, self._mode = settle_deadline_s, probe, mode
        self._probing_s = _PROBING_S + link_up_s
        self._rules = rules
        self.lit = CircuitSet()
        self.dark = CircuitSet()
        """Circuits that carried nothing when last they were asked for."""
        self._gone = False
        self.out: frozenset[Nic] = frozenset()
        """NICs that traffic never relies on."""

    def adopt(self) -> CircuitSet:
        """Make the rules those of what the device shows and light goes through, whatever they were. ControlError if it or a switch doesn't answer."""
        self.ocs.settled(self._settle_deadline_s)
        seen = self.ocs.lit()
        carrying, _ = self._carrying(whole(seen, self.out))
        self._rely_on(carrying)
        return carrying

    def shun(self, out: frozenset[Nic], *, gone: bool = False) -> RuleChange:
        """Rely on no circuit of these NICs from now on, and on none of them in any change that is under way; how the rules have to change for that.

        With `gone` the device is without power, so that nobody waits for its answer more often than need be.
        """
        self.out, self._gone = out, gone
        before, self.lit = self.lit, whole(self.lit, out)
        return RuleChange.between(self._rules(before), self._rules(self.lit))

    def reconcile(self, target: CircuitSet) -> Change:
        """Light `target` and put traffic on what of it has light.

        ControlError if a device refuses, or shows other circuits in the end. Then the pairs whose circuits aren't seen lit are on the EPS, those
        whose circuits are, are not.
        """
        started, before, seconds = self._clock(), self.lit, dict[str, float]()
        target = whole(target, self.out)
        kept = self.lit.towards(target).kept
        try:
            with self._timed(seconds, "command_s"):
                seen = self.ocs.lit()
            todo = list(steps(self.lit, seen, target, self._mode, self._rules))
            self.lit = CircuitSet(self.lit.circuits & seen.circuits & target.circuits)
            for step in todo:
                carrying = self._done(step, seconds)
                if isinstance(step, Verify):
                    todo += conclusion(step, carrying, self._rules)
        except ControlError as fault:
            raise ControlError(f"{fault}; {self._fallen_back(kept, before)}") from fault
        phases = replace(Phases(), **seconds, total_s=self._clock() - started)
        return Change(before, self.lit, CircuitSet(target.circuits - self.lit.circuits), phases)

    def _done(self, step: Step, seconds: dict[str, float]) -> CircuitSet:
        """Do it; what was seen to carry frames, if that was what it was about."""
        match step:
            case Divert(change):
                with self._timed(seconds, "divert_s"):
                    self.switches.change(change)
            case Switch(transition):
                with self._timed(seconds, "command_s"):
                    self.ocs.reconfigure(transition, self._mode)
                with self._timed(seconds, "settle_s"):
                    self.ocs.settled(self._settle_deadline_s)
            case Verify():
                with self._timed(seconds, "verify_s"):
                    carrying, waited_s = self._verified(step)
                seconds["verify_s"] -= waited_s
                seconds["settle_s"] = seconds.get("settle_s", 0.0) + waited_s
                return carrying
            case Admit(change, relied_on):
                self.lit = whole(relied_on, self.out)
                with self._timed(seconds, "admit_s"):
                    self.switches.change(change if self.lit == relied_on else self._in_full(relied_on))
        return CircuitSet()

    def _verified(self, wanted: Verify) -> tuple[CircuitSet, float]:
        """The fresh circuits that carry frames, and how long their light was behind the device's word. ControlError if the device shows others."""
        seen = self.ocs.lit()
        missing = CircuitSet(wanted.target.circuits - seen.circuits)
        strange = CircuitSet(wanted.gone.circuits & seen.circuits)
        if missing.circuits or strange.circuits:
            said = [
                f"{name} {circuits}"
                for name, circuits in (("lacks", missing), ("shows besides", strange))
                if circuits
            ]
            raise ControlError(f"the OCS {' and '.join(said)}")
        return self._carrying(wanted.fresh)

    def _carrying(self, circuits: CircuitSet) -> tuple[CircuitSet, float]:
        """Which of these carry frames, and how long the last of them took to. Those that were dark before get less time."""
        if self._probe is None or not circuits.circuits:
            return circuits, 0.0
        suspects = CircuitSet(circuits.circuits & self.dark.circuits)
        others = CircuitSet(circuits.circuits - suspects.circuits)
        found, waited_s = set[Circuit](), 0.0
        for asked, deadline_s in ((others, self._probing_s), (suspects, _PROBING_DARK_S)):
            if asked.circuits:
                probed = self._probe.through(asked, deadline_s)
                found |= probed.carrying.circuits
                waited_s += probed.waited_s
        if dark := CircuitSet(circuits.circuits - found):
            log.warning("no light in %s", dark)
        self.dark = CircuitSet((self.dark.circuits | dark.circuits) - found)
        return CircuitSet(frozenset(found)), waited_s

    def _fallen_back(self, kept: CircuitSet, before: CircuitSet) -> str:
        """Put the rules on what is known to have light after a fault, of which `kept` never moved; says how that went."""
        said = ""
        try:
            seen = self._known(kept)
        except ControlError as fault:
            seen, said = CircuitSet(), f", for the OCS doesn't say what is lit: {fault}"
        try:
            self._rely_on(seen, before)
        except ControlError as fault:
            return f"the rules may not be those of what is lit ({seen}{said}): {fault}"
        return f"traffic is on {seen}, all else on the EPS{said}"

    def _known(self, kept: CircuitSet) -> CircuitSet:
        """The circuits that the device shows and that carry frames, but while it still moves mirrors only those that didn't."""
        if self._gone:
            return CircuitSet()
        try:
            self.ocs.settled(_GRACE_S)
        except ControlError:
            return CircuitSet(self.ocs.lit().circuits & kept.circuits)
        seen = self.ocs.lit()
        moved, _ = self._carrying(CircuitSet(seen.circuits - kept.circuits))
        return CircuitSet((seen.circuits & kept.circuits) | moved.circuits)

    def _rely_on(self, seen: CircuitSet, *before: CircuitSet) -> None:
        """Make the light rules those of `seen`, where they may be those of `before`."""
        earlier, self.lit = self.lit, whole(seen, self.out)
        self.switches.change(self._in_full(earlier, *before))

    def _in_full(self, *before: CircuitSet) -> RuleChange:
        """The rules of what is relied on, all of them, where others may be in force: after a fault nobody knows what a switch has."""
        wanted = self._rules(self.lit)
        earlier = frozenset[Rule]().union(*map(self._rules, before))
        matches = {rule.match for rule in wanted}
        return RuleChange(frozenset(rule for rule in earlier if rule.match not in matches), wanted)

    @contextmanager
    def _timed(self, seconds: dict[str, float], phase: str) -> Iterator[None]:
        started = self._clock()
        yield
        seconds[phase] = seconds.get(phase, 0.0) + self._clock() - started
