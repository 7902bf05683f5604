"""Recovery of the EPS: its switches reach servers by the NICs that work, or by a relay."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from moefabric.controller.recovery.failure_history import FailureHistory
from moefabric.controller.recovery.failure_state import NicEvent, NicStates, new_failures, persists
from moefabric.core.errors import ControlError, SpecError
from moefabric.core.nic import Nic
from moefabric.core.protocols import PacketSwitches
from moefabric.core.rules import RuleChange, eps_rules_to
from moefabric.core.topology import Fabric

log = logging.getLogger(__name__)


@dataclass(eq=False)
class EpsRecovery:
    """Changes the rules of leaves and spines so that they use only NICs and relays that work.

    Attributes:
        wired: The fabric; the switches start with its rules.
        fabric: The fabric without the NICs that have failed.
    """

    wired: Fabric
    switches: PacketSwitches
    history: FailureHistory = field(default_factory=FailureHistory)
    region: ClassVar[None] = None
    reconciler: ClassVar[None] = None

    def __post_init__(self) -> None:
        """Begin with NICs that all work."""
        self.fabric, self._states = self.wired, NicStates()
        self._announced: dict[str, Mapping[str, str]] = {}
        """Relays by server, as each region announced them."""
        self._relays_in_rules: Mapping[str, str] = {}

    def handle_events(self, events: Sequence[NicEvent]) -> bool:
        """Change the rules after link changes at the leaves; return False: no circuits change."""
        before, now = self._states, self._states.after(events)
        if now == before:
            return False
        self._states = now
        failures = new_failures(self.wired, (), before, now)
        reports = self.history.add(failures, min(event.at_ns for event in events))
        earlier, self.fabric = self.fabric, self.wired.without_nics(now.out)
        fault = ""
        try:
            self._update_rules(earlier, {nic.server for nic in before.out ^ now.out})
        except ControlError as error:
            log.warning("absent switches get their rules when they reconnect: %s", error)
            fault = str(error)
        for report in reports:
            server = Nic.parse(report.what).server
            recovered = bool(self.fabric.usable_electrical(server)) or server in self.relays
            action = fault or self._describe_path(report.what)
            self.history.record_action(report, action, recovered=recovered and not fault)
        self.history.clear(lambda failure: not persists(self.wired, failure, now))
        return False

    def _describe_path(self, failed_nic: str) -> str:
        nic = Nic.parse(failed_nic)
        if usable := self.fabric.usable_electrical(nic.server):
            leaf = self.wired.eps_wiring.leaf_of_nic(nic)
            return f"{leaf} reaches {nic.server} by {', '.join(map(str, usable))}"
        relay = self.relays.get(nic.server)
        return f"{nic.server} is reached by {relay}" if relay else f"{nic.server} waits for a relay"

    def announce_relays(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Use the relays of a region, given as `region` and `relays`, instead of earlier ones.

        Raises:
            SpecError: if a server is not in the region.
            ControlError: if a switch doesn't confirm its rules.
        """
        name, relays = request.get("region"), request.get("relays")
        region = next((r for r in self.wired.regions if r.name == name), None)
        if region is None or not isinstance(relays, dict):
            raise SpecError([("region", "a region's name and its `relays` are needed")])
        if unknown := sorted({*relays, *relays.values()} - {*region.servers}):
            raise SpecError([("relays", f"{', '.join(unknown)}: not in {region.name}")])
        self._announced[region.name] = dict(relays)
        self._update_rules(self.fabric, {*region.servers})
        for report in self.history.standing():
            if report.recovered_ns is None and Nic.parse(report.what).server in self.relays:
                self.history.record_action(report, self._describe_path(report.what))
        return {"relays": self.relays}

    @property
    def relays(self) -> dict[str, str]:
        """The relay of each server that needs one."""
        return {
            server: relay
            for relays in self._announced.values()
            for server, relay in relays.items()
            if not self.fabric.usable_electrical(server)
        }

    def _update_rules(self, earlier: Fabric, servers: Collection[str]) -> None:
        """Change the rules toward some servers and toward the servers that these relay for."""
        relays_before, relays = self._relays_in_rules, self.relays
        self._relays_in_rules = relays
        relayed = (pair for pairs in (relays_before, relays) for pair in pairs.items())
        concerned = {*servers} | {server for server, relay in relayed if relay in servers}
        current = (rule for s in concerned for rule in eps_rules_to(earlier, s, relays_before))
        target = (rule for s in concerned for rule in eps_rules_to(self.fabric, s, relays))
        change = RuleChange.between(current, target)
        if change.delete or change.add:
            self.switches.apply(change)
