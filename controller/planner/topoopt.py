"""One-shot light, as TopoOpt lays its patch panel: chosen for the whole job's demand, and then left alone."""

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

    As many heaviest matchings as there are NICs; each circuit that a pair gets halves what another is worth to it (TopoOpt, NSDI'23, algorithm 1,
    model-parallel part).
    """
    left, lit = np.triu(demand, 1), list[Pair]()
    for _ in range(degree):
        matched = matchings.heaviest(left)
        lit += matched
        for pair in matched:
            left[pair] /= 2
    return lit


def _joined(servers: int, lit: list[Pair]) -> bool:
    """Whether every server reaches every other."""
    reached = {0}
    for _ in range(servers):
        reached |= {end for pair in lit for end in pair if reached & set(pair)}
    return len(reached) == servers


def _ring(servers: int) -> list[Pair]:
    """One circuit from each server to the next; two servers need no way back."""
    return [(i, i + 1) for i in range(servers - 1)] + ([(0, servers - 1)] if servers > 2 else [])


@dataclass(frozen=True)
class TopoOpt:
    """Light that is laid once; a pair with a circuit sends by light alone. Give it the demand of the whole job."""

    name: str = "topoopt"
    moves: bool = False

    def circuits(self, fabric: Fabric, region: Region, demand: DemandMatrix, now: CircuitSet) -> CircuitSet:
        """What is lit stays; where nothing is, the matchings of most demand.

        Where servers reach each other by circuits alone and the matchings don't join all, a ring does, and its NICs are taken from the matchings
        (TopoOpt's all-reduce part).
        """
        if now.circuits:
            return now
        lit, servers = order(demand.symmetric(), fabric.optical), len(region.servers)
        if fabric.panel and fabric.optical > 1 and not _joined(servers, lit):
            lit = _ring(servers) + order(demand.symmetric(), fabric.optical - 2)
        lit = afforded(lit, nics.ports(fabric, region))
        return nics.circuits(fabric, region, counts(len(region.servers), lit), now)

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:  # noqa: ARG002 - the seam's
        """Light first, else the EPS."""
        return light_first(demand, circuits)
