"""No light at all: every byte by the EPS. The baseline."""

from dataclasses import dataclass

from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.flows import Share, Split
from moefabric.topology import Fabric, Region


@dataclass(frozen=True)
class EpsOnly:
    """No circuits; every pair sends by the EPS."""

    name: str = "eps"
    moves: bool = False

    def circuits(self, fabric: Fabric, region: Region, demand: DemandMatrix, now: CircuitSet) -> CircuitSet:  # noqa: ARG002 - the seam's
        """None."""
        return CircuitSet()

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:  # noqa: ARG002 - the seam's
        """All by the EPS."""
        return Split(tuple(Share(a, b, 0.0, owed) for a, b, owed in demand.pairs()))
