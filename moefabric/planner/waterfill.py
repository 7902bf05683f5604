"""Water-filling: the least time in which circuits and the EPS carry a demand together.

Circuits carry as much of each pair's bytes as they can until the end, the EPS carries the excess,
and both end together. `EpsLinks` has the routes of `moefabric.core.routes` as matrices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite
from typing import Self

import numpy as np
from numpy.typing import NDArray

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Share, Split
from moefabric.core.topology import Fabric, uplink_rate_bps
from moefabric.planner.arrays import Array, circuit_matrix
from moefabric.simulator.fluid import goodput_share

Rates = Array | float
"""Bytes per second of an optical NIC: one number, or one for each server."""


@dataclass(frozen=True)
class EpsLinks:
    """The links of the EPS, each as fast in one direction as in the other.

    A pair's bytes are spread evenly over NICs and spines (`moefabric.core.paths`), so the NICs of a
    server are one link, and so are the uplinks of a pod. A demand and its transpose therefore take
    the same time.

    Attributes:
        nics: Payload of each server's electrical NICs together, in bytes per second.
        pod: Each server's pod: the servers that reach each other without a spine.
        uplinks: Payload of each pod's uplinks together; empty if there are no spines.
    """

    nics: Array
    pod: NDArray[np.intp]
    uplinks: Array

    @classmethod
    def of(cls, fabric: Fabric, servers: tuple[str, ...]) -> Self:
        """Return the EPS links of a fabric between some of its servers."""
        byte_rate = goodput_share(fabric.mtu) / 8
        # A relay forwards for a server without usable electrical NICs, at about one NIC's rate.
        least = min(1.0, fabric.electrical)
        usable = np.array([max(least, len(fabric.usable_electrical(server))) for server in servers])
        eps = fabric.eps_wiring
        first_leaves, pod = np.unique([eps.leaf_of(s) for s in servers], return_inverse=True)
        links = uplink_rate_bps(fabric) * len(eps.spines) * eps.leaves_per_pod
        uplinks = np.full(len(first_leaves) if fabric.spines else 0, links * byte_rate)
        rates = np.array([fabric.rate_bps(server) for server in servers])
        return cls(usable * rates * byte_rate, pod, uplinks)

    @classmethod
    def one_leaf(cls, nics: Array) -> Self:
        """Return a non-blocking EPS with these bytes per second of each server's NICs."""
        return cls(nics, np.zeros(len(nics), dtype=np.intp), np.zeros(0))

    @cached_property
    def budget(self) -> Array:
        """Bytes per second of each link, in the order of `loads`."""
        return np.concatenate([self.nics, self.nics, self.uplinks, self.uplinks])

    def loads(self, sent: Array) -> Array:
        """Return the load of each link.

        Args:
            sent: Bytes over the EPS [from, to].

        Returns:
            Bytes of each server's NICs, sending, then receiving; then of each pod's uplinks, up,
            then down.
        """
        nics = np.concatenate([sent.sum(axis=1), sent.sum(axis=0)])
        pods = len(self.uplinks)
        if not pods:
            return nics
        between = np.where(self.pod[:, None] != self.pod, sent, 0.0)
        up, down = (np.bincount(self.pod, between.sum(axis=axis), pods) for axis in (1, 0))
        return np.concatenate([nics, up, down])


def completion_s(owed: Array, light: Array, eps: EpsLinks, extra: Array | float = 0.0) -> float:
    """Return the least time in which circuits and the EPS carry a demand between them.

    In time T, circuits take up to `light * T` of a pair and the EPS gets the excess, which never
    grows with T. The excess of each EPS link over its budget is then convex and falling in T.
    Newton's method therefore approaches the result from below. It reaches the exact result once no
    pair's excess vanishes between two steps.

    Args:
        owed: Bytes [from, to].
        light: Bytes per second of each pair's circuits [from, to].
        extra: Bytes that each EPS link, in the order of `EpsLinks.loads`, has to carry in addition.

    Returns:
        Seconds; infinite if a pair has neither circuits nor the EPS.
    """
    time = 0.0
    while True:
        excess = owed > light * time
        # A link's excess is linear while the same pairs spill. It vanishes when
        # T * (budget + circuits of those pairs) equals the bytes that they owe.
        due = eps.loads(np.where(excess, owed, 0.0)) + extra
        carried = eps.budget + eps.loads(np.where(excess, light, 0.0))
        needed = np.divide(due, carried, out=np.where(due > 0, np.inf, 0.0), where=carried > 0)
        later = max(time, float(needed.max(initial=0.0)))
        if later <= time * (1 + 1e-12) or later == inf:
            return later
        time = later


def nic_rates(fabric: Fabric, servers: Sequence[str]) -> Array:
    """Return the payload in bytes per second that a NIC of each server carries."""
    share = goodput_share(fabric.mtu)
    return np.array([fabric.rate_bps(server) * share / 8 for server in servers])


def pair_rates(rates: Rates, servers: int) -> Array:
    """Return the rate of a circuit of each pair [server, server]: that of its slower NIC."""
    nics = np.broadcast_to(np.asarray(rates, dtype=np.float64), servers)
    return np.minimum.outer(nics, nics)


def circuit_rates(fabric: Fabric, servers: tuple[str, ...], circuits: CircuitSet) -> Array:
    """Return the payload in bytes per second of each pair's circuits [server, server]."""
    rates = pair_rates(nic_rates(fabric, servers), len(servers))
    return rates * circuit_matrix(servers, circuits).astype(np.float64)


def off_diagonal(demand: DemandMatrix) -> Array:
    """Return the bytes between different servers [from, to]."""
    return demand.array - np.diag(np.diag(demand.array))


def circuit_first_split(demand: DemandMatrix, circuits: CircuitSet) -> Split:
    """Send all bytes of a pair with a circuit over it and all others over the EPS.

    This is MixNet's own rule (paper section 5.3): a pair never uses both.
    """
    owed, lit = off_diagonal(demand), circuit_matrix(demand.servers, circuits) > 0
    return matrix_split(demand.servers, np.where(lit, owed, 0.0), np.where(lit, 0.0, owed))


def optimal_split(fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
    """Split a demand so that circuits and the EPS end together, as soon as possible.

    Without an EPS, all bytes of a pair with a circuit go over it.

    Returns:
        The best split over these circuits in the fluid model.
    """
    if not fabric.leaves:
        return circuit_first_split(demand, circuits)
    owed = off_diagonal(demand)
    light = circuit_rates(fabric, demand.servers, circuits)
    end = completion_s(owed, light, EpsLinks.of(fabric, demand.servers))
    by_light = np.minimum(owed, light * end) if isfinite(end) else np.where(light > 0, owed, 0.0)
    return matrix_split(demand.servers, by_light, owed - by_light)


def matrix_split(servers: tuple[str, ...], light: Array, eps: Array) -> Split:
    """Return bytes over circuits and over the EPS, both [from, to], as a split."""
    return Split(
        tuple(
            Share(servers[i], servers[j], float(light[i, j]), float(eps[i, j]))
            for i, j in np.argwhere(light + eps).tolist()
        )
    )
