"""Recovery of the EPS: leaves and spines reach servers by the NICs that work, or by the peer that a region's controller names."""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from controller.failures import Condition, News, failures, stands
from controller.findings import Findings
from moefabric.errors import ControlError, SpecError
from moefabric.rules import RuleChange, eps_rules_to
from moefabric.seams import PacketSwitches
from moefabric.topology import Fabric, Nic

log = logging.getLogger(__name__)


class EpsRecovery:
    """What the EPS's controller knows to be out, and by whom servers are reached whose NICs are all out."""

    def __init__(self, fabric: Fabric, switches: PacketSwitches, findings: Findings | None = None) -> None:
        """The switches have the rules of a fabric in which nothing is out."""
        self.fabric, self.findings = fabric, findings or Findings()
        self._wired, self._switches, self._condition = fabric, switches, Condition()
        self._relays: dict[str, Mapping[str, str]] = {}
        self._reached: Mapping[str, str] = {}
        """The relays that the rules are those of, with the fabric above."""

    def heard(self, news: Sequence[News]) -> None:
        """Links of NICs came or went at the leaves."""
        before = self._condition
        condition = self._condition = before.told(news)
        if condition == before:
            return
        found = self.findings.detected(
            failures(self._wired, (), before, condition), min(one.at_ns for one in news)
        )
        wired, self.fabric = self.fabric, self._wired.without(condition.out)
        try:
            self._follow(wired, {nic.server for nic in before.out ^ condition.out})
            said = ""
        except ControlError as fault:
            log.warning("rules follow when switches are there again: %s", fault)
            said = str(fault)
        for finding in [one for one in self.findings.standing() if one.number in found]:
            server = Nic.parse(finding.what).server
            reached = bool(self.fabric.usable_electrical(server)) or server in self.relays
            self.findings.acted(
                finding.number, said or self._action(finding.what), recovered=reached and not said
            )
        self.findings.cleared(lambda one: not stands(self._wired, one.failure, condition))

    def _action(self, what: str) -> str:
        nic = Nic.parse(what)
        usable = self.fabric.usable_electrical(nic.server)
        if usable:
            return f"{self._wired.leaf_of_nic(nic)} reaches {nic.server} by {', '.join(map(str, usable))}"
        peer = self.relays.get(nic.server)
        return f"{nic.server} is reached by {peer}" if peer else f"{nic.server} waits for a relay"

    def relay(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """A region says by whom its servers are reached whose NICs are all out: `region`, and `relays`, a peer by server; what isn't there is over.

        SpecError where there are none such, ControlError where a switch doesn't follow.
        """
        region = next((r for r in self._wired.regions if r.name == asked.get("region")), None)
        told = asked.get("relays")
        if region is None or not isinstance(told, dict):
            raise SpecError([("region", "a region's name and its `relays` are needed")])
        if strange := sorted({*told, *told.values()} - {*region.servers}):
            raise SpecError([("relays", f"{', '.join(strange)}: not in {region.name}")])
        self._relays[region.name] = dict(told)
        self._follow(self.fabric, {*region.servers})
        for finding in self.findings.standing():
            server = Nic.parse(finding.what).server
            if finding.recovered_ns is None and server in self.relays:
                self.findings.acted(finding.number, self._action(finding.what))
        return {"relays": self.relays}

    @property
    def relays(self) -> dict[str, str]:
        """By server, the peer by which it is reached."""
        told = {server: peer for each in self._relays.values() for server, peer in each.items()}
        return {server: peer for server, peer in told.items() if not self.fabric.usable_electrical(server)}

    def _follow(self, before: Fabric, about: Collection[str]) -> None:
        """Have the rules about some servers, and those that are reached by them, be those of now."""
        reached, relays = self._reached, self.relays
        self._reached = relays
        concerned = {*about} | {s for told in (reached, relays) for s, door in told.items() if door in about}
        now = (rule for s in concerned for rule in eps_rules_to(before, s, reached))
        wanted = (rule for s in concerned for rule in eps_rules_to(self.fabric, s, relays))
        change = RuleChange.between(now, wanted)
        if change.delete or change.add:
            self._switches.change(change)
