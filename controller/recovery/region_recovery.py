"""Recovery of a region: traffic avoids failed components until they work again.

`handle_events` acts at once, even during a reconfiguration: it changes the rules so that they use
no failed NIC. `lose_light` does so for circuits without light, between reconfigurations. `relay`
acts only when circuits may change: it makes servers whose electrical NICs have all failed reachable
through a peer.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import eq

from moefabric.controller.reconfiguration import Reconciler, apply_changes
from moefabric.controller.recovery.failure_history import FailureHistory, FailureReport
from moefabric.controller.recovery.failure_state import (
    DetectedFailure,
    NicEvent,
    NicStates,
    new_failures,
    persists,
)
from moefabric.controller.recovery.relays import select_relays
from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.errors import ControlError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import FailurePhase
from moefabric.core.nic import Nic, NicKind
from moefabric.core.protocols import PacketSwitches
from moefabric.core.rules import RuleChange, server_rules
from moefabric.core.topology import Fabric, Region

log = logging.getLogger(__name__)


@dataclass(eq=False)
class RegionRecovery:
    """Changes the rules of a region's servers so that they use working NICs and circuits.

    Attributes:
        wired: The fabric; the switches start with its rules.
        reconciler: The reconciler of the region's circuits; None if the region has no OCS.
        announce: Tells the EPS's controller the region's relays, which replace earlier ones; raises
            ControlError if that controller doesn't comply. None if there is no EPS.
        note_light: Called when a circuit has lost its light (`lost`) and when that is over
            (`clear`), with the circuit, what happened, and since when (CLOCK_MONOTONIC).
        fabric: The fabric without the NICs that have failed.
        relay_circuits: The circuit to the relay of each server that uses one.
    """

    wired: Fabric
    region: Region
    switches: PacketSwitches
    reconciler: Reconciler | None
    announce: Callable[[Mapping[str, str]], None] | None = None
    history: FailureHistory = field(default_factory=FailureHistory)
    note_light: Callable[[FailurePhase, str, str, int], object] = lambda *_: None

    def __post_init__(self) -> None:
        """Begin with NICs that all work."""
        self.fabric, self.relay_circuits = self.wired, dict[str, Circuit]()
        self._announced: dict[str, str] = {}
        self._states, self._rules = NicStates(), server_rules(self.wired, self.region)
        self._retried: frozenset[Nic] = frozenset()
        """NICs without light that plans may use again."""
        self.lost_light = 0
        """Number of circuits that have lost their light since the start."""
        self._awaiting_relay = defaultdict[str, list[FailureReport]](list)
        """By server, the failures that are recovered once it has a relay."""
        if self.reconciler:
            self.reconciler.drop = self._eps_uses_circuits

    @property
    def reserved_circuits(self) -> CircuitSet:
        """The circuits of relays in use."""
        return CircuitSet(frozenset(self.relay_circuits.values()))

    @property
    def required_circuits(self) -> CircuitSet:
        """The circuits that relays need, lit or not; plans keep them."""
        return CircuitSet(frozenset(self._select_relays().values()))

    @property
    def relays(self) -> dict[str, str]:
        """The relay of each server that uses one."""
        return _relays(self.relay_circuits)

    @property
    def has_light(self) -> bool:
        """True if any optical NIC of the region works."""
        return any(self.fabric.usable_optical(server) for server in self.region.servers)

    # --- at once ---------------------------------------------------------------------------------

    def handle_events(self, events: Sequence[NicEvent]) -> bool:
        """Stop using NICs that failed; return whether circuits or relays should change too."""
        carrying = self._lit().nics  # others may lose their light on purpose
        relevant = [e for e in events if e.up or not e.follows_light or e.nic in carrying]
        before, now = self._states, self._states.after(relevant)
        if now == before:
            return False
        self._states = now
        self._retried &= now.dark & before.dark
        failures = new_failures(self.wired, [self.region], before, now)
        reports = self.history.add(failures, min(event.at_ns for event in events))
        self._record_recoveries(reports, self._update_rules())
        self.history.clear(lambda failure: not persists(self.wired, failure, now))
        optical = any(nic.kind is NicKind.OPTICAL for nic in before.out ^ now.out)
        return optical or self._select_relays() != self.relay_circuits

    def dark_reasons(self, circuits: CircuitSet) -> dict[str, str]:
        """Return why circuits can't be lit, by the detected failures of their OCS and NICs."""
        why = dict[str, str]()
        for circuit in circuits:
            places = {*map(str, (circuit.a, circuit.b)), circuit.a.server, circuit.b.server}
            if self.region.ocs is not None:
                places.add(self.region.ocs.name)
            reports = [report for report in self.history.standing() if report.what in places]
            failed = [f"{report.kind} {report.what} has failed" for report in reports]
            why[str(circuit)] = "; ".join(failed) or "a relay uses its NIC"
        return why

    def retry_dark_nics(self) -> None:
        """Let plans use dark NICs again, because only a new circuit shows whether they work."""
        if self._states.dark != self._retried:
            self._retried = self._states.dark
            self._update_rules()

    def _update_rules(self) -> str:
        """Adapt the rules to the NICs that work; return the error if a switch doesn't comply."""
        states = self._states
        out = states.down | states.failed_ports | (states.dark - self._retried)
        self.fabric = self.wired.without_nics(out)
        self.relay_circuits = {
            server: circuit
            for server, circuit in self.relay_circuits.items()
            if not {circuit.a, circuit.b} & out
        }
        changes: Sequence[RuleChange] = ()
        if self.reconciler:
            self.reconciler.drop = self._eps_uses_circuits
            changes = self.reconciler.exclude_nics(out, device_gone=not self.has_light)
        return self._leave_circuits(changes)

    def _leave_circuits(self, changes: Sequence[RuleChange]) -> str:
        """Change the rules at once; return the error if a switch doesn't comply."""
        try:
            self._change_rules(changes)
        except ControlError as error:
            log.warning("absent switches get their rules when they reconnect: %s", error)
            return str(error)
        return ""

    @property
    def _eps_uses_circuits(self) -> bool:
        """True if packets of the EPS cross circuits: to isolated servers, or without an EPS at all.

        A server that has just lost its electrical NICs gets a relay soon.
        """
        fabric = self.fabric
        isolated = not all(map(fabric.usable_electrical, self.region.servers))
        return isolated or bool(self.relay_circuits or self._announced)

    def _change_rules(self, circuit_changes: Sequence[RuleChange] = ()) -> None:
        """Update the rules without circuits, and apply changes of circuit rules with them."""
        target = server_rules(self.fabric, self.region, self.relay_circuits)
        change, self._rules = RuleChange.between(self._rules, target), target
        if circuit_changes:
            first, *later = circuit_changes
            change = RuleChange(change.delete | first.delete, change.add | first.add)
            apply_changes(self.switches, (change, *later))
        elif not change.is_empty:
            self.switches.apply(change)

    def _record_recoveries(self, reports: Iterable[FailureReport], fault: str) -> None:
        """Record how traffic avoids failures, or the error that keeps it from that."""
        for report in reports:
            if fault:
                self.history.record_action(report, fault, recovered=False)
            else:
                self._record_recovery(report)

    def _record_recovery(self, report: FailureReport) -> None:
        """Record how traffic avoids a failure, unless it has to wait for a relay."""
        match report.kind:
            case FailureKind.ELECTRICAL_NIC:
                server = Nic.parse(report.what).server
                usable = self.fabric.usable_electrical(server)
                if not usable:
                    self._awaiting_relay[server].append(report)
                    return
                action = f"{server} sends by {', '.join(map(str, usable))}"
            case FailureKind.SERVER:
                action = "no circuit to it carries traffic"
            case FailureKind.OCS:
                action = f"all of {self.region.name} is on the EPS"
            case _:
                rebuilt = ", relay trees avoid it" if self.fabric.forwarding else ""
                action = f"its pair is on the EPS{rebuilt}"
        self.history.record_action(report, action)

    def lose_light(self, lost: Mapping[Circuit, str], since_ns: int) -> None:
        """Stop using circuits that have lost their light.

        Args:
            lost: What tells so, by circuit.
            since_ns: When all of them had light for the last time, CLOCK_MONOTONIC.
        """
        reconciler = self.reconciler
        assert reconciler is not None, "circuits have a reconciler"
        self.lost_light += len(lost)
        failures = [DetectedFailure(str(circuit), FailureKind.LIGHT) for circuit in lost]
        reports = self.history.add(failures, self.history.clock_ns())
        relays = self.relay_circuits.items()
        self.relay_circuits = {server: c for server, c in relays if c not in lost}
        reconciler.drop = self._eps_uses_circuits
        fault = self._leave_circuits(reconciler.lose_light(CircuitSet(frozenset(lost))))
        self._record_recoveries(reports, fault)
        for circuit, why in lost.items():
            log.warning("%s has lost its light: %s", circuit, why)
            self.note_light("lost", str(circuit), why, since_ns)

    # --- when circuits may change ----------------------------------------------------------------

    def _lit(self) -> CircuitSet:
        return self.reconciler.lit if self.reconciler else CircuitSet()

    def _select_relays(self) -> dict[str, Circuit]:
        if self.reconciler is None:
            return {}
        return select_relays(self.fabric, self.region, self._lit(), self.relay_circuits)

    def relay(self) -> None:
        """Use the relays whose circuits are lit, and no others.

        The relays' rules change before the EPS sends them packets to forward.

        Raises:
            ControlError: if a switch or the EPS's controller doesn't comply; call again later.
        """
        lit = self._lit().circuits
        usable = {s: circuit for s, circuit in self._select_relays().items() if circuit in lit}
        if usable != self.relay_circuits:
            self.relay_circuits = usable
            self._change_rules()
        relays = _relays(usable)
        if relays != self._announced:
            if self.announce:
                self.announce(relays)
            self._announced = relays
        if self.reconciler:
            self.reconciler.drop = self._eps_uses_circuits
        for server, circuit in usable.items():
            for report in self._awaiting_relay.pop(server, []):
                if report.cleared_ns is None:
                    action = f"{relays[server]} relays for {server} over {circuit}"
                    self.history.record_action(report, action)

    @property
    def lacks_light(self) -> bool:
        """True if a requested circuit has lost its light."""
        return any(report.kind is FailureKind.LIGHT for report in self.history.standing())

    def settle_light(self, requested: CircuitSet) -> None:
        """Report the circuits that have light again, or are no longer requested.

        Args:
            requested: The circuits of the last request.
        """
        over = dict.fromkeys(map(str, self._lit()), "lit again")
        awaited = frozenset(map(str, requested)) - over.keys()
        for report in self.history.standing():
            if report.kind is not FailureKind.LIGHT or report.what in awaited:
                continue
            how = over.get(report.what, "no longer asked for")
            self.history.record_action(report, how)
            self.history.clear(partial(eq, report.failure))
            log.info("%s: %s", report.what, how)
            self.note_light("clear", report.what, how, self.history.clock_ns())

    def record_action(self, kinds: Collection[FailureKind], action: str) -> None:
        """Record an action for all failures of some kinds that are not cleared."""
        for report in self.history.standing():
            if report.kind in kinds and action not in report.action:
                self.history.record_action(report, action)


def _relays(circuits: Mapping[str, Circuit]) -> dict[str, str]:
    return {server: circuit.far_end(server).server for server, circuit in circuits.items()}
