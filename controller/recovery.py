"""Recovery of a region: its traffic goes round what has failed, and comes back when that works again.

In two parts. `heard` is for the moment: rules that use nothing which is out, whatever else is going on. `relay` is for when light may be moved: servers
whose electrical NICs are all out are reached through a peer.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from controller.failures import Condition, News, failures, relays, stands, whole
from controller.findings import Finding, Findings
from controller.reconcile import Reconciler
from moefabric.circuits import Circuit, CircuitSet
from moefabric.errors import ControlError
from moefabric.rules import RuleChange, server_rules
from moefabric.seams import PacketSwitches
from moefabric.topology import Fabric, Kind, Nic, Region

log = logging.getLogger(__name__)

TellEps = Callable[[Mapping[str, str]], None]
"""Has the EPS reach servers of the region by others, and all else directly. ControlError where its controller doesn't."""


def _nobody(_relays: Mapping[str, str]) -> None:
    """There is no EPS."""


class Recovery:
    """What a region's controller knows to be out, and what it has done about it."""

    def __init__(
        self,
        fabric: Fabric,
        region: Region,
        switches: PacketSwitches,
        reconciler: Reconciler | None,
        tell_eps: TellEps = _nobody,
        findings: Findings | None = None,
    ) -> None:
        """The switches have the rules of a fabric in which nothing is out."""
        self.fabric = fabric
        """The fabric, less what is out."""
        self.relays: dict[str, Circuit] = {}
        """By server, the circuit to the peer by which it is reached now."""
        self.findings = findings or Findings()
        self._wired, self._region, self._switches, self._reconciler = fabric, region, switches, reconciler
        self._tell_eps, self._condition = tell_eps, Condition()
        self._rules = server_rules(fabric, region)
        self._tried: frozenset[Nic] = frozenset()
        """NICs that lost their light, and may be lit again."""
        self._told: dict[str, str] = {}
        """What the EPS's controller has heard of them."""
        self._waiting: dict[str, list[int]] = {}
        """Findings, by server, that are over once it has a relay."""

    @property
    def held(self) -> CircuitSet:
        """The circuits that no plan may take."""
        return CircuitSet(frozenset(self.relays.values()))

    @property
    def doors(self) -> dict[str, str]:
        """By server, the peer by which it is reached now."""
        return {server: circuit.end_across(server).server for server, circuit in self.relays.items()}

    @property
    def has_light(self) -> bool:
        """Whether any optical NIC of the region works."""
        return any(self.fabric.usable_optical(server) for server in self._region.servers)

    # --- at once -------------------------------------------------------------------------------------------------------

    def heard(self, news: Sequence[News]) -> bool:
        """Something was told of NICs: send no traffic by those that are out. Whether light or relays should follow."""
        before = self._condition
        condition = self._condition = before.told(self._heeded(news))
        if condition == before:
            return False
        self._tried &= condition.dark & before.dark
        found = self.findings.detected(
            failures(self._wired, [self._region], before, condition), min(one.at_ns for one in news)
        )
        fault = self._follow(condition)
        for number in found:
            self._say(self._finding(number), fault)
        self._over(condition)
        optical = any(nic.kind is Kind.OPTICAL for nic in before.out ^ condition.out)
        return optical or self._needed() != self.relays

    def _heeded(self, news: Sequence[News]) -> list[News]:
        """The news, less of links that hang on light which nobody relied on."""
        lit = self._reconciler.lit if self._reconciler else CircuitSet()
        relied_on = {nic for circuit in lit for nic in (circuit.a, circuit.b)}
        return [one for one in news if one.up or not one.hangs or one.nic in relied_on]

    def try_again(self) -> None:
        """Plan with NICs again that lost their light: whether they would have it now can't be told before."""
        if self._condition.dark != self._tried:
            self._tried = self._condition.dark
            self._follow(self._condition)

    def _follow(self, condition: Condition) -> str:
        """Have the rules be those of what works; what went wrong with that."""
        out = condition.down | condition.failed | (condition.dark - self._tried)
        self.fabric = self._wired.without(out)
        self.relays = {server: c for server, c in self.relays.items() if whole([c], out)}
        light = RuleChange.between((), ())
        if self._reconciler:
            light = self._reconciler.shun(out, gone=not self.has_light)
        try:
            self._change(light)
        except ControlError as fault:
            log.warning("rules follow when switches are there again: %s", fault)
            return str(fault)
        return ""

    def _change(self, also: RuleChange | None = None) -> None:
        """Make the base rules those of now, and another change with them."""
        wanted = server_rules(self.fabric, self._region, self.relays)
        change, self._rules = RuleChange.between(self._rules, wanted), wanted
        if also:
            change = RuleChange(change.delete | also.delete, change.add | also.add)
        if change.delete or change.add:
            self._switches.change(change)

    def _finding(self, number: int) -> Finding:
        return next(one for one in self.findings.standing() if one.number == number)

    def _say(self, finding: Finding, fault: str) -> None:
        """Say what was done, if that is all there is to do."""
        if fault:
            self.findings.acted(finding.number, fault, recovered=False)
            return
        match finding.kind:
            case "electrical-nic":
                server = Nic.parse(finding.what).server
                if usable := self.fabric.usable_electrical(server):
                    self.findings.acted(finding.number, f"{server} sends by {_words(usable)}")
                else:
                    self._waiting.setdefault(server, []).append(finding.number)
            case "server":
                self.findings.acted(finding.number, "nobody sends it anything by light")
            case "ocs":
                self.findings.acted(finding.number, f"all of {self._region.name} is on the EPS")
            case _:
                self.findings.acted(finding.number, "its pair is on the EPS")

    def _over(self, condition: Condition) -> None:
        """What has failed and works again."""
        gone = self.findings.cleared(lambda one: not stands(self._wired, one.failure, condition))
        for finding in gone:
            for waiting in self._waiting.values():
                if finding.number in waiting:
                    waiting.remove(finding.number)

    # --- when light may be moved ---------------------------------------------------------------------------------------

    def _needed(self) -> dict[str, Circuit]:
        if self._reconciler is None:
            return {}
        return relays(self.fabric, self._region, self._reconciler.lit, self.relays)

    def wanted(self) -> CircuitSet:
        """The circuits that relays need, lit or not."""
        return CircuitSet(frozenset(self._needed().values()))

    def relay(self) -> None:
        """Send by relays whose circuits are lit, and by no others. Peers forward before the EPS sends them anything to forward.

        ControlError where a switch or the EPS's controller doesn't follow; the next call tries again.
        """
        lit = self._reconciler.lit if self._reconciler else CircuitSet()
        needed = {server: circuit for server, circuit in self._needed().items() if circuit in lit.circuits}
        doors = {server: circuit.end_across(server).server for server, circuit in needed.items()}
        if needed != self.relays:
            self.relays = needed
            self._change()
        if doors != self._told:
            self._tell_eps(doors)
            self._told = doors
        for server, circuit in needed.items():
            for number in self._waiting.pop(server, []):
                self.findings.acted(number, f"{doors[server]} relays for {server} over {circuit}")

    def told(self, kinds: Sequence[str], action: str) -> None:
        """Something was done about all failures of these kinds that stand."""
        for finding in self.findings.standing():
            if finding.kind in kinds and action not in finding.action:
                self.findings.acted(finding.number, action)


def _words(nics: Sequence[Nic]) -> str:
    return ", ".join(map(str, nics))
