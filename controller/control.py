"""What a controller does when it is asked: told demand or circuits, it plans, changes the light and says how that went."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from typing import Any, Protocol

from controller.eps_recovery import EpsRecovery
from controller.failures import beside, whole
from controller.planner.plan import Plan, plan, policy_named
from controller.reconcile import Change, Reconciler
from controller.recovery import Recovery
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.errors import ControlError, SpecError
from moefabric.records import Phases
from moefabric.rules import Rule
from moefabric.seams import PacketSwitches
from moefabric.topology import Fabric, Region

log = logging.getLogger(__name__)


class Counter(Protocol):
    """What a rule has carried."""

    @property
    def rule(self) -> Rule: ...
    @property
    def packets(self) -> int: ...
    @property
    def bytes(self) -> int: ...


class WatchedSwitches(PacketSwitches, Protocol):
    """Packet switches that can be looked at."""

    @property
    def switches(self) -> tuple[str, ...]:
        """Those that should be there."""

    @property
    def ready(self) -> tuple[str, ...]:
        """Those that are, with all their rules."""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules they should have."""

    def counters(self) -> Mapping[str, Sequence[Counter]]:
        """What each rule has carried, by switch."""


Aim = Callable[[Fabric, CircuitSet, CircuitSet], CircuitSet]
"""What somebody wants lit: on a fabric less what is out, where some circuits are lit and some are held."""


