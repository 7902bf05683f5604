"""Static light: circuits spread evenly over the server pairs and lit once, whatever is owed."""

from collections.abc import Sequence
from dataclasses import dataclass

from controller.planner import nics
from controller.planner.policy import Pair, counts, light_first
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.flows import Split
from moefabric.topology import Fabric, Region


def order(ports: Sequence[int]) -> list[Pair]:
    """The pairs in the order in which they are lit, one entry a circuit.

    Neighbours on a ring first, then servers two apart, and so on, over and over while two servers of a pair have ports: no server is preferred.
    """
    free, servers = list(ports), len(ports)
    ring = [
        (min(i, j), max(i, j))
        for apart in range(1, servers // 2 + 1)
        for i, j in ((i, (i + apart) % servers) for i in range(servers))
        if i < j or 2 * apart != servers  # half-way round, both ends would name the same pair
    ]
    lit: list[Pair] = []
    while True:
        before = len(lit)
        for i, j in ring:
            if free[i] and free[j]:
                free[i] -= 1
                free[j] -= 1
                lit.append((i, j))
        if len(lit) == before:
            return lit


@dataclass(frozen=True)
class Static:
    """Uniform circuits that never move; a pair with a circuit sends by light alone."""

    name: str = "static"
    moves: bool = False

    def circuits(self, fabric: Fabric, region: Region, demand: DemandMatrix, now: CircuitSet) -> CircuitSet:  # noqa: ARG002 - demand is ignored on purpose
        """The same circuits for any demand."""
        lit = order(nics.ports(fabric, region))
        return nics.circuits(fabric, region, counts(len(region.servers), lit), now)

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:  # noqa: ARG002 - the seam's
        """Light first, else the EPS."""
        return light_first(demand, circuits)
