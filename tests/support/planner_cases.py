"""Fabrics and demand for tests and benches of the planner."""

from dataclasses import replace

import numpy as np

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps
from moefabric.core.topology import Fabric
from moefabric.planner.arrays import Array
from moefabric.planner.even_circuits import EVEN
from moefabric.planner.waterfill import nic_rates
from tests.support.fabrics import fabric as prototype


def fabric(regions: int, servers: int, optical: int = 6, electrical: int = 2) -> Fabric:
    """Return a fabric of equal regions below one leaf, at 100 Gb/s."""
    return prototype(optical, electrical, regions=(servers,) * regions, settle_ns=0)


def forwarding_fabric(
    servers: int, optical: int, electrical: int, eps: Eps | None = None
) -> Fabric:
    """Return a fabric of one region, by default below one leaf, whose servers forward."""
    wired = prototype(optical, electrical, regions=(servers,), eps=eps, settle_ns=0)
    return replace(wired, forwarding=True)


def even_circuits(wired: Fabric) -> CircuitSet:
    """Return the circuits of the policy `multihop`."""
    nothing = DemandMatrix(wired.servers, np.zeros((len(wired.servers),) * 2))
    return EVEN.circuits(wired, wired.regions[0], nothing, CircuitSet())


def circuit_rate(wired: Fabric) -> float:
    """Return the payload in bytes per second of a circuit of a fabric whose NICs are all alike."""
    [rate] = set(nic_rates(wired, wired.servers).tolist())
    return float(rate)


def demand_matrix(servers: int, seed: int, shape: str) -> Array:
    """Return bytes [from, to] of a shape, diagonal empty, at most 1e9 a pair.

    Args:
        servers: Number of servers.
        seed: Of the random numbers.
        shape: "skewed" (some servers hot for all, as gating has them), "pareto" (heavy-tailed) or
            "sparse" (most pairs empty).
    """
    draw = np.random.default_rng(seed)
    owed = {
        "skewed": lambda: (
            np.outer(np.ones(servers), draw.dirichlet(np.full(servers, 2.0)))
            * draw.lognormal(0, 0.2, (servers, servers))
        ),
        "pareto": lambda: draw.pareto(1.2, (servers, servers)),
        "sparse": lambda: (
            draw.pareto(1.2, (servers, servers)) * (draw.random((servers, servers)) < 0.3)
        ),
    }[shape]()
    np.fill_diagonal(owed, 0.0)
    scaled: Array = owed / (owed.max() or 1.0) * 1e9
    return scaled
