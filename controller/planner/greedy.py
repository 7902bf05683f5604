"""Greedy policies: the pairs of servers get circuits one after the other, and a pair with a circuit sends by light alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controller.planner import nics
from controller.planner.policy import Pair, counts, light_first
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.flows import Split
from moefabric.topology import Fabric, Region

Order = Callable[[NDArray[np.float64], Sequence[int]], list[Pair]]
"""What each pair owes both ways together, and the optical NICs of each server, to the pairs in the order they are lit, one entry a circuit."""


@dataclass(frozen=True)
class Greedy:
    """Circuits by an order of the pairs."""

    name: str
    order: Order
    moves: bool = True

    def circuits(self, fabric: Fabric, region: Region, demand: DemandMatrix, now: CircuitSet) -> CircuitSet:
        """The circuits that the order gives."""
        lit = self.order(demand.symmetric(), nics.ports(fabric, region))
        return nics.circuits(fabric, region, counts(len(region.servers), lit), now)

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:  # noqa: ARG002 - the seam's
        """Light first, else the EPS."""
        return light_first(demand, circuits)
