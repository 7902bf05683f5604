"""Partial offload: a collective starts at once; its new circuits carry the rest when lit."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Flow, PacedFlow, consolidated_flows, flows
from moefabric.core.topology import Fabric, circuit_rate_bps
from moefabric.planner.delayed_split import DelayedSplit, best_split
from moefabric.planner.moving_circuits import moving_s
from moefabric.planner.sending.flow_pacing import SplitPolicy, merge_circuits, pace_flows
from moefabric.planner.sending.task_flows import Groups, TaskFlows, region_by_server, with_counts
from moefabric.simulator.fluid import goodput_share, predict, predict_regions
from moefabric.simulator.server_times import gather_and_scatter
from moefabric.workload.models.model import CountExchange


@dataclass(frozen=True)
class PartialOffload:
    """The flows that start at once, and the part of each region that waits for new circuits.

    The predictions of `early` include the late bytes of a region.
    """

    parts: Mapping[str, DelayedSplit]
    early: TaskFlows

    @property
    def reconfigured_regions(self) -> tuple[str, ...]:
        """The regions whose circuits change when the collective starts.

        The circuits of other regions change afterwards, if they have to.
        """
        return tuple(region for region, part in self.parts.items() if part.moves)

    def target(self, region: str) -> CircuitSet:
        """Return the circuits of a region once the change is done."""
        part = self.parts[region]
        return CircuitSet(part.kept.circuits | part.new.circuits)

    def late_flows(self, region: str, circuits: CircuitSet) -> TaskFlows | None:
        """Return the flows that a region left for new circuits; None if there are none.

        Pairs without a new circuit use the EPS. The late flows end with all others, or later
        if they need longer.
        """
        fabric, part = self.early.fabric, self.parts[region]
        new = CircuitSet(circuits.circuits - part.kept.circuits)
        shares = [
            share
            if new.between(share.src, share.dst)
            else replace(share, light_bytes=0.0, eps_bytes=share.light_bytes)
            for share in part.later
        ]
        late = flows(fabric, new, shares)
        if not late:
            return None
        alone = predict(fabric, circuits, late)
        left_s = self.early.predictions[region].seconds - part.after_s
        prediction = replace(alone, seconds=max(alone.seconds, left_s))
        early = self.early
        return replace(early, flows=late, circuits=circuits, predictions={region: prediction})


def circuits_after_s(fabric: Fabric, control_s: float) -> dict[str, float]:
    """Return the model seconds of a reconfiguration by region, given those of the control plane."""
    return {region.name: control_s + moving_s(fabric, region) for region in fabric.ocses}


def plan_partial_offload(
    fabric: Fabric,
    policy: SplitPolicy,
    demand: DemandMatrix,
    circuits: CircuitSet,
    after_s: Mapping[str, float],
    groups: Groups,
    *,
    greedy: bool = False,
    counts: CountExchange | None = None,
) -> PartialOffload | None:
    """Return the split that ends soonest while circuits change; None if nothing is owed.

    Args:
        fabric: The fabric that carries the bytes.
        policy: Chooses the new circuits.
        demand: Bytes between the servers of all `groups`.
        circuits: The lit circuits of these regions.
        after_s: Model seconds until new circuits carry traffic; regions without an entry keep
            their lit circuits.
        groups: The servers that work for each region.
        greedy: Whether congestion control alone sets the rates of flows; they are not consolidated.
        counts: The exchange of token counts before the first byte; None without one.
    """
    regions = {region.name: region for region in fabric.regions}
    parts: dict[str, DelayedSplit] = {}
    early: list[Flow] = []
    late: list[Flow] = []
    for name, servers in groups.items():
        region = regions[name]
        lit = CircuitSet(frozenset(c for c in circuits if c.a.server in region.servers))
        target = lit
        if name in after_s:
            target = policy.circuits(fabric, region, demand.within(region.servers), lit)
        owed = demand.submatrix(servers)
        part = best_split(fabric, owed, lit, target, after_s.get(name, 0.0))
        if now := flows(fabric, part.kept, part.now):
            parts[name] = part
            early += now if greedy else consolidated_flows(fabric, now)
            late += flows(fabric, part.new, part.later)
    if not early:
        return None
    region_of = region_by_server(groups)
    predictions = {
        name: replace(prediction, seconds=max(prediction.seconds, parts[name].seconds))
        for name, prediction in predict_regions(fabric, circuits, early, region_of).items()
    }
    used = merge_circuits(one for part in parts.values() for one in (part.kept, part.new))
    server = with_counts(fabric, gather_and_scatter(fabric, used, [*early, *late]), counts)
    sent = TaskFlows(fabric, tuple(early), circuits, predictions, region_of, server)
    return PartialOffload(parts, sent)


def pace_late_flows(
    fabric: Fabric, late: TaskFlows, left_s: float, *, greedy: bool = False
) -> list[PacedFlow]:
    """Return the late transfers of a region.

    Optical flows end in `left_s` model seconds, or run at their circuit's rate if that takes
    longer. Flows over the EPS are paced as if no other flows used it.
    """
    share = goodput_share(fabric.mtu)
    eps = [flow for flow in late.flows if not flow.is_optical]
    eps_s = predict(fabric, CircuitSet(), eps).seconds
    seconds = [
        max(8 * flow.bytes / (circuit_rate_bps(fabric, flow.src, flow.dst) * share), left_s)
        if flow.is_optical
        else eps_s
        for flow in late.flows
    ]
    return pace_flows(fabric, late.flows, seconds, greedy=greedy)
