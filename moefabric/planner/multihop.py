"""Splits in which servers forward for each other, over the circuits of any policy."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from math import inf
from typing import Final

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Share, Split
from moefabric.core.forwarding import forwarding_trees
from moefabric.core.topology import Fabric, Region
from moefabric.planner.even_circuits import EVEN
from moefabric.planner.mixnet import MIXNET
from moefabric.planner.policy import Policy
from moefabric.planner.relay_program import RelayProgram, RelaySplit
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
        demand: Bytes between servers.
        circuits: Circuits that are lit.

    Returns:
        The split; its time is at most a thousandth above the least.
    """
    lit = _own(fabric, demand, circuits)
    if not fabric.forwarding or not lit:
        return optimal_split(fabric, demand, circuits)
    spill_s, split = _relay_split(fabric, demand, lit)
    if split is None or spill_s <= split.seconds < inf:
        return optimal_split(fabric, demand, lit)
    return shares(demand, split)


def least_s(fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> float:
    """Return when the split of `multihop_split` ends."""
    spill_s, split = _relay_split(fabric, demand, _own(fabric, demand, circuits))
    return spill_s if split is None else min(spill_s, split.seconds)


def _own(fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> CircuitSet:
    """Return the circuits of the regions of a demand."""
    regions = {fabric.region_of[server].name for server in demand.servers}
    own = [c for c in circuits.circuits if fabric.region_of[c.a.server].name in regions]
    return CircuitSet(frozenset(own)) if len(own) < len(circuits) else circuits


def _relay_split(
    fabric: Fabric, demand: DemandMatrix, lit: CircuitSet
) -> tuple[float, RelaySplit | None]:
    """Return when the spill split ends, infinite without an EPS, and the split with forwarding.

    The latter is None if the former reaches the bound that the NICs of the servers set.
    """
    program, owed, spill_s = relay_program(fabric, demand.servers, lit), off_diagonal(demand), inf
    if fabric.leaves:
        light = circuit_rates(fabric, demand.servers, lit)
        spill_s = completion_s(owed, light, EpsLinks.of(fabric, demand.servers))
    reached = spill_s <= program.bound_s(owed) * (1 + _ROUNDING)
    return spill_s, None if reached else program.split(owed)


@lru_cache(maxsize=64)
def relay_program(fabric: Fabric, servers: tuple[str, ...], circuits: CircuitSet) -> RelayProgram:
    """Return the program of some servers of a fabric and their circuits."""
    eps = EpsLinks.of(fabric, servers) if fabric.leaves else None
    rate_bps = fabric.forwarding_rate_bps
    forwarding_rate = rate_bps * goodput_share(fabric.mtu) / 8 if rate_bps else None
    trees = forwarding_trees(fabric, circuits, servers)
    names = fabric.servers
    rates = dict(zip(names, nic_rates(fabric, names).tolist(), strict=True))
    return RelayProgram(servers, circuits, trees, rates, eps, forwarding_rate)


def shares(demand: DemandMatrix, split: RelaySplit) -> Split:
    """Return the shares of the pairs that owe something."""
    servers = demand.servers
    by_pair = {
        pair: tuple((root, size) for (_, _, root), size in forwarded)
        for pair, forwarded in groupby(sorted(split.forwarded.items()), lambda item: item[0][:2])
    }
    number = {server: position for position, server in enumerate(servers)}
    parts = []
    for src, dst, _ in demand.pairs():
        pair = number[src], number[dst]
        light, eps = float(split.light[pair]), float(split.eps[pair])
        parts.append(Share(src, dst, light, eps, forwarded=by_pair.get(pair, ())))
    return Split(tuple(parts))


@dataclass(frozen=True)
class Multihop:
    """The circuits of another policy, with the split in which servers forward.

    Attributes:
        name: The name that specifications use.
        lighting: The policy that chooses circuits.
    """

    name: str
    lighting: Policy

    @property
    def reconfigures(self) -> bool:
        """Whether circuits change while a job runs."""
        return self.lighting.reconfigures

    @property
    def forwards(self) -> bool:
        """Whether the split sends bytes through other servers: it does."""
        return True

    @property
    def splits_by_demand(self) -> bool:
        """Whether the split divides a pair's bytes by the demand of all pairs: it does."""
        return True

    @property
    def suits_patch_panel(self) -> bool:
        """Whether the circuits are set once and connect servers without an EPS."""
        return self.lighting.suits_patch_panel

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
