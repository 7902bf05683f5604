"""Splits in which servers forward for each other, over the circuits of any policy."""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from typing import Final

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Share, Split
from moefabric.core.forwarding import forwarding_trees
from moefabric.core.paths import relay_lanes
from moefabric.core.topology import Fabric, Region
from moefabric.planner.even_circuits import EVEN
from moefabric.planner.mixnet import MIXNET
from moefabric.planner.policy import Policy, PolicyTraits
from moefabric.planner.relay_linear_program import RelayLinearProgram, RelaySplit
from moefabric.planner.waterfill import (
    EpsLinks,
    circuit_rates,
    completion_s,
    nic_rates,
    off_diagonal,
    optimal_split,
)
from moefabric.simulator.fluid import goodput_share

_ROUNDING: Final = 1e-9
"""Relative distance from a bound that counts as a rounding error."""


def multihop_split(fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
    """Split a demand over circuits, the EPS and relay trees, so that all end as soon as possible.

    Of splits that end equally soon, the one that forwards least is returned. No byte is forwarded
    if circuits and the EPS alone reach the bound that the NICs of the servers set.

    Args:
        fabric: The wired fabric. Servers forward only if `fabric.forwarding` is set.

    Returns:
        The split; its time is at most a hundredth above the least over circuits, EPS and trees.
    """
    lit = _circuits_of(fabric, demand, circuits)
    if not fabric.forwarding or not lit:
        return optimal_split(fabric, demand, circuits)
    spill_s, split = _relay_split(fabric, demand, lit)
    if split is None or spill_s <= split.seconds < inf:
        return optimal_split(fabric, demand, lit)
    return shares(demand, split)


def least_s(fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> float:
    """Return the time at which the split of `multihop_split` ends."""
    spill_s, split = _relay_split(fabric, demand, _circuits_of(fabric, demand, circuits))
    return spill_s if split is None else min(spill_s, split.seconds)


def _circuits_of(fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> CircuitSet:
    """Return the circuits of the regions of a demand."""
    regions = {fabric.region_of[server].name for server in demand.servers}
    inner = [c for c in circuits.circuits if fabric.region_of[c.a.server].name in regions]
    return CircuitSet(frozenset(inner)) if len(inner) < len(circuits) else circuits


def _relay_split(
    fabric: Fabric, demand: DemandMatrix, lit: CircuitSet
) -> tuple[float, RelaySplit | None]:
    """Return the time of the split without forwarding, and the split with forwarding.

    Without an EPS, the time is infinite. The split is None if the time without forwarding reaches
    the bound that the NICs of the servers set.
    """
    lp, owed, spill_s = relay_linear_program(fabric, demand.servers, lit), off_diagonal(demand), inf
    if fabric.leaves:
        light = circuit_rates(fabric, demand.servers, lit)
        spill_s = completion_s(owed, light, EpsLinks.of(fabric, demand.servers))
    reached = spill_s <= lp.bound_s(owed) * (1 + _ROUNDING)
    return spill_s, None if reached else lp.split(owed)


@lru_cache(maxsize=64)
def relay_linear_program(
    fabric: Fabric, servers: tuple[str, ...], circuits: CircuitSet
) -> RelayLinearProgram:
    """Return the linear program of some servers of a fabric and their circuits."""
    eps = EpsLinks.of(fabric, servers) if fabric.leaves else None
    rate_bps = fabric.forwarding_rate_bps
    forwarding_rate = rate_bps * goodput_share(fabric.mtu) / 8 if rate_bps else None
    lanes = max(relay_lanes(fabric, fabric.region_of[server]) for server in servers)
    trees = forwarding_trees(fabric, circuits, servers, lanes)
    names = fabric.servers
    rates = dict(zip(names, nic_rates(fabric, names).tolist(), strict=True))
    return RelayLinearProgram(servers, circuits, trees, rates, eps, forwarding_rate, lanes)


def shares(demand: DemandMatrix, split: RelaySplit) -> Split:
    """Return the shares of the pairs that owe something."""
    lanes = defaultdict[tuple[int, int], dict[tuple[str, int], float]](dict)
    for (i, j, root, lane), size in sorted(split.forwarded.items()):
        lanes[i, j][root, lane] = size
    parts = []
    for src, dst, _ in demand.pairs():
        pair = demand.index[src], demand.index[dst]
        light, eps = float(split.light[pair]), float(split.eps[pair])
        parts.append(Share.over(src, dst, light, eps, lanes[pair]))
    return Split(tuple(parts))


@dataclass(frozen=True)
class Multihop(PolicyTraits):
    """The circuits of another policy, with the split in which servers forward.

    Attributes:
        name: The name that specifications use.
        lighting: The policy that chooses circuits.
    """

    name: str
    lighting: Policy
    forwards: bool = field(default=True, kw_only=True)
    splits_by_demand: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        """Take over from the other policy when circuits change and whether panels suit it."""
        for trait in ("reconfigures", "suits_patch_panel"):
            object.__setattr__(self, trait, getattr(self.lighting, trait))

    def circuits(
        self, fabric: Fabric, region: Region, demand: DemandMatrix, current: CircuitSet
    ) -> CircuitSet:
        """Choose the circuits of the other policy."""
        return self.lighting.circuits(fabric, region, demand, current)

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        """Split over circuits, the EPS and relay trees, so that all end as soon as possible."""
        return multihop_split(fabric, demand, circuits)


MULTIHOP: Final = Multihop("multihop", EVEN)
"""Circuits that are spread evenly and lit once."""

MIXNET_MULTIHOP: Final = Multihop("mixnet-multihop", MIXNET)
"""The circuits of Algorithm 1."""
