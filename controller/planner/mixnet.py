"""MixNet's planner: Algorithm 1 of the paper (arXiv 2501.03905, section 5.2), and light before the EPS."""

import heapq
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from controller.planner.greedy import Greedy
from controller.planner.policy import Pair, heaviest_first, taken


def order(demand: NDArray[np.float64], ports: Sequence[int]) -> list[Pair]:
    """The pairs in the order in which Algorithm 1 lights them, one entry a circuit.

    `demand[i, j]` is what a pair owes both ways together, `ports[i]` the optical NICs of a server. The bottleneck is the pair that takes longest
    over the circuits it has: forever with none, and among those the one that owes most. A server without a free port is skipped, where a literal
    reading would stop (the paper's own 24 circuits for 8 servers ask for that, section 7.3). Ties go to the first pair in server order.
    """
    free = list(ports)
    # Pairs without a circuit come first, whatever the others still owe: their time is infinite.
    lit = [(i, j) for _, i, j in heaviest_first(demand) if taken(free, i, j)]
    again = [(-float(demand[i, j]), i, j, 2) for i, j in lit if free[i] and free[j]]
    heapq.heapify(again)
    while again:
        _, i, j, circuits = heapq.heappop(again)
        if taken(free, i, j):
            lit.append((i, j))
            heapq.heappush(again, (-float(demand[i, j]) / circuits, i, j, circuits + 1))
    return lit


MIXNET: Final = Greedy("mixnet", order)
"""Algorithm 1, exhausted servers skipped; a pair with a circuit sends by light alone."""
