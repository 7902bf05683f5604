"""Water: how long light and the EPS together take for a demand when bytes flow like water."""

from collections import Counter
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Self

import numpy as np
from numpy.typing import NDArray

from controller.planner.policy import counted, light_first
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.flows import Share, Split
from moefabric.fluid import goodput_share
from moefabric.topology import Fabric

Array = NDArray[np.float64]
Places = tuple[NDArray[np.intp], ...]
"""Rows and columns of chosen cells, as `numpy.nonzero` gives them."""


@dataclass(frozen=True)
class EpsLinks:
    """The EPS as water sees it: what each of its links carries of each pair's bytes.

    `under[leaf, server]` (the part of a server's traffic to other leaves that its NICs there carry) and `through[spine, server]` (the part of the
    traffic to a server that a spine carries) are 0 to 1. `budget` is what each
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
        under = np.array([_parts(fabric, leaf, servers) for leaf in fabric.leaves])
        spines = len(fabric.spines)
        through = np.zeros((spines, len(servers)))
        for number in range(fabric.electrical if spines else 0):
            for position, server in enumerate(servers):
                spine = number if fabric.electrical > 1 and not fabric.rails else fabric.index[server]
                through[spine % spines, position] += 1 / fabric.electrical
        # A server whose own are all out is reached over light to a peer, which relays for it: about one NIC's worth.
        usable = np.array(
            [max(min(1.0, fabric.electrical), len(fabric.usable_electrical(server))) for server in servers]
        )
        nics = np.tile(usable * fabric.nic_rate_bps * byte_rate, 2)
        uplinks = np.full(2 * spines * len(fabric.leaves), fabric.uplink_rate_bps * byte_rate)
        apart = np.array([[a != b for b in leaf_of] for a in leaf_of])
        return cls(under, through, apart, np.concatenate([nics, uplinks]))

    def loads(self, sent: Array) -> Array:
        """What each link carries of `sent[from, to]`: servers' sending and receiving NICs together, then leaf to spine, then spine to leaf."""
        nics = np.concatenate([sent.sum(axis=1), sent.sum(axis=0)])
        if not len(self.through):
            return nics
        between = np.where(self.apart, sent, 0.0)
        up = self.under @ between @ self.through.T
        down = (self.through * between.sum(axis=0)) @ self.under.T
        return np.concatenate([nics, up.ravel(), down.ravel()])

    def shares(self, senders: Places) -> Array:
        """[link, ordered pair]: which part of what each of these pairs (from, to) sends is on each link."""
        n, (source, to) = len(self.apart), senders
        each = np.arange(len(source))
        nics = np.zeros((2 * n, len(source)))
        nics[source, each] = nics[n + to, each] = 1.0
        between = self.apart[senders].astype(np.float64)
        up = self.under[:, None, source] * self.through[None, :, to] * between
        down = self.through[:, None, to] * self.under[None, :, to] * between
        return np.concatenate([nics, up.reshape(-1, len(source)), down.reshape(-1, len(source))])

    @property
    def mirrored(self) -> bool:
        """Whether a demand and its transpose take the same time: NICs alone, each as fast either way."""
        sending, receiving = np.split(self.budget[: 2 * len(self.apart)], 2)
        return not len(self.through) and bool((sending == receiving).all())

    def scaled(self, factor: float) -> Self:
        """The same links with budgets in another unit."""
        return replace(self, budget=self.budget * factor)


def _parts(fabric: Fabric, leaf: str, servers: tuple[str, ...]) -> list[float]:
    """The part of each server's electrical NICs that end on a leaf."""
    nics = Counter(nic.server for nic in fabric.nics_under(leaf))
    return [nics[server] / fabric.electrical for server in servers]


def seconds(owed: Array, light: Array, eps: EpsLinks, beside: Array | float = 0.0) -> float:
    """The least time in which light of `light[from, to]` bytes a second and the EPS carry `owed[from, to]` bytes between them.

    Infinite where a pair has neither. `beside` is what each link of the EPS, in the order of `EpsLinks.loads`, has to carry besides in that time, in bytes.

    In time T light takes up to `light * T` of a pair and the EPS gets the excess: never less for a longer T. Each EPS link's excess over its
    budget is then convex and falling in T, so Newton's steps come from below and end, exactly, once no pair's excess ends between two of them.
    """
    time = 0.0
    while True:
        excess = owed > light * time
        # A link's excess is linear while the same pairs spill: it is gone when T (budget + light of those pairs) is what they owe.
        due = eps.loads(np.where(excess, owed, 0.0)) + beside
        carried = eps.budget + eps.loads(np.where(excess, light, 0.0))
        needed = np.divide(due, carried, out=np.where(due > 0, np.inf, 0.0), where=carried > 0)
        later = max(time, float(needed.max(initial=0.0)))
        if later <= time * (1 + 1e-12) or later == inf:
            return later
        time = later


def circuit_rate(fabric: Fabric) -> float:
    """Bytes a second that one circuit carries each way, headers apart."""
    return fabric.nic_rate_bps * goodput_share(fabric.mtu) / 8


def off_diagonal(demand: DemandMatrix) -> Array:
    """Bytes owed between different servers."""
    owed: Array = demand.array - np.diag(np.diag(demand.array))
    return owed


def parted(fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
    """By light what it carries until all ends, by the EPS the rest: the best split over these circuits."""
    if not fabric.leaves:
        return light_first(demand, circuits)
    owed = off_diagonal(demand)
    light: Array = circuit_rate(fabric) * counted(demand.servers, circuits).astype(np.float64)
    end = seconds(owed, light, EpsLinks.of(fabric, demand.servers))
    by_light = np.minimum(owed, light * end) if isfinite(end) else np.where(light > 0, owed, 0.0)
    return Split(
        tuple(
            Share(
                demand.servers[i],
                demand.servers[j],
                float(by_light[i, j]),
                float(owed[i, j] - by_light[i, j]),
            )
            for i, j in zip(*(each.tolist() for each in np.nonzero(owed)), strict=True)
        )
    )
