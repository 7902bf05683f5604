"""MixNet's circuits: Algorithm 1 of the paper (arXiv 2501.03905, section 5.2) in two readings."""

import heapq
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from moefabric.planner.arrays import Array
from moefabric.planner.pair_order import Pair, PairOrderPolicy, pairs_by_demand, take_ports

_DAMPING: Final = 100


def algorithm1_order(demand: Array, ports: Sequence[int]) -> list[Pair]:
    """Order pairs as Algorithm 1 of the paper does.

    Each circuit goes to the bottleneck: the pair that takes longest over its circuits. Pairs
    without a circuit take forever; among these, the bottleneck is the pair that owes most. A server
    without a free port is skipped. A literal reading of the algorithm stops there, but then the
    paper's 24 circuits for 8 servers (section 7.3) can't result. Ties go to the first pair in
    server order.

    Args:
        demand: Bytes that each pair owes, both directions together [server, server].
        ports: Usable optical NICs of each server.

    Returns:
        The pairs, one entry for each circuit.
    """
    free = list(ports)
    # Pairs without a circuit come first whatever the others still owe: their time is infinite.
    pairs = [(i, j) for _, i, j in pairs_by_demand(demand) if take_ports(free, i, j)]
    more = [(-float(demand[i, j]), i, j, 2) for i, j in pairs if free[i] and free[j]]
    heapq.heapify(more)
    while more:
        _, i, j, circuits = heapq.heappop(more)
        if take_ports(free, i, j):
            pairs.append((i, j))
            heapq.heappush(more, (-float(demand[i, j]) / circuits, i, j, circuits + 1))
    return pairs


def htsim_order(demand: Array, ports: Sequence[int]) -> list[Pair]:
    """Order pairs as MixNet's simulator does (mixnet-htsim, `RegionalTopoManager`).

    The pair of most demand gets a circuit. Its demand is then divided by 100 times the circuits
    that it has, on top of earlier divisions: a second circuit comes before another pair's first
    only if demand differs more than a hundredfold. Ports stay dark once no demand is left between
    servers with free ports. Ties are resolved row by row, as in the simulator for up to 4 servers;
    for more servers, the simulator's sort leaves the order open.

    Args:
        demand: Bytes that each pair owes, both directions together [server, server].
        ports: Usable optical NICs of each server.

    Returns:
        The pairs, one entry for each circuit.
    """
    free = list(ports)
    pairs: list[Pair] = []
    damped: list[tuple[float, int, int, int]] = []

    def add_circuits_before(limit: tuple[float, int, int]) -> None:
        """Add circuits to joined pairs whose damped demand exceeds that of the next pair."""
        while damped and damped[0][:3] < limit:
            owed, i, j, circuits = heapq.heappop(damped)
            if take_ports(free, i, j):
                pairs.append((i, j))
                heapq.heappush(damped, (owed / (circuits * _DAMPING), i, j, circuits + 1))

    for owed, i, j in pairs_by_demand(demand):
        add_circuits_before((owed, i, j))
        if take_ports(free, i, j):
            pairs.append((i, j))
            heapq.heappush(damped, (owed / _DAMPING, i, j, 2))
    add_circuits_before((0.0, 0, 0))
    return pairs


MIXNET: Final = PairOrderPolicy("mixnet", algorithm1_order)
"""Algorithm 1; a pair with a circuit sends over it alone."""

MIXNET_HTSIM: Final = PairOrderPolicy("mixnet-htsim", htsim_order)
"""The simulator's circuits; a pair with a circuit sends over it alone."""

SPILL: Final = PairOrderPolicy("spill", algorithm1_order, splits_by_demand=True)
"""Algorithm 1; bytes that circuits can't carry in time spill over to the EPS.

The split is optimal for these circuits in the fluid model.
"""

MIXNET_SPILL: Final = replace(SPILL, name="mixnet-spill")
"""`SPILL` by its other name."""
