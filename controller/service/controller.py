"""A controller's requests: plan and light circuits, report state, and repair after failures.

`moefabric.controller.service.northbound` documents the fields of requests and replies.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from moefabric.config.guarded_policy import GuardedPolicy, guarded_policy, policy_faults
from moefabric.controller.http_client import ResponseTimeoutError
from moefabric.controller.reconfiguration import Reconciler, Reconfiguration
from moefabric.controller.recovery.eps_recovery import EpsRecovery
from moefabric.controller.recovery.region_recovery import RegionRecovery
from moefabric.controller.service.requests import (
    check_keys,
    parse_circuits,
    parse_demand,
    parse_horizon,
    parse_limit_s,
)
from moefabric.controller.service.statistics import ControllerStatistics
from moefabric.controller.southbound.openflow.flow_entries import RuleCounter
from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import ControlError, MisconfiguredError, SpecError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.protocols import PacketSwitches
from moefabric.core.rules import Rule
from moefabric.core.topology import Fabric, Region
from moefabric.core.transition import ReconfigurationPhases
from moefabric.planner.plan import Plan, plan

log = logging.getLogger(__name__)


class ObservableSwitches(PacketSwitches, Protocol):
    """Packet switches whose state can be read."""

    @property
    def switches(self) -> tuple[str, ...]:
        """All switches of the controller."""

    @property
    def ready(self) -> tuple[str, ...]:
        """The switches that are connected and have confirmed all their rules."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that the switches should have."""

    def counters(self) -> Mapping[str, Sequence[RuleCounter]]:
        """Return each rule's counters, by switch."""


_DEMAND_KEYS: Final = ("demand", "policy", "servers", "all_to_alls", "plan_limit_s")

CircuitPlan = Callable[[Fabric, CircuitSet, CircuitSet], CircuitSet]
"""Returns the circuits to light, given the fabric without failed NICs, lit circuits and reserved
circuits."""


