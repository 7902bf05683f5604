"""Circuits as Helios and c-Through choose them: the matching of most demand, once for each optical NIC."""

from dataclasses import dataclass

import numpy as np

from controller.planner import matchings, nics
from controller.planner.matchings import Array
from controller.planner.policy import Pair, afforded, counts, light_first
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.flows import Split
from moefabric.topology import Fabric, Region


def order(demand: Array, degree: int) -> list[Pair]:
    """The pairs in the order in which they are lit, one entry a circuit; `demand[i, j]` is what a pair owes both ways together.

    A circuit is worth what it would carry: no more than the busiest server's share for each of its NICs. What it carries is taken off before
    the next matching (Helios, SIGCOMM'10, section 4.2; c-Through, SIGCOMM'10, section 3.3: one matching).
    """
    if not degree or not demand.any():
        return []
    carried = demand.sum(axis=1).max() / degree
    left, lit = np.triu(demand, 1), list[Pair]()
    for _ in range(degree):
        matched = matchings.heaviest(np.minimum(left, carried))
        lit += matched
        for pair in matched:
            left[pair] = max(0.0, left[pair] - carried)
    return lit


@dataclass(frozen=True)
class Matching:
    """The heaviest matchings; a pair with a circuit sends by light alone."""

    name: str = "matching"
    moves: bool = True

    def circuits(self, fabric: Fabric, region: Region, demand: DemandMatrix, now: CircuitSet) -> CircuitSet:
        """The matchings of most demand."""
        ports = nics.ports(fabric, region)
        lit = afforded(order(demand.symmetric(), max(ports)), ports)
        return nics.circuits(fabric, region, counts(len(region.servers), lit), now)

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:  # noqa: ARG002 - the seam's
        """Light first, else the EPS."""
        return light_first(demand, circuits)
