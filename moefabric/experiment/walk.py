"""A walk through iterations with bytes like water: what every operation takes, what is lit, and what waits for light."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.experiment.diverting import diverted, light_after_s
from moefabric.experiment.sending import Policy, lit_together, planned_flows
from moefabric.flows import Flow
from moefabric.fluid import predict_regions
from moefabric.health import planned_for
from moefabric.iteration import Collective, Compute, Operation, Reconfigure
from moefabric.topology import Fabric


@dataclass(frozen=True)
class FirstSeen:
    """One region's part of a first forward all-to-all: how long it waited, how long it took, and would have with the light it deserves (`ideal_s`)."""

    region: str
    layer: int
    wait_s: float
    seconds: float
    ideal_s: float


@dataclass
class Walked:
    """One iteration: model seconds in all and of computing, every region's part of every all-to-all, bytes in all and by light, changes of light."""

    seconds: float = 0.0
    compute_s: float = 0.0
    collectives_s: list[float] = field(default_factory=list)
    firsts: list[FirstSeen] = field(default_factory=list)
    bytes: float = 0.0
    by_light: float = 0.0
    moves: int = 0


class Walk:
    """Iterations of a fabric under a policy, one after the other. Where the light doesn't move, it is `lit`; else it is at first."""

    def __init__(self, fabric: Fabric, policy: Policy, lit: CircuitSet, *, moves: bool) -> None:
        self.fabric, self.policy, self.lit, self._moves = fabric, policy, lit, moves
        self._after_s = light_after_s(fabric) if moves else {}
        self._now = self._ready = self._lit_at = 0.0

    def iteration(self, operations: Iterable[Operation]) -> Walked:
        """One iteration, as it goes in lockstep: what all regions do side by side takes as long as the slowest one's."""
        walked = Walked()
        start = self._ready = self._now = max(self._now, self._lit_at)
        for operation in operations:
            match operation:
                case Compute():
                    self._compute(walked, operation)
                case Reconfigure() if self._moves:
                    self._move(walked, operation, self._now)
                    self._now = max(self._now, self._lit_at)
                case Collective():
                    self._now = max(self._now, self._lit_at)
                    self._collective(walked, operation)
        walked.seconds = self._now - start
        return walked

    def target(self, demand: DemandMatrix) -> CircuitSet:
        """What the policy lights for a demand of all regions or of some, now."""
        asked = self._groups(demand)
        return lit_together(
            self.policy.circuits(self.fabric, region, planned_for(region.servers, demand), self.lit)
            for region in self.fabric.regions
            if region.ocs is not None and region.name in asked
        )

    def _groups(self, demand: DemandMatrix) -> dict[str, tuple[str, ...]]:
        """The regions whose servers a demand is of."""
        return {
            name: tuple(servers)
            for name, servers in self.fabric.groups.items()
            if not set(servers).isdisjoint(demand.servers)
        }

    def _compute(self, walked: Walked, operation: Compute) -> None:
        if operation.meanwhile is not None and self._moves:
            self._move(walked, operation.meanwhile, self._now)
        self._ready = self._now + operation.slowest_s
        self._now = max(self._ready, self._lit_at)
        walked.compute_s += operation.slowest_s

    def _move(
        self, walked: Walked, wanted: Reconfigure, start: float, regions: Iterable[str] | None = None
    ) -> None:
        """Light moves from then on, in these regions or in all, where what is wanted isn't lit."""
        chosen = set(self._after_s if regions is None else regions)
        home = self.fabric.region_of
        target = CircuitSet(
            frozenset(
                circuit
                for there, circuits in ((True, self.target(wanted.demand)), (False, self.lit))
                for circuit in circuits
                if (home[circuit.a.server].name in chosen) is there
            )
        )
        change = self.lit.towards(target)
        moving = {home[c.a.server].name for each in (change.teardown, change.setup) for c in each}
        walked.moves += len(moving)
        self.lit = target
        if moving:
            self._lit_at = max(self._lit_at, start + max(self._after_s[name] for name in moving))

    def _collective(self, walked: Walked, operation: Collective) -> None:
        ideal = self.ideal(operation) if operation.first else {}
        wait, start = self._now - self._ready, self._now
        if operation.meanwhile is not None and self._moves:
            sent, needed = self._diverted(walked, operation, operation.meanwhile)
        else:
            sent = planned_flows(self.fabric, self.policy, operation.demand, self.lit)
            told = predict_regions(self.fabric, self.lit, sent)
            needed = {name: prediction.seconds for name, prediction in told.items()}
            self._now = self._ready = start + max(needed.values(), default=0.0)
        walked.bytes += sum(flow.bytes for flow in sent)
        walked.by_light += sum(flow.bytes for flow in sent if flow.by_light)
        walked.collectives_s += needed.values()
        walked.firsts += [
            FirstSeen(name, operation.layer, wait, needed[name], seconds)
            for name, seconds in ideal.items()
            if name in needed
        ]

    def _diverted(
        self, walked: Walked, operation: Collective, wanted: Reconfigure
    ) -> tuple[tuple[Flow, ...], dict[str, float]]:
        plan = diverted(self.fabric, self.policy, operation.demand, self.lit, self._after_s)
        needed = {name: prediction.seconds for name, prediction in plan.predictions.items()}
        start, end = self._now, self._now + max(needed.values(), default=0.0)
        self._move(walked, wanted, start, plan.moving)
        self._move(walked, wanted, end, self._after_s.keys() - set(plan.moving))
        self._now = self._ready = end
        late = [
            Flow(share.src, share.dst, "o0", share.light_bytes)
            for part in plan.parts.values()
            for share in part.later
        ]
        return (*plan.now, *late), needed

    def ideal(self, operation: Collective) -> dict[str, float]:
        """What each region would need, were what its demand deserves lit."""
        lit, groups = (
            self.target(operation.demand) if self._moves else self.lit,
            self._groups(operation.demand),
        )
        planned = planned_flows(self.fabric, self.policy, operation.demand, lit, groups)
        return {name: p.seconds for name, p in predict_regions(self.fabric, lit, planned, groups).items()}
