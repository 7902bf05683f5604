"""Spill: MixNet's circuits, and each pair's bytes split over its light and the EPS so that all of them end together."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from controller.planner.mixnet import MixNet
from controller.planner.policy import counted, light_first
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.flows import Share, Split
from moefabric.fluid import goodput_share
from moefabric.topology import Fabric, Region

Array = NDArray[np.float64]


@dataclass(frozen=True)
class _Eps:
    """The EPS as water sees it: what each of its links carries of each pair's bytes.

    `under[leaf, server]` and `through[spine, server]` (the part of the traffic to a server that a spine carries) are 0 to 1. `budget` is what each
    link, in the order of `loads`, carries in bytes a second.
    """

    under: Array
    through: Array
    apart: NDArray[np.bool_]
    budget: Array

    @classmethod
    def of(cls, fabric: Fabric, servers: tuple[str, ...]) -> Self:
        """The EPS between these servers, with the routes of `moefabric.fluid`."""
        byte_rate = goodput_share(fabric.mtu) / 8
        leaf_of = [fabric.leaf_of(server) for server in servers]
        under = np.array([[float(leaf == mine) for mine in leaf_of] for leaf in fabric.leaves])
        spines = len(fabric.spines)
        through = np.zeros((spines, len(servers)))
        for number in range(fabric.electrical if spines else 0):
            for position, server in enumerate(servers):
                spine = number if fabric.electrical > 1 else fabric.index[server]
                through[spine % spines, position] += 1 / fabric.electrical
        nics = np.full(2 * len(servers), fabric.electrical * fabric.nic_rate_bps * byte_rate)
        uplinks = np.full(2 * spines * len(fabric.leaves), fabric.uplink_rate_bps * byte_rate)
        apart = np.array([[a != b for b in leaf_of] for a in leaf_of])
        return cls(under, through, apart, np.concatenate([nics, uplinks]))

    def loads(self, sent: Array) -> Array:
        """What each link carries of `sent[from, to]`: servers' sending and receiving NICs together, then leaf to spine, then spine to leaf."""
        between = np.where(self.apart, sent, 0.0)
        up = self.under @ between @ self.through.T
        down = (self.through * between.sum(axis=0)) @ self.under.T
        return np.concatenate([sent.sum(axis=1), sent.sum(axis=0), up.ravel(), down.ravel()])


def seconds(owed: Array, light: Array, eps: _Eps) -> float:
    """The least time in which light of `light[from, to]` bytes a second and the EPS carry `owed[from, to]` bytes between them.

    In time T light takes up to `light * T` of a pair and the EPS gets the excess: never less for a longer T. Each EPS link's excess over its
    budget is then convex and falling in T, so Newton's steps come from below and end, exactly, once no pair's excess ends between two of them.
    """
    time = 0.0
    while True:
        excess = owed > light * time
        # A link's excess is linear while the same pairs spill: it is gone when T (budget + light of those pairs) is what they owe.
        needed = eps.loads(np.where(excess, owed, 0.0)) / (
            eps.budget + eps.loads(np.where(excess, light, 0.0))
        )
        later = max(time, float(needed.max(initial=0.0)))
        if later <= time * (1 + 1e-12):
            return later
        time = later


@dataclass(frozen=True)
class Spill:
    """Algorithm 1's circuits; what light can't carry in time spills over to the EPS. Optimal for its circuits in the fluid model."""

    name: str = "spill"

    def circuits(self, fabric: Fabric, region: Region, demand: DemandMatrix, now: CircuitSet) -> CircuitSet:
        """The circuits of Algorithm 1."""
        return MixNet().circuits(fabric, region, demand, now)

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        """By light what it carries until all ends, by the EPS the rest."""
        if not fabric.leaves:
            return light_first(demand, circuits)
        owed: Array = demand.array - np.diag(np.diag(demand.array))
        rate = fabric.nic_rate_bps * goodput_share(fabric.mtu) / 8
        light: Array = rate * counted(demand.servers, circuits).astype(np.float64)
        end = seconds(owed, light, _Eps.of(fabric, demand.servers))
        by_light = np.minimum(owed, light * end)
        return Split(
            tuple(
                Share(
                    demand.servers[i],
                    demand.servers[j],
                    float(by_light[i, j]),
                    float(owed[i, j] - by_light[i, j]),
                )
                for i, j in zip(*np.nonzero(owed), strict=True)
            )
        )