class Control:
    """A controller's mind: of a region where `region` is given, of the EPS alone where it is None.

    One change of light at a time: whoever comes second waits for `lock`.
    """

    def __init__(
        self,
        fabric: Fabric,
        region: Region | None,
        switches: WatchedSwitches,
        reconciler: Reconciler | None,
        *,
        recovery: Recovery | EpsRecovery | None = None,
        lock: AbstractContextManager[Any] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.fabric, self.region, self.switches, self._reconciler = fabric, region, switches, reconciler
        self._lock, self.clock = lock or threading.Lock(), clock
        self._adopted = reconciler is None
        self.recovery = recovery or _recovery(fabric, region, switches, reconciler)
        self._aim: Aim | None = None

    def adopt(self) -> None:
        """Take over the light that is there. ControlError while the OCS or a switch doesn't answer."""
        with self._lock:
            self._adopt()

    def _adopt(self) -> None:
        if not self._adopted and self._reconciler is not None:
            self._reconciler.adopt()
            self._adopted = True

    def health(self) -> dict[str, Any]:
        """Whether all is there that should be."""
        ready = self.switches.ready
        return {
            "region": self.region.name if self.region else None,
            "ready": self._adopted and len(ready) == len(self.switches.switches),
            "switches": list(ready),
            "expected": list(self.switches.switches),
            "ocs": self._adopted if self._reconciler else None,
        }

    def circuits(self) -> dict[str, Any]:
        """The circuits that traffic relies on, and those that carried nothing when last they were asked for."""
        lit, dark = (self._reconciler.lit, self._reconciler.dark) if self._reconciler else ((), ())
        return {"circuits": [str(circuit) for circuit in lit], "dark": [str(circuit) for circuit in dark]}

    def rules(self) -> dict[str, Any]:
        """The rules that the switches have."""
        return {"rules": [asdict(rule) for rule in self.switches.rules]}

    def counters(self) -> dict[str, Any]:
        """What each rule has carried."""
        return {
            switch: [
                {"rule": str(counter.rule), "packets": counter.packets, "bytes": counter.bytes}
                for counter in listed
            ]
            for switch, listed in self.switches.counters().items()
        }

    def demand(self, asked: Mapping[str, Any], started_s: float) -> dict[str, Any]:
        """Plan for a demand, light what it deserves; `started_s` is when it began to come in, on the clock of this object.

        SpecError where it is no demand of this region, ControlError where a device doesn't do its part.
        """
        region, reconciler, recovery = self._optics()
        policy = policy_named(_text(asked, "policy", "mixnet"))
        owed = _demand(region, asked)

        def aim(fabric: Fabric, lit: CircuitSet, held: CircuitSet) -> Plan:
            return plan(fabric, region, owed, policy, lit, held)

        recovery.try_again()
        with self._lock if recovery.has_light else nullcontext():
            if recovery.has_light:
                self._adopt()
            heard_s = self.clock()
            planned = aim(recovery.fabric, reconciler.lit, recovery.wanted())
            planned_s = self.clock()
            self._aim = lambda fabric, lit, held: aim(fabric, lit, held).circuits
            change = self._lit(reconciler, recovery, planned.circuits)
        phases = replace(
            change.phases,
            demand_s=heard_s - started_s,
            plan_s=planned_s - heard_s,
            total_s=change.phases.total_s + planned_s - started_s,
        )
        return _said(replace(change, phases=phases), planned)

    def light(self, asked: Mapping[str, Any], started_s: float) -> dict[str, Any]:
        """Light exactly the circuits that are named, or those that a demand deserves."""
        if "circuits" not in asked:
            return self.demand(asked, started_s)
        region, reconciler, recovery = self._optics()
        named = named_circuits(self.fabric, region, asked["circuits"])

        def aim(fabric: Fabric, _lit: CircuitSet, held: CircuitSet) -> CircuitSet:
            return beside(held, whole(named, fabric.out))

        with self._lock:
            self._adopt()
            recovery.try_again()
            heard_s = self.clock()
            self._aim = aim
            target = aim(recovery.fabric, reconciler.lit, recovery.wanted())
            change = self._lit(reconciler, recovery, target)
            change = replace(change, dark=CircuitSet(change.dark.circuits | named.circuits - target.circuits))
        phases = replace(
            change.phases, demand_s=heard_s - started_s, total_s=change.phases.total_s + heard_s - started_s
        )
        return _said(replace(change, phases=phases), None)

    def _lit(self, reconciler: Reconciler, recovery: Recovery, target: CircuitSet) -> Change:
        """Light these, and have servers that need it relayed over them. Where no optical NIC works, the OCS isn't asked for anything."""
        if not recovery.has_light:
            return Change(reconciler.lit, CircuitSet(), CircuitSet(), Phases())
        try:
            return reconciler.reconcile(target)
        finally:  # over what is lit, whatever came of the change
            try:
                recovery.relay()
            except ControlError as fault:  # the light is as it is, and who asked for it is told that
                log.warning("not relayed yet: %s", fault)

    # --- failures ------------------------------------------------------------------------------------------------------

    def forward(self) -> bool:
        """Relay whom something cut off, over circuits that are lit; whether light is urgent, for somebody has no way without.

        ControlError where a device doesn't do its part; `relight` tries again.
        """
        recovery = self.recovery
        if not isinstance(recovery, Recovery) or self._reconciler is None:
            return False
        with self._lock:
            self._adopt()
            recovery.relay()
            return recovery.wanted() != recovery.held

    def relight(self) -> None:
        """After something has failed or works again: relay whom it cut off, and light what was wanted last with the NICs that work.

        ControlError where a device doesn't do its part; the next demand tries again.
        """
        reconciler, recovery = self._reconciler, self.recovery
        if reconciler is None or not isinstance(recovery, Recovery):
            return
        with self._lock:
            self._adopt()
            recovery.relay()
            aim = self._aim or (lambda _fabric, lit, held: beside(held, lit))
            target = aim(recovery.fabric, reconciler.lit, recovery.wanted())
            if recovery.has_light and target != reconciler.lit:
                self._lit(reconciler, recovery, target)
                recovery.relay()
                recovery.told(("optical-nic", "ocs-port"), f"lit anew: {reconciler.lit}")

    def failures(self, after: int | None = None, patience_s: float = 30.0) -> dict[str, Any]:
        """What was found to have failed (`controller.findings`); with `after` and patience, once there is more."""
        return self.recovery.findings.told(after, patience_s)

    def relay(self, asked: Mapping[str, Any], _started_s: float) -> dict[str, Any]:
        """A region says by whom the EPS reaches its servers now: `region`, `relays` by server. SpecError where this isn't the EPS's controller."""
        if not isinstance(self.recovery, EpsRecovery):
            raise SpecError([("", "relays are for the EPS's controller")])
        return self.recovery.relay(asked)

    def relays(self) -> dict[str, Any]:
        """By whom servers are reached whose electrical NICs are all out."""
        recovery = self.recovery
        doors = recovery.relays if isinstance(recovery, EpsRecovery) else recovery.doors
        return {"region": self.region.name if self.region else None, "relays": doors}

    def _optics(self) -> tuple[Region, Reconciler, Recovery]:
        if self.region is None or self._reconciler is None or not isinstance(self.recovery, Recovery):
            place = self.region.name if self.region else "the EPS"
            raise SpecError([("", f"{place} has no OCS, so there is no light to change")])
        return self.region, self._reconciler, self.recovery


def _recovery(
    fabric: Fabric, region: Region | None, switches: WatchedSwitches, reconciler: Reconciler | None
) -> Recovery | EpsRecovery:
    """One that tells no other controller anything."""
    if region is None:
        return EpsRecovery(fabric, switches)
    return Recovery(fabric, region, switches, reconciler)


def named_circuits(fabric: Fabric, region: Region, names: Any) -> CircuitSet:
    """The circuits of these names. SpecError for one that isn't, or whose NICs are not optical ones of the region."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SpecError([("circuits", "a list of names such as s0/o0~s3/o2 is needed")])
    try:
        wanted = CircuitSet.of(names)
    except ValueError as fault:
        raise SpecError([("circuits", str(fault))]) from fault
    there = {nic for server in region.servers for nic in fabric.optical_nics(server)}
    strange = sorted(
        {str(nic) for circuit in wanted for nic in (circuit.a, circuit.b)} - set(map(str, there))
    )
    if strange:
        raise SpecError([("circuits", f"{', '.join(strange)}: not an optical NIC of {region.name}")])
    return wanted


def _demand(region: Region, asked: Mapping[str, Any]) -> DemandMatrix:
    if "demand" not in asked:
        raise SpecError([("demand", "missing: a list of rows of bytes, from row's server to column's")])
    servers = asked.get("servers", list(region.servers))
    if not isinstance(servers, list):
        raise SpecError([("servers", "a list of names is needed")])
    try:
        return DemandMatrix(tuple(map(str, servers)), asked["demand"])
    except (ValueError, TypeError) as fault:
        raise SpecError([("demand", str(fault))]) from fault


def _text(asked: Mapping[str, Any], name: str, otherwise: str) -> str:
    value = asked.get(name, otherwise)
    if not isinstance(value, str):
        raise SpecError([(name, f"a name is needed, not {value!r}")])
    return value


def _said(change: Change, planned: Plan | None) -> dict[str, Any]:
    return {
        "plan": planned.to_json() if planned else None,
        "circuits_before": [str(circuit) for circuit in change.before],
        "circuits_after": [str(circuit) for circuit in change.after],
        "dark": [str(circuit) for circuit in change.dark],
        "phases": asdict(change.phases),
    }
