"""One-shot circuits, as TopoOpt sets its patch panel: chosen for a whole job's demand, once."""

from dataclasses import dataclass, field

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.topology import Fabric, Region
from moefabric.planner.arrays import Array, circuit_counts
from moefabric.planner.matching import successive_matchings
from moefabric.planner.nic_assignment import assign_nics, usable_ports
from moefabric.planner.pair_order import Pair, affordable_pairs
from moefabric.planner.policy import PolicyTraits


def matching_order(demand: Array, degree: int) -> list[Pair]:
    """Order pairs by `degree` maximum-weight matchings.

    Each circuit that a pair gets halves what another one is worth to it (TopoOpt, NSDI'23,
    algorithm 1, model-parallel part).

    Args:
        demand: Bytes that each pair owes, both directions together [server, server].
        degree: Optical NICs of a server.

    Returns:
        The pairs, one entry for each circuit.
    """
    return successive_matchings(demand, degree, lambda weight: weight / 2)


def _connects_all(servers: int, pairs: list[Pair]) -> bool:
    """Return whether every server reaches every other over these pairs."""
    from scipy.sparse.csgraph import connected_components

    parts, _ = connected_components(circuit_counts(servers, pairs))
    return bool(parts == 1)


def _ring(servers: int) -> list[Pair]:
    """Join each server to the next; two servers need no way back."""
    return [(i, i + 1) for i in range(servers - 1)] + ([(0, servers - 1)] if servers > 2 else [])


@dataclass(frozen=True)
class TopoOpt(PolicyTraits):
    """Circuits that are set once, for the demand of a whole job."""

    name: str = "topoopt"
    reconfigures: bool = field(default=False, kw_only=True)
    suits_patch_panel: bool = field(default=True, kw_only=True)

    def circuits(
        self, fabric: Fabric, region: Region, demand: DemandMatrix, current: CircuitSet
    ) -> CircuitSet:
        """Keep the circuits that are lit; without any, choose maximum-weight matchings.

        On a patch panel, servers reach each other over circuits alone. If the matchings don't
        connect all servers, a ring is added that takes NICs from the matchings (TopoOpt's
        all-reduce part).
        """
        if current.circuits:
            return current
        owed, servers = demand.symmetric(), len(region.servers)
        pairs = matching_order(owed, fabric.optical)
        if fabric.patch_panel and fabric.optical > 1 and not _connects_all(servers, pairs):
            pairs = _ring(servers) + matching_order(owed, fabric.optical - 2)
        pairs = affordable_pairs(pairs, usable_ports(fabric, region))
        return assign_nics(fabric, region, circuit_counts(servers, pairs), current)
