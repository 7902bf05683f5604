"""MixNet's planner as its simulator has it (mixnet-htsim, RegionalTopoManager): demand damped a hundredfold with each circuit."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controller.planner import nics
from controller.planner.policy import Pair, counts, light_first
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.flows import Split
from moefabric.topology import Fabric, Region

_DAMPING = 100


def order(demand: NDArray[np.float64], ports: Sequence[int]) -> list[Pair]:
    """The pairs in the order in which the simulator lights them, one entry a circuit.

    The pair of most demand gets a circuit, and its demand is then divided by 100 times the circuits it has, on top of earlier divisions: a second
    circuit comes before another pair's first only where demand differs more than a hundredfold. Ports stay dark once no demand is left between
    servers with free ports. Ties go row by row, as the simulator's sort does for up to 4 servers (beyond, it leaves them open).
    """
    free = list(ports)
    rows, columns = np.nonzero(np.triu(demand, 1))
    heap = [(-float(demand[i, j]), int(i), int(j), 1) for i, j in zip(rows, columns, strict=True)]
    heapq.heapify(heap)
    lit: list[Pair] = []
    while heap and heap[0][0] < 0:
        owed, i, j, circuits = heapq.heappop(heap)
        if free[i] and free[j]:
            free[i] -= 1
            free[j] -= 1
            lit.append((i, j))
            heapq.heappush(heap, (owed / (circuits * _DAMPING), i, j, circuits + 1))
    return lit


@dataclass(frozen=True)
class MixNetHtsim:
    """The simulator's circuits; a pair with a circuit sends by light alone."""

    name: str = "mixnet-htsim"

    def circuits(self, fabric: Fabric, region: Region, demand: DemandMatrix, now: CircuitSet) -> CircuitSet:
        """The circuits of the simulator."""
        lit = order(demand.symmetric(), [fabric.optical] * len(region.servers))
        return nics.circuits(fabric, region, counts(len(region.servers), lit), now)

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:  # noqa: ARG002 - the seam's
        """Light first, else the EPS."""
        return light_first(demand, circuits)
