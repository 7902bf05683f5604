"""A fabric in memory whose controllers get NIC events: no process, no packet."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from threading import Lock

from moefabric.controller.reconfiguration import Reconciler
from moefabric.controller.recovery.eps_recovery import EpsRecovery
from moefabric.controller.recovery.failure_history import FailureHistory
from moefabric.controller.recovery.failure_state import NicEvent
from moefabric.controller.recovery.region_recovery import RegionRecovery
from moefabric.controller.service.controller import Controller
from moefabric.controller.southbound.openflow.flow_entries import FlowEntry, RuleCounter
from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import ControlError
from moefabric.core.forwarding import circuit_rules
from moefabric.core.nic import Nic, NicKind
from moefabric.core.routes import Link
from moefabric.core.rules import Rule
from moefabric.core.topology import Fabric
from tests.support.background import call_at_once
from tests.support.memory_ocs import MemoryOcs
from tests.support.memory_switches import MemorySwitches


class ObservedSwitches(MemorySwitches):
    """Switches in memory that a controller can observe."""

    @property
    def switches(self) -> tuple[str, ...]:
        return self.fabric.switches

    @property
    def ready(self) -> tuple[str, ...]:
        return self.fabric.switches

    @property
    def rules(self) -> tuple[Rule, ...]:
        return ()

    def counters(self) -> Mapping[str, Sequence[RuleCounter]]:
        return {}

    def entries(self) -> dict[str, set[FlowEntry]]:
        """Return the entries of each switch."""
        return {switch: set(table.values()) for switch, table in self._tables.items()}


class Bench:
    """One fabric: a controller per region and one for the EPS, on a clock that counts its reads."""

    def __init__(self, wired: Fabric) -> None:
        self.fabric, self.now_ns = wired, 0
        self.eps_absent = False
        """Whether the EPS's controller answers no request."""
        self.lock = Lock()
        """Held while circuits change."""
        self.switches = ObservedSwitches(wired)
        self.eps = EpsRecovery(wired, self.switches, FailureHistory(self.clock_ns))
        self.ocs: dict[str, MemoryOcs] = {}
        self.controllers = {region.name: self._control(region.name) for region in wired.regions}
        self.out: frozenset[Nic] = frozenset()

    def clock_ns(self) -> int:
        self.now_ns += 1
        return self.now_ns

    def _control(self, name: str) -> Controller:
        region = next(region for region in self.fabric.regions if region.name == name)
        reconciler = None
        if region.ocs is not None:
            ocs = self.ocs[name] = MemoryOcs(self.fabric, region)
            rules = partial(circuit_rules, self.fabric)
            reconciler = Reconciler(
                ocs,
                self.switches,
                call_at_once,
                ocs.clock.now_s,
                probe=ocs,
                rules=rules,
                rules_without=lambda nics: partial(circuit_rules, self.fabric, unusable=nics),
            )
        recovery = RegionRecovery(
            self.fabric,
            region,
            self.switches,
            reconciler,
            partial(self._tell_eps, name),
            FailureHistory(self.clock_ns),
        )
        return Controller(recovery, self.switches, self.lock)

    def _tell_eps(self, region: str, relays: Mapping[str, str]) -> None:
        if self.eps_absent:
            raise ControlError("the EPS's controller: no answer")
        self.eps.announce_relays({"region": region, "relays": dict(relays)})

    def recovery(self, name: str = "r0") -> RegionRecovery:
        recovery = self.controllers[name].recovery
        assert isinstance(recovery, RegionRecovery)
        return recovery

    def lit(self, name: str = "r0") -> CircuitSet:
        return CircuitSet.of(self.controllers[name].circuits()["circuits"])

    def deliver(
        self,
        nics: Iterable[Nic | str],
        *,
        up: bool,
        relight: bool = True,
        ocs_port: bool = False,
        follows_light: bool = False,
    ) -> None:
        """Deliver link or OCS port events to the controllers concerned; relight if that follows."""
        changed = [Nic.parse(nic) if isinstance(nic, str) else nic for nic in nics]
        self.out = self.out.difference(changed) if up else self.out.union(changed)
        events = [NicEvent(nic, up, self.clock_ns(), ocs_port, follows_light) for nic in changed]
        if electrical := [event for event in events if event.nic.kind is NicKind.ELECTRICAL]:
            self.eps.handle_events(electrical)
        for name, controller in self.controllers.items():
            region_of = self.fabric.region_of
            region_events = [e for e in events if region_of[e.nic.server].name == name]
            if region_events and controller.recovery.handle_events(region_events) and relight:
                controller.relight()

    @property
    def light(self) -> CircuitSet:
        """The lit circuits of all regions."""
        lit = (c for ocs in self.ocs.values() if not ocs.gone for c in ocs.circuits())
        return CircuitSet(frozenset(lit)).without_nics(self.out)

    def route(self, source: str, to: str, path: str | None = None) -> tuple[Link, ...]:
        """Return the links that a packet crosses; none if it is dropped."""
        return self.switches.route(source, to, path, self.light)
