"""Circuits that are spread evenly over the servers and lit once, whatever the demand.

Up to one server more than NICs, `uniform_order` joins every two servers. Beyond that, expanders
(`expander_order`) have short paths between all servers and no narrow cut: the most that circuits
can do for an unknown demand that servers forward (Jellyfish, NSDI'12; Xpander, CoNEXT'16).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Final

import numpy as np

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.topology import Fabric, Region
from moefabric.planner.arrays import Ints
from moefabric.planner.nic_assignment import assign_nics, usable_ports
from moefabric.planner.pair_order import Pair, PairOrderPolicy, affordable_pairs
from moefabric.planner.policy import PolicyTraits
from moefabric.planner.round_robin import tournament

PortOrder = Callable[[Sequence[int]], list[Pair]]
"""Orders pairs of servers, one entry for each circuit, given the usable NICs of each server."""

_GRAPHS: Final = 50
"""Random graphs of which the best is taken."""
_ROUNDING: Final = 1e-9


def uniform_order(ports: Sequence[int]) -> list[Pair]:
    """Order pairs by the rounds of a tournament, in which every two servers meet once.

    Rounds are repeated while two servers of a pair have free ports.

    Args:
        ports: Usable optical NICs of each server.

    Returns:
        The pairs, one entry for each circuit.
    """
    rounds = list(chain.from_iterable(tournament(len(ports)))) if len(ports) > 1 else []
    return affordable_pairs(rounds * max(ports, default=0), ports)


def expander_order(ports: Sequence[int]) -> list[Pair]:
    """Return the best of many random graphs, by the second eigenvalue.

    The eigenvalue is that of the adjacency matrix, divided by the circuits of both servers; the
    less it is, the more circuits leave any set of servers.

    Args:
        ports: Usable optical NICs of each server.

    Returns:
        The pairs, one entry for each circuit, in server order. At most one port of all servers
        stays dark, unless one server has more ports than all others together.
    """
    return list(_best_graph(tuple(ports)))


def even_order(ports: Sequence[int]) -> list[Pair]:
    """Order pairs by `uniform_order` if that joins every two servers, else by `expander_order`."""
    joins_all = len(ports) <= max(ports, default=0) + 1
    return uniform_order(ports) if joins_all else expander_order(ports)


@lru_cache(maxsize=16)
def _best_graph(ports: tuple[int, ...]) -> tuple[Pair, ...]:
    least, best = np.inf, np.zeros((len(ports), len(ports)), dtype=np.int64)
    for seed in range(_GRAPHS):
        # This generator's numbers are the same in all versions of numpy.
        counts = _random_graph(ports, np.random.RandomState(seed))
        eigenvalue = _second_eigenvalue(counts)
        if eigenvalue < least - _ROUNDING:
            least, best = eigenvalue, counts
    upper = np.triu(best)
    return tuple((i, j) for i, j in np.argwhere(upper).tolist() for _ in range(upper[i, j]))


def _second_eigenvalue(counts: Ints) -> float:
    """Return the second largest eigenvalue of a graph, normalised by its degrees."""
    degrees = counts.sum(axis=1)
    used = degrees > 0
    if used.sum() < 2:
        return 0.0
    scale = 1 / np.sqrt(degrees[used])
    normalised = counts[np.ix_(used, used)] * scale[:, None] * scale
    return float(np.linalg.eigvalsh(normalised)[-2])


def _random_graph(ports: Sequence[int], draw: np.random.RandomState) -> Ints:
    """Join servers at random, those with the most free ports first.

    Two servers get a second circuit only if no exchange with another circuit avoids it.
    """
    n, free = len(ports), np.array(ports, dtype=np.int64)
    counts = np.zeros((n, n), dtype=np.int64)
    while (free > 0).sum() > 1:
        # Random numbers below 1 break ties.
        i = int((free + draw.random_sample(n)).argmax())
        others = free + draw.random_sample(n)
        others[free == 0] = -1.0
        others[i] = -1.0
        apart = np.where(counts[i] == 0, others, -1.0)
        j = int((apart if apart.max() >= 0 else others).argmax())
        if counts[i, j] and (exchange := _exchange(counts, i, j, draw)):
            x, y = exchange
            for a, b, change in ((x, y, -1), (i, x, 1), (j, y, 1)):
                counts[a, b] = counts[b, a] = counts[a, b] + change
        else:
            counts[i, j] = counts[j, i] = counts[i, j] + 1
        free[[i, j]] -= 1
    return counts


def _exchange(counts: Ints, i: int, j: int, draw: np.random.RandomState) -> Pair | None:
    """Return a circuit (x, y) that circuits (i, x) and (j, y) could replace, if there is one."""
    possible = counts * (counts[i] == 0)[:, None] * (counts[j] == 0)
    for server in (i, j):
        possible[server] = possible[:, server] = 0
    candidates = np.argwhere(possible)
    if not len(candidates):
        return None
    x, y = candidates[draw.randint(len(candidates))].tolist()
    return x, y


def _lit_once(name: str, order: PortOrder) -> PairOrderPolicy:
    """Return the policy that lights the circuits of an order that ignores the demand."""
    return PairOrderPolicy(
        name,
        lambda _demand, ports: order(ports),
        stays=True,
        reconfigures=False,
        splits_by_demand=True,
        suits_patch_panel=True,
    )


UNIFORM: Final = _lit_once("uniform", uniform_order)
"""Rounds of perfect matchings: a full mesh up to one server more than NICs."""

EXPANDER: Final = _lit_once("expander", expander_order)
"""The best of many random graphs."""

EVEN: Final = _lit_once("even", even_order)
"""A full mesh if there are enough NICs, else an expander."""


@dataclass(frozen=True)
class RandomCircuits(PolicyTraits):
    """One random graph; a pair with a circuit sends over it alone.

    MixNet names random circuits as those that may be lit while the demand of the first layer is
    unknown (SIGCOMM'25, appendix B.1).

    Attributes:
        name: The name that specifications use.
        seed: Seed of the graph.
    """

    name: str = "random"
    seed: int = 1
    reconfigures: bool = field(default=False, kw_only=True)

    def circuits(
        self, fabric: Fabric, region: Region, demand: DemandMatrix, current: CircuitSet
    ) -> CircuitSet:
        """Keep the circuits that are lit; without any, choose those of the graph."""
        draw = np.random.RandomState(self.seed)
        counts = _random_graph(usable_ports(fabric, region), draw)
        return current or assign_nics(fabric, region, counts, current)
