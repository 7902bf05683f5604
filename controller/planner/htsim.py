"""MixNet's planner as its simulator has it (mixnet-htsim, RegionalTopoManager): demand damped a hundredfold with each circuit."""

import heapq
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from controller.planner.greedy import Greedy
from controller.planner.policy import Pair, heaviest_first, taken

_DAMPING = 100


def order(demand: NDArray[np.float64], ports: Sequence[int]) -> list[Pair]:
    """The pairs in the order in which the simulator lights them, one entry a circuit.

    The pair of most demand gets a circuit, and its demand is then divided by 100 times the circuits it has, on top of earlier divisions: a second
    circuit comes before another pair's first only where demand differs more than a hundredfold. Ports stay dark once no demand is left between
    servers with free ports. Ties go row by row, as the simulator's sort does for up to 4 servers (beyond, it leaves them open).
    """
    free = list(ports)
    lit: list[Pair] = []
    again: list[tuple[float, int, int, int]] = []

    def light(before: tuple[float, int, int]) -> None:
        """More circuits for pairs that have some, as long as they owe more than the pair that would come next."""
        while again and again[0][:3] < before:
            owed, i, j, circuits = heapq.heappop(again)
            if taken(free, i, j):
                lit.append((i, j))
                heapq.heappush(again, (owed / (circuits * _DAMPING), i, j, circuits + 1))

    for owed, i, j in heaviest_first(demand):
        light((owed, i, j))
        if taken(free, i, j):
            lit.append((i, j))
            heapq.heappush(again, (owed / _DAMPING, i, j, 2))
    light((0.0, 0, 0))
    return lit


MIXNET_HTSIM: Final = Greedy("mixnet-htsim", order)
"""The simulator's circuits; a pair with a circuit sends by light alone."""
