"""What a controller does when it is asked: told demand or circuits, it plans, changes the light and says how that went."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from typing import Any, Protocol

from controller.planner.plan import Plan, plan, policy_named
from controller.reconcile import Change, Reconciler
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.errors import SpecError
from moefabric.rules import Rule
from moefabric.seams import PacketSwitches
from moefabric.topology import Fabric, Region


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
        lock: AbstractContextManager[Any] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.fabric, self.region, self.switches, self._reconciler = fabric, region, switches, reconciler
        self._lock, self.clock = lock or threading.Lock(), clock
        self._adopted = reconciler is None

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
        region, reconciler = self._optics()
        policy = policy_named(_text(asked, "policy", "mixnet"))
        owed = _demand(region, asked)
        with self._lock:
            self._adopt()
            heard_s = self.clock()
            planned = plan(self.fabric, region, owed, policy, reconciler.lit)
            planned_s = self.clock()
            change = reconciler.reconcile(planned.circuits)
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
        region, reconciler = self._optics()
        target = named_circuits(self.fabric, region, asked["circuits"])
        with self._lock:
            self._adopt()
            heard_s = self.clock()
            change = reconciler.reconcile(target)
        phases = replace(
            change.phases, demand_s=heard_s - started_s, total_s=change.phases.total_s + heard_s - started_s
        )
        return _said(replace(change, phases=phases), None)

    def _optics(self) -> tuple[Region, Reconciler]:
        if self.region is None or self._reconciler is None:
            place = self.region.name if self.region else "the EPS"
            raise SpecError([("", f"{place} has no OCS, so there is no light to change")])
        return self.region, self._reconciler


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
