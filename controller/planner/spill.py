"""Spill: MixNet's circuits, and each pair's bytes split over its light and the EPS so that all of them end together."""

from dataclasses import dataclass

from controller.planner import water
from controller.planner.mixnet import MIXNET
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.flows import Split
from moefabric.topology import Fabric, Region


@dataclass(frozen=True)
class Spill:
    """Algorithm 1's circuits; what light can't carry in time spills over to the EPS. Optimal for its circuits in the fluid model."""

    name: str = "spill"
    moves: bool = True

    def circuits(self, fabric: Fabric, region: Region, demand: DemandMatrix, now: CircuitSet) -> CircuitSet:
        """The circuits of Algorithm 1."""
        return MIXNET.circuits(fabric, region, demand, now)

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        """By light what it carries until all ends, by the EPS the rest."""
        return water.parted(fabric, demand, circuits)
