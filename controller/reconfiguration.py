"""Reconfiguration of a region's circuits in the safe order, each step confirmed and timed.

The reconciler starts from the circuits that the device reports, not from those it remembers.
Traffic uses a circuit only after the device reports it and frames have passed in both directions,
and leaves it before the device is told to move it. Light that goes away otherwise is for
`moefabric.controller.recovery.light_watch` to notice.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Protocol, TypeVar

from moefabric.core import transition
from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.errors import ControlError, UnconfirmedError
from moefabric.core.forwarding import rule_changes, tree_marks
from moefabric.core.nic import Nic
from moefabric.core.ocs import CrossConnectMode
from moefabric.core.protocols import LightProbe, OpticalSwitch, PacketSwitches
from moefabric.core.rules import Rule, RuleChange, direct_rules
from moefabric.core.transition import Admission, ReconfigurationPhases, ReconfigurationPlan

log = logging.getLogger(__name__)

_FALLBACK_SETTLE_S: Final = 1.0
_PROBE_TIMEOUT_S: Final = 1.5
"""Time without an arriving frame after which the missing circuits count as dark. It is long because
frames are late on a busy machine, and tearing down a lit circuit costs more than waiting."""
_DARK_PROBE_TIMEOUT_S: Final = 0.1
"""Timeout for circuits that were dark at the last probe."""
_CACHED_RULES: Final = 8
"""Number of sets of circuits whose rules are kept: a reconfiguration needs three of them."""

T = TypeVar("T")
_NO_CIRCUITS: Final = CircuitSet()


class Background(Protocol):
    """Calls functions while the caller waits for something else."""

    def __call__(self, function: Callable[[], T], *, now: bool = False) -> Callable[[], T]:
        """Start a function; return a function that waits for its result or raises its error.

        Args:
            now: Whether it begins now, or else when the caller waits for something.
        """


@dataclass(frozen=True)
class DeviceBehaviour:
    """Time limits of an OCS, and its command mode.

    Attributes:
        settle_deadline_s: Longest time that light may take to settle.
        link_up_s: Longest time that links may stay down after light is back.
        mode: Effect of a command on cross-connects that it doesn't name.
    """

    settle_deadline_s: float = 10.0
    link_up_s: float = 0.0
    mode: CrossConnectMode = CrossConnectMode.OVERWRITE


_DEFAULT_DEVICE: Final = DeviceBehaviour()


@dataclass(frozen=True)
class Reconfiguration:
    """Outcome of a reconfiguration.

    Attributes:
        before: The circuits that carried traffic.
        after: The circuits that carry traffic now.
        dark: Requested circuits that the device reported but no frame passed. They are torn down;
            their pairs use the EPS.
    """

    before: CircuitSet
    after: CircuitSet
    dark: CircuitSet
    phases: ReconfigurationPhases


@dataclass(eq=False)
class Reconciler:
    """Moves the circuits of one region to a target and keeps the rules safe meanwhile.

    Call `adopt` first, because only the device knows which circuits carry light at the start.

    Attributes:
        background: Calls functions while the reconciler waits for devices.
        clock: Returns the seconds of a monotonic clock.
        probe: Proves light by frames; None to trust the device.
        rules: Returns the rules that put traffic on circuits.
        rules_without: Returns the function of these rules if some NICs carry nothing. Default: the
            rules depend on circuits only.
        lit: The circuits that carry traffic; at first, those that the switches' first rules use.
            These rules go like those of other circuits when a NIC is excluded, or if `adopt` finds
            no light.
        dark: The circuits that no frame passed when they were last probed, or that have lost their
            light since.
        excluded: NICs whose circuits carry no traffic, lit or not.
        drop: Whether packets of a relay tree are dropped while its rules change, because the EPS
            could bring them back (`moefabric.core.forwarding.rule_changes`).
        unmoved: The circuits that have carried traffic all the time since `mark_lit`.
    """

    ocs: OpticalSwitch
    switches: PacketSwitches
    background: Background
    clock: Callable[[], float] = time.perf_counter
    device: DeviceBehaviour = _DEFAULT_DEVICE
    probe: LightProbe | None = None
    rules: transition.CircuitRules = direct_rules
    rules_without: Callable[[frozenset[Nic]], transition.CircuitRules] | None = None
    lit: CircuitSet = _NO_CIRCUITS
    dark: CircuitSet = field(default=_NO_CIRCUITS, init=False)
    excluded: frozenset[Nic] = field(default=frozenset(), init=False)
    drop: bool = field(default=False, init=False)
    unmoved: CircuitSet = field(default=_NO_CIRCUITS, init=False)
    _device_gone: bool = field(default=False, init=False)
    _reading: Callable[[], CircuitSet] | None = field(default=None, init=False)
    """Waits for what the OCS reports, if `reading_ahead` has asked it."""

    def __post_init__(self) -> None:
        """Keep the rules of the last circuits."""
        self.rules = lru_cache(maxsize=_CACHED_RULES)(self.rules)

    def adopt(self) -> CircuitSet:
        """Put traffic on the circuits that are lit, and return them.

        Raises:
            ControlError: if the OCS or a packet switch doesn't answer.
        """
        self.ocs.wait_settled(self.device.settle_deadline_s)
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
        before = self.rules(self.lit)
        self.excluded, self._device_gone = nics, device_gone
        self._carry(self.lit.without_nics(nics))
        if self.rules_without:
            self.rules = lru_cache(maxsize=_CACHED_RULES)(self.rules_without(nics))
        return rule_changes(before, self.rules(self.lit), drop=self.drop)

    def mark_lit(self) -> CircuitSet:
        """Return the circuits that carry traffic, and let `unmoved` begin with them."""
        self.unmoved = self.lit
        return self.lit

    def _carry(self, circuits: CircuitSet) -> None:
        """Regard these circuits as those that carry traffic."""
        self.lit, self.unmoved = circuits, self.unmoved & circuits

    def lose_light(self, circuits: CircuitSet) -> tuple[RuleChange, ...]:
        """Use no circuit of these from now on, and regard them as dark.

        Returns:
            The changes of rules that take traffic off them, for `apply_changes`.
        """
        before, lost = self.rules(self.lit), self.lit & circuits
        self._carry(self.lit - lost)
        self.dark = CircuitSet(self.dark.without_nics(lost.nics).circuits | lost.circuits)
        return rule_changes(before, self.rules(self.lit), drop=self.drop)

    @contextmanager
    def reading_ahead(self) -> Iterator[None]:
        """Ask the OCS for its circuits now; `reconcile` uses the answer within this context."""
        self._reading = self.background(self.ocs.circuits, now=True)
        try:
            yield
        finally:
            reading, self._reading = self._reading, None
            if reading is not None:
                with suppress(ControlError):
                    reading()  # or the answer would meet the next query

    def reconcile(
        self, target: CircuitSet, meanwhile: Callable[[], object] | None = None
    ) -> Reconfiguration:
        """Light the target circuits and put traffic on those that carry light.

        Args:
            meanwhile: Called while switches put traffic on new circuits, if there are any.

        Raises:
            ControlError: if a device refuses, or the OCS ends up with other circuits. Traffic is
                then on the circuits that are lit, and on the EPS for all other pairs.
        """
        started_s, before, seconds = self.clock(), self.lit, defaultdict[str, float](float)
        target = target.without_nics(self.excluded)
        unchanged = self.lit & target
        try:
            shown = self._divert_and_read(unchanged, seconds)
            strays, drop = self.ocs.has_strays, self.drop
            plan = transition.reconfiguration_plan(
                self.lit, shown, target, self.device.mode, self.rules, drop=drop, strays=strays
            )
            self._carry(self.lit & shown & target)
            if plan is not None:
                self._execute(plan, meanwhile, seconds)
        except ControlError as error:
            raise ControlError(f"{error}; {self._fall_back(unchanged, before)}") from error
        phases = ReconfigurationPhases(**seconds, total_s=self.clock() - started_s)
        dark = target - self.lit
        return Reconfiguration(before, self.lit, dark, phases)

    def _divert_and_read(self, unchanged: CircuitSet, seconds: dict[str, float]) -> CircuitSet:
        """Take traffic off all circuits but `unchanged`; return those that the OCS reports."""
        reading, self._reading = self._reading, None
        if reading is None:
            reading = self.background(self.ocs.circuits, now=True)
        try:
            if unchanged != self.lit:
                divert = rule_changes(self.rules(self.lit), self.rules(unchanged), drop=self.drop)
                self._carry(unchanged)
                self._divert(divert, seconds)
        finally:
            with self._timed(seconds, "command_s"):
                shown = reading()
        return shown

    def _divert(self, changes: Sequence[RuleChange], seconds: dict[str, float]) -> None:
        with self._timed(seconds, "divert_s"):
            apply_changes(self.switches, [c for c in changes if not c.is_empty])

    def _execute(
        self,
        plan: ReconfigurationPlan,
        meanwhile: Callable[[], object] | None,
        seconds: dict[str, float],
    ) -> None:
        """Execute a plan and the admission of its circuits, and add up the time of each step."""
        rules, drop = self.rules, self.drop

        def prepare() -> Admission:
            """Compute and encode the admission of all new circuits, while they settle."""
            if self.probe:
                self.probe.prepare(plan.added)
            expected = transition.admission(plan, plan.added, rules, drop=drop)
            self.switches.prepare(expected.changes[0])
            return expected

        self._divert(plan.divert, seconds)
        prepared, shown = None, None
        if plan.commands_ocs:
            with self._timed(seconds, "command_s"):
                self.ocs.reconfigure(plan.command, self.device.mode)
            prepared = self.background(prepare)
            shown = self._settled(seconds)
        with self._timed(seconds, "verify_s"):
            proved, waited_s = self._verify(plan, shown)
        seconds["verify_s"] -= waited_s
        seconds["settle_s"] += waited_s
        admission = prepared() if prepared else None
        if admission is None or proved != plan.added or (rules, drop) != (self.rules, self.drop):
            admission = transition.admission(plan, proved, self.rules, drop=self.drop)
        if not admission.removal.is_empty:
            with self._timed(seconds, "command_s"):
                self.ocs.reconfigure(admission.removal, self.device.mode)
            self._settled(seconds)
        self._carry(admission.carrying.without_nics(self.excluded))
        changes = admission.changes
        with self._timed(seconds, "admit_s"):
            if self.lit != admission.carrying:
                changes = self._full_changes(admission.carrying)
            await_reply = self.background(meanwhile) if meanwhile else None
            apply_changes(self.switches, changes)
            if await_reply:
                await_reply()

    def _settled(self, seconds: dict[str, float]) -> CircuitSet:
        """Wait until light has settled; return what the OCS reports then."""
        with self._timed(seconds, "settle_s"):
            return self.ocs.settled_circuits(self.device.settle_deadline_s)

    def _verify(
        self, plan: ReconfigurationPlan, shown: CircuitSet | None
    ) -> tuple[CircuitSet, float]:
        """Compare the OCS with the target and probe new circuits.

        Args:
            shown: What the OCS has just reported; None to ask it.

        Returns:
            The new circuits that carry frames, and how long their light was late, in seconds.

        Raises:
            ControlError: if the device shows other circuits.
        """
        shown = self.ocs.circuits() if shown is None else shown
        missing = plan.target - shown
        unexpected = plan.command.teardown & shown
        faults = [f"lacks {missing}"] if missing else []
        faults += [f"shows besides {unexpected}"] if unexpected else []
        if faults:
            raise ControlError(f"the OCS {' and '.join(faults)}")
        return self._probe_circuits(plan.added)

    def _probe_circuits(self, circuits: CircuitSet) -> tuple[CircuitSet, float]:
        """Return the circuits that carry frames, and the time until the last one did, in s."""
        if self.probe is None or not circuits.circuits:
            self.dark = self.dark.without_nics(circuits.nics)
            return circuits, 0.0
        suspects = circuits & self.dark
        others = circuits - suspects
        carrying, waited_s = set[Circuit](), 0.0
        timeouts_s = _PROBE_TIMEOUT_S, _DARK_PROBE_TIMEOUT_S
        for probed, timeout_s in zip((others, suspects), timeouts_s, strict=True):
            if probed:
                result = self.probe.probe(probed, timeout_s + self.device.link_up_s)
                carrying |= result.carrying.circuits
                waited_s += result.waited_s
        if dark := CircuitSet(circuits.circuits - carrying):
            log.warning("no light in %s", dark)
        earlier = self.dark.without_nics(circuits.nics)
        self.dark = CircuitSet(earlier.circuits | dark.circuits)
        return circuits - dark, waited_s

    def _fall_back(self, unchanged: CircuitSet, before: CircuitSet) -> str:
        """Put traffic, after a fault, on the circuits known to be lit; return a description.

        Args:
            unchanged: The circuits that the reconfiguration didn't change.
        """
        unknown = ""
        try:
            lit = self._known_lit(unchanged)
        except ControlError as error:
            lit, unknown = CircuitSet(), f", for the OCS doesn't say what is lit: {error}"
        try:
            self._use(lit, before)
        except ControlError as error:
            return f"the rules may not be those of what is lit ({lit}{unknown}): {error}"
        return f"traffic is on {lit}, all else on the EPS{unknown}"

    def _known_lit(self, unchanged: CircuitSet) -> CircuitSet:
        """Return the circuits that carry frames; if the OCS doesn't settle, only unchanged ones."""
        if self._device_gone:
            return CircuitSet()
        try:
            self.ocs.wait_settled(_FALLBACK_SETTLE_S)
        except ControlError:
            return self.ocs.circuits() & unchanged
        shown = self.ocs.circuits()
        carrying, _ = self._probe_circuits(shown - unchanged)
        return CircuitSet((shown.circuits & unchanged.circuits) | carrying.circuits)

    def _use(self, circuits: CircuitSet, *before: CircuitSet) -> None:
        """Put traffic on these circuits, independent of the rules in force."""
        earlier = self.lit
        self._carry(circuits.without_nics(self.excluded))
        apply_changes(self.switches, self._full_changes(earlier, *before))

    def _full_changes(self, *before: CircuitSet) -> tuple[RuleChange, ...]:
        """Return the changes from the rules of any of these earlier circuits to those of `lit`.

        They add all rules, because after a fault it is unknown which of them a switch has.
        """
        target = self.rules(self.lit)
        earlier = frozenset[Rule]().union(*map(self.rules, before))
        *first, last = rule_changes(earlier, target, drop=self.drop)
        return (*first, RuleChange(last.delete, target))

    @contextmanager
    def _timed(self, seconds: dict[str, float], phase: str) -> Iterator[None]:
        started_s = self.clock()
        yield
        seconds[phase] += self.clock() - started_s


def apply_changes(switches: PacketSwitches, changes: Sequence[RuleChange]) -> None:
    """Apply changes one after the other, as `moefabric.core.forwarding.rule_changes` requires.

    A switch that doesn't confirm may still forward by a tree's old rules. No other switch gets new
    rules of that tree then, unless the switch is no longer part of it.

    Raises:
        ControlError: if a switch doesn't confirm; the others have their rules by then.
    """
    errors, unsafe = list[str](), frozenset[str]()
    for number, change in enumerate(changes):
        if unsafe:
            safe = frozenset(rule for rule in change.add if rule.path not in unsafe)
            change = RuleChange(change.delete, safe)  # noqa: PLW2901 - what is left of it
        try:
            switches.apply(change)
        except UnconfirmedError as error:
            errors.append(str(error))
            absent = error.switches
            old = (rule for rule in change.delete if rule.switch in absent)
            new = (r for later in changes[number + 1 :] for r in later.add if r.switch in absent)
            unsafe |= tree_marks(old) & tree_marks(new)
    if errors:
        raise ControlError("; ".join(dict.fromkeys(errors)))