@dataclass(eq=False)
class Controller:
    """The controller of a region, or of the EPS.

    There is one reconfiguration at a time; further requests wait for the lock.

    Attributes:
        recovery: The recovery of the region, with the reconciler of its circuits, or of the EPS.
        lock: Held while circuits change.
        planning: Held while a plan is computed: controllers that share a process take turns, and
            attend to their connections between two plans.
        clock: Returns the seconds of a monotonic clock.
    """

    recovery: RegionRecovery | EpsRecovery
    switches: ObservableSwitches
    lock: AbstractContextManager[Any] = field(default_factory=threading.Lock)
    planning: AbstractContextManager[Any] = field(default_factory=nullcontext)
    clock: Callable[[], float] = time.perf_counter
    statistics: ControllerStatistics = field(default_factory=ControllerStatistics)

    def __post_init__(self) -> None:
        """Begin without a request for circuits."""
        self.region, self.reconciler = self.recovery.region, self.recovery.reconciler
        self.adopted = self.reconciler is None
        """Whether traffic is on the circuits that are lit; always so without an OCS."""
        self.fault = ""
        """Why it isn't; empty without a failed attempt."""
        self.fault_lasts = False
        """Whether waiting doesn't help."""
        self._requested: CircuitSet | None = None
        self._plan: CircuitPlan | None = None
        """Plans the circuits of the last request again; None if they stay."""

    def adopt(self) -> None:
        """Put traffic on the circuits that are lit.

        Raises:
            ControlError: while the OCS or a switch doesn't answer.
        """
        with self.lock:
            try:
                self._adopt()
            except ControlError as error:
                self.fault, self.fault_lasts = str(error), isinstance(error, MisconfiguredError)
                if isinstance(error, ResponseTimeoutError):
                    self.fault += "; if it speaks another protocol, set ocs.driver or ocs.port"
                raise

    def _adopt(self) -> None:
        if not self.adopted and self.reconciler is not None:
            self.reconciler.adopt()
            if self._requested is None:
                self._requested = self.reconciler.ocs.circuits()
            self.adopted = True
            self.recovery.history.publish()

    # --- state -----------------------------------------------------------------------------------

    def health(self) -> dict[str, Any]:
        """Reply to `GET /health`."""
        ready = self.switches.ready
        fault = {"fault": self.fault, "lasts": self.fault_lasts}
        return {
            "region": self.region.name if self.region else None,
            "ready": self.adopted and len(ready) == len(self.switches.switches),
            "switches": list(ready),
            "expected": list(self.switches.switches),
            "ocs": self.adopted if self.reconciler else None,
        } | (fault if self.fault and not self.adopted else {})

    def circuits(self) -> dict[str, Any]:
        """Reply to `GET /circuits`."""
        if self.reconciler is None:
            return {"circuits": [], "dark": [], "requested": []}
        lit, requested = self.reconciler.lit, self.requested
        sets = {"circuits": lit, "dark": self.reconciler.dark & requested, "requested": requested}
        return {name: list(map(str, circuits)) for name, circuits in sets.items()}

    @property
    def requested(self) -> CircuitSet:
        """The circuits of the last request, also those that a failure keeps dark."""
        lit = self.reconciler.lit if self.reconciler else CircuitSet()
        return lit if self._requested is None else self._requested

    def rules(self) -> dict[str, Any]:
        """Reply to `GET /rules`."""
        return {"rules": [rule._asdict() for rule in self.switches.rules]}

    def counters(self) -> dict[str, Any]:
        """Reply to `GET /counters`."""
        return {
            switch: [vars(counter) | {"rule": str(counter.rule)} for counter in counters]
            for switch, counters in self.switches.counters().items()
        }

    def statistics_reply(self) -> dict[str, Any]:
        """Reply to `GET /statistics`."""
        rules = Counter(rule.switch for rule in self.switches.rules)
        state = {key: self.health()[key] for key in ("ready", "switches", "expected")}
        lost = self.recovery.lost_light if isinstance(self.recovery, RegionRecovery) else 0
        known = {"rules": rules, "lost_light": lost}
        return self.statistics.to_json() | state | self.circuits() | known

    def failures(self, after: int | None = None, wait_s: float = 30.0) -> dict[str, Any]:
        """Reply to `GET /failures`, once the version is later than `after` or `wait_s` is over."""
        reply = self.recovery.history.to_json(after, wait_s)
        known = self.reconciler is not None and self.adopted
        return reply | {"circuits": self.circuits()["circuits"] if known else None}

    def relays(self) -> dict[str, Any]:
        """Reply to `GET /relays`."""
        name = self.region.name if self.region else None
        return {"region": name, "relays": self.recovery.relays}

    # --- reconfiguration -------------------------------------------------------------------------

    def demand(self, request: Mapping[str, Any], started_s: float) -> dict[str, Any]:
        """Plan circuits for a demand, light them and reply to `POST /demand`.

        Args:
            started_s: When the request began to arrive, on `clock`.

        Raises:
            SpecError: if the request is malformed.
            ControlError: if a device fails.
        """
        check_keys(request, _DEMAND_KEYS)
        region, reconciler, recovery = self._optical_parts()
        name = request.get("policy", "mixnet")
        if not isinstance(name, str):
            raise SpecError([("policy", f"a name is needed, not {name!r}")])
        policy, demand = guarded_policy(name, parse_limit_s(request)), parse_demand(region, request)
        horizon = parse_horizon(request)

        def plan_circuits(fabric: Fabric, lit: CircuitSet, reserved: CircuitSet) -> Plan:
            return plan(fabric, region, demand, policy, lit, reserved, horizon)

        recovery.retry_dark_nics()
        with self.lock if recovery.has_light else nullcontext():
            if recovery.has_light:
                self._adopt()
            received_s = self.clock()
            with reconciler.reading_ahead() if recovery.has_light else nullcontext():
                required = recovery.required_circuits
                with self.planning:
                    planned = plan_circuits(recovery.fabric, reconciler.lit, required)
                planned_s = self.clock()
                self._requested = planned.circuits
                replan: CircuitPlan = lambda *state: plan_circuits(*state).circuits  # noqa: E731
                self._plan = replan if policy.reconfigures else None
                # The splits of other policies may take longer than light takes to settle.
                is_quick = not policy.forwards and not isinstance(policy, GuardedPolicy)
                meanwhile = planned.to_json if is_quick else None
                outcome = self._light(reconciler, recovery, planned.circuits, meanwhile)
        with self.planning:
            reply = _reply(outcome, planned, received_s - started_s, planned_s - received_s)
        self.statistics.count_reconfiguration(reply["phases"])
        return reply | {"policy_fault": "; ".join(policy_faults(policy))}

    def light(self, request: Mapping[str, Any], started_s: float) -> dict[str, Any]:
        """Light exactly the named circuits, or those for a demand; reply to `POST /light`.

        Arguments and errors are those of `demand`.
        """
        check_keys(request, ("circuits", *_DEMAND_KEYS))
        if "circuits" not in request:
            if "demand" not in request:
                raise SpecError([("circuits", "is missing, and so is demand: give one of them")])
            return self.demand(request, started_s)
        if beside := [key for key in request if key != "circuits"]:
            raise SpecError([(beside[0], "has no effect beside circuits: give one of them")])
        region, reconciler, recovery = self._optical_parts()
        named = parse_circuits(recovery.wired, region, request["circuits"])
        with self.lock:
            self._adopt()
            recovery.retry_dark_nics()
            received_s = self.clock()
            self._requested, self._plan = named, None
            target = self._target(reconciler, recovery)
            outcome = self._light(reconciler, recovery, target)
        unusable = named.circuits - target.circuits
        outcome = replace(outcome, dark=CircuitSet(outcome.dark.circuits | unusable))
        reply = _reply(outcome, None, received_s - started_s)
        reply["dark_why"] = recovery.dark_reasons(CircuitSet(unusable))
        self.statistics.count_reconfiguration(reply["phases"])
        return reply

    def _light(
        self,
        reconciler: Reconciler,
        recovery: RegionRecovery,
        target: CircuitSet,
        meanwhile: Callable[[], object] | None = None,
    ) -> Reconfiguration:
        """Light circuits and update relays; without working optical NICs, leave the OCS alone.

        `meanwhile` is called while switches put traffic on new circuits, to prepare the reply.
        """
        if not recovery.has_light:
            dark = CircuitSet()
            return Reconfiguration(reconciler.lit, dark, dark, ReconfigurationPhases())
        try:
            outcome = reconciler.reconcile(target, meanwhile)
        except ControlError:
            self.statistics.failed += 1
            raise
        else:
            lit, total_ms = outcome.after, outcome.phases.total_s * 1e3
            reconciler.background(lambda: log.info("lit: %s; %.1f ms", lit, total_ms))
            return outcome
        finally:  # relays use lit circuits, even after a failed reconfiguration
            try:
                recovery.relay()
            except ControlError as error:  # the reply is about circuits only
                log.warning("not relayed yet: %s", error)
            recovery.settle_light(target)

    def _optical_parts(self) -> tuple[Region, Reconciler, RegionRecovery]:
        if self.region and self.reconciler and isinstance(self.recovery, RegionRecovery):
            return self.region, self.reconciler, self.recovery
        place = self.region.name if self.region else "the EPS"
        raise SpecError([("", f"{place} has no OCS, so there is no light to change")])

    # --- failures --------------------------------------------------------------------------------

    def relay(self) -> bool:
        """Use lit circuits for relays; return whether a server needs further circuits.

        Raises:
            ControlError: if a device fails; `relight` tries again.
        """
        recovery = self.recovery
        if not isinstance(recovery, RegionRecovery) or self.reconciler is None:
            return False
        with self.lock:
            self._adopt()
            recovery.relay()
            return recovery.required_circuits != recovery.reserved_circuits

    def relight(self) -> None:
        """Light the last target again with the NICs that work, after a failure or its end.

        Raises:
            ControlError: if a device fails; the next demand tries again.
        """
        reconciler, recovery = self.reconciler, self.recovery
        if reconciler is None or not isinstance(recovery, RegionRecovery):
            return
        with self.lock:
            self._adopt()
            recovery.relay()
            if self._plan:
                required = recovery.required_circuits
                with self.planning:
                    self._requested = self._plan(recovery.fabric, reconciler.lit, required)
            target = self._target(reconciler, recovery)
            if recovery.has_light and target != reconciler.lit:
                self._light(reconciler, recovery, target)
                recovery.relay()
                kinds = FailureKind.OPTICAL_NIC, FailureKind.OCS_PORT
                recovery.record_action(kinds, f"circuits lit again: {reconciler.lit}")
                recovery.history.publish()
            else:
                recovery.settle_light(target)

    def _target(self, reconciler: Reconciler, recovery: RegionRecovery) -> CircuitSet:
        """Return the circuits of relays, and requested ones on other NICs that all work.

        No circuit besides is suspected to be dark any more, such as that of an earlier relay.
        """
        reserved = recovery.required_circuits
        usable = self.requested.without_nics(recovery.fabric.unusable_nics | reserved.nics)
        target = CircuitSet(reserved.circuits | usable.circuits)
        known = self.requested.circuits | target.circuits
        reconciler.dark = CircuitSet(reconciler.dark.circuits & known)
        return target

    def announce_relays(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Use a region's relays in the EPS and reply to `POST /relay`.

        Raises:
            SpecError: if this is not the EPS's controller.
        """
        if not isinstance(self.recovery, EpsRecovery):
            raise SpecError([("", "relays are for the EPS's controller")])
        return self.recovery.announce_relays(request)


def _reply(
    outcome: Reconfiguration, planned: Plan | None, demand_s: float, plan_s: float = 0.0
) -> dict[str, Any]:
    """Return the reply to a request, with the times in s that receiving and planning it took."""
    total_s = outcome.phases.total_s + demand_s + plan_s
    phases = replace(outcome.phases, demand_s=demand_s, plan_s=plan_s, total_s=total_s)
    return {
        "plan": planned.to_json() if planned else None,
        "circuits_before": list(map(str, outcome.before)),
        "circuits_after": list(map(str, outcome.after)),
        "dark": list(map(str, outcome.dark)),
        "phases": vars(phases),
    }
