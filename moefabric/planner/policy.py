"""The policy protocol, functions that policies share, and the baseline that uses no circuits."""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Share, Split
from moefabric.core.topology import Fabric, Region

Array = NDArray[np.float64]
Ints = NDArray[np.int64]


class Policy(Protocol):
    """Chooses the circuits of a region and splits its demand over OCS and EPS.

    A policy is pure: equal demand and equal current circuits give equal circuits and an equal
    split.
    """

    @property
    def name(self) -> str:
        """The name that specifications use."""

    @property
    def reconfigures(self) -> bool:
        """Whether circuits change while a job runs; otherwise they are set once, before it."""

    @property
    def forwards(self) -> bool:
        """Whether the split sends bytes through other servers."""

    @property
    def splits_by_demand(self) -> bool:
        """Whether the split divides a pair's bytes among its paths by the demand of all pairs."""

    @property
    def suits_patch_panel(self) -> bool:
        """Whether the circuits are set once and connect servers without an EPS."""

    def circuits(
        self, fabric: Fabric, region: Region, demand: DemandMatrix, current: CircuitSet
    ) -> CircuitSet:
        """Choose the circuits of a region.

        Args:
            fabric: The wired fabric. NICs in `fabric.unusable_nics` end no circuit.
            region: The region whose servers are joined.
            demand: Bytes between the servers of the region, in their order.
            current: Circuits that are lit. A pair that stays joined keeps its NICs.

        Returns:
            The circuits, with both ends of each in the region.
        """

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        """Split each pair's bytes over its circuits and the EPS.

        Args:
            fabric: The wired fabric.
            demand: Bytes between servers.
            circuits: Circuits that are lit.

        Returns:
            One share for each ordered pair of servers that owes something.
        """


@dataclass(frozen=True, kw_only=True)
class PolicyTraits:
    """The facts about a policy that a policy without special needs leaves as they are.

    Attributes:
        reconfigures: Whether circuits change while a job runs.
        forwards: Whether the split sends bytes through other servers.
        splits_by_demand: Whether the split divides a pair's bytes by the demand of all pairs.
        suits_patch_panel: Whether the circuits are set once and connect servers without an EPS.
    """

    reconfigures: bool = True
    forwards: bool = False
    splits_by_demand: bool = False
    suits_patch_panel: bool = False


def circuit_matrix(servers: tuple[str, ...], circuits: CircuitSet) -> Ints:
    """Count the circuits of each pair of servers.

    Args:
        servers: Names, in the order of rows and columns. Circuits of other servers don't count.
        circuits: Circuits that are lit.

    Returns:
        Symmetric counts [server, server].
    """
    index = {server: position for position, server in enumerate(servers)}
    matrix = np.zeros((len(servers), len(servers)), dtype=np.int64)
    for circuit in circuits:
        a, b = circuit.pair
        if a in index and b in index:
            matrix[index[a], index[b]] += 1
            matrix[index[b], index[a]] += 1
    return matrix


def circuit_first_split(demand: DemandMatrix, circuits: CircuitSet) -> Split:
    """Send all bytes of a pair with a circuit over it and all others over the EPS.

    This is MixNet's own rule (paper section 5.3): a pair never uses both.
    """
    return Split(
        tuple(
            Share(a, b, owed, 0.0) if circuits.between(a, b) else Share(a, b, 0.0, owed)
            for a, b, owed in demand.pairs()
        )
    )


@dataclass(frozen=True)
class EpsOnly(PolicyTraits):
    """No circuits: every pair sends over the EPS."""

    name: str = "eps"
    reconfigures: bool = field(default=False, kw_only=True)

    def circuits(
        self, fabric: Fabric, region: Region, demand: DemandMatrix, current: CircuitSet
    ) -> CircuitSet:
        """Choose no circuits."""
        return CircuitSet()

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        """Send all bytes over the EPS."""
        return circuit_first_split(demand, CircuitSet())
