"""A fabric in memory whose controllers are told of failures: switches, optical switches and controllers without a process or a packet."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from threading import Lock

from controller.control import Control, Counter
from controller.eps_recovery import EpsRecovery
from controller.failures import News, whole
from controller.findings import Findings
from controller.reconcile import Reconciler
from controller.recovery import Recovery
from controller.southbound.memory_ocs import MemoryOcs
from controller.southbound.openflow.entries import Entry
from controller.southbound.openflow.memory import MemorySwitches
from moefabric.circuits import CircuitSet
from moefabric.errors import ControlError
from moefabric.fluid import Link
from moefabric.rules import Rule
from moefabric.topology import Fabric, Kind, Nic


class Watched(MemorySwitches):
    """Switches that can be looked at, as far as a controller asks that."""

    @property
    def switches(self) -> tuple[str, ...]:
        return self.fabric.switches

    @property
    def ready(self) -> tuple[str, ...]:
        return self.fabric.switches

    @property
    def rules(self) -> tuple[Rule, ...]:
        return ()

    def counters(self) -> Mapping[str, Sequence[Counter]]:
        return {}

    def entries(self) -> dict[str, set[Entry]]:
        """What each switch has."""
        return {switch: set(table.values()) for switch, table in self._tables.items()}


class Bench:
    """One fabric: a controller a region, one for the EPS, all on one clock that counts what is asked of it."""

    def __init__(self, wired: Fabric) -> None:
        self.fabric, self.now_ns = wired, 0
        self.eps_gone = False
        """Whether the EPS's controller answers nobody."""
        self.lock = Lock()
        """Held by whoever changes light."""
        self.switches = Watched(wired)
        self.eps = EpsRecovery(wired, self.switches, Findings(self.clock_ns))
        self.ocs: dict[str, MemoryOcs] = {}
        self.controls = {region.name: self._control(region.name) for region in wired.regions}
        self.out: frozenset[Nic] = frozenset()

    def clock_ns(self) -> int:
        self.now_ns += 1
        return self.now_ns

    def _control(self, name: str) -> Control:
        region = next(region for region in self.fabric.regions if region.name == name)
        reconciler = None
        if region.ocs is not None:
            ocs = self.ocs[name] = MemoryOcs(self.fabric, region)
            reconciler = Reconciler(ocs, self.switches, ocs.clock.now_s, probe=ocs)
        recovery = Recovery(
            self.fabric,
            region,
            self.switches,
            reconciler,
            partial(self._tell_eps, name),
            Findings(self.clock_ns),
        )
        return Control(self.fabric, region, self.switches, reconciler, recovery=recovery, lock=self.lock)

    def _tell_eps(self, region: str, relays: Mapping[str, str]) -> None:
        if self.eps_gone:
            raise ControlError("the EPS's controller: no answer")
        self.eps.relay({"region": region, "relays": dict(relays)})

    def recovery(self, name: str = "r0") -> Recovery:
        found = self.controls[name].recovery
        assert isinstance(found, Recovery)
        return found

    def lit(self, name: str = "r0") -> CircuitSet:
        return CircuitSet.of(self.controls[name].circuits()["circuits"])

    def hear(
        self,
        nics: Iterable[Nic | str],
        *,
        up: bool,
        relight: bool = True,
        port: bool = False,
        hangs: bool = False,
    ) -> None:
        """These NICs' links (or ports of the OCS) go or come; every controller concerned hears it, and moves light if that should follow."""
        changed = [Nic.parse(nic) if isinstance(nic, str) else nic for nic in nics]
        self.out = self.out.difference(changed) if up else self.out.union(changed)
        news = [News(nic, up, self.clock_ns(), port, hangs) for nic in changed]
        if electrical := [one for one in news if one.nic.kind is Kind.ELECTRICAL]:
            self.eps.heard(electrical)
        for name, control in self.controls.items():
            mine = [one for one in news if self.fabric.region_of[one.nic.server].name == name]
            if mine and control.recovery.heard(mine) and relight:
                control.relight()

    @property
    def light(self) -> CircuitSet:
        """What has light, of all regions."""
        return whole((c for ocs in self.ocs.values() if not ocs.gone for c in ocs.lit()), self.out)

    def way(self, source: str, to: str, path: str | None = None) -> tuple[Link, ...]:
        """The links that a packet crosses now; none if it is dropped."""
        return self.switches.way(source, to, path, self.light)
