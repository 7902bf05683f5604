"""A collective that starts while its light is on its way: what goes at once, over the EPS and what stays lit, and what new light takes later."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controller.planner import delayed
from controller.planner.delayed import Delayed
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.experiment.sending import PacedFlow, Policy, pace_bps
from moefabric.flows import Flow, flows
from moefabric.fluid import Prediction, goodput_share, predict, predict_regions
from moefabric.health import planned_for
from moefabric.spread import on_few_nics
from moefabric.topology import Fabric
from moefabric.units import NS_PER_S


@dataclass(frozen=True)
class Diverted:
    """A collective, parted by what it can have: each region's `parts`, the flows that start at once, and when each region's bytes end, late ones included."""

    parts: Mapping[str, Delayed]
    now: tuple[Flow, ...]
    predictions: Mapping[str, Prediction]

    @property
    def moving(self) -> tuple[str, ...]:
        """The regions whose light moves at the start; that of the others moves, if it has to, when their bytes have ended."""
        return tuple(region for region, part in self.parts.items() if part.moves)


def light_after_s(fabric: Fabric, overhead_s: float = 0.0) -> dict[str, float]:
    """Model seconds after which new light may be used, by region: what its OCS and optics take, and `overhead_s` wall seconds of controlling."""
    return {
        region.name: ((region.ocs.settle_ns + region.ocs.link_up_ns) / NS_PER_S + overhead_s)
        / fabric.scale.dilation
        for region in fabric.regions
        if region.ocs is not None
    }


def diverted(
    fabric: Fabric,
    policy: Policy,
    demand: DemandMatrix,
    lit: CircuitSet,
    after_s: Mapping[str, float],
    groups: Mapping[str, Sequence[str]] | None = None,
) -> Diverted:
    """The best that a demand of all regions can do while the light that `policy` wants for it is on its way; regions not in `after_s` have none to come."""
    parts: dict[str, Delayed] = {}
    made: list[Flow] = []
    for name, servers in (fabric.groups if groups is None else groups).items():
        part = _part(fabric, policy, name, demand.of(servers), lit, after_s)
        light = part.kept if part.moves else lit
        mine = on_few_nics(fabric, flows(fabric, light, part.now))
        if mine:
            parts[name] = part
            made += mine
    told = predict_regions(fabric, lit, made, groups)
    return Diverted(
        parts,
        tuple(made),
        {
            name: replace(prediction, seconds=max(prediction.seconds, parts[name].seconds))
            for name, prediction in told.items()
        },
    )


def _part(
    fabric: Fabric,
    policy: Policy,
    name: str,
    demand: DemandMatrix,
    lit: CircuitSet,
    after_s: Mapping[str, float],
) -> Delayed:
    region = next(region for region in fabric.regions if region.name == name)
    here = CircuitSet(frozenset(circuit for circuit in lit if circuit.a.server in region.servers))
    if name not in after_s:
        return delayed.stayed(fabric, demand, here)
    target = policy.circuits(fabric, region, planned_for(region.servers, demand), here)
    return delayed.soonest(fabric, demand, here, target, after_s[name])


def late_flows(fabric: Fabric, plan: Diverted, lit: CircuitSet) -> tuple[Flow, ...]:
    """What was left for new light, now that `lit` is: over its new circuits, and over the EPS where a pair has none of those."""
    made: list[Flow] = []
    for part in plan.parts.values():
        new = CircuitSet(lit.circuits - part.kept.circuits)
        shares = [
            share
            if new.between(share.src, share.dst)
            else replace(share, light_bytes=0.0, eps_bytes=share.light_bytes)
            for share in part.later
        ]
        made += flows(fabric, new, shares)
    return tuple(made)


def late_paced(
    fabric: Fabric, planned: Sequence[Flow], left_s: Mapping[str, float], *, greedily: bool = False
) -> list[PacedFlow]:
    """Late flows as agents are told them.

    By light, at a pace at which they end in `left_s` (model seconds, by region), or the circuit's if that is less; by the EPS, as if they had it for
    themselves.
    """
    scale, share = fabric.scale, goodput_share(fabric.mtu)
    eps_s = predict(fabric, CircuitSet(), [flow for flow in planned if not flow.by_light]).seconds
    made = []
    for flow in sorted(planned, key=lambda flow: -flow.bytes):
        alone_s = 8 * flow.bytes / (fabric.nic_rate_bps * share)
        seconds = max(alone_s, left_s[fabric.region_of[flow.src].name]) if flow.by_light else eps_s
        size = scale.size_bytes(flow.bytes)
        rate = None if greedily else pace_bps(fabric, size, seconds * scale.dilation)
        made.append(PacedFlow(flow.src, flow.dst, flow.path, size, rate))
    return made
