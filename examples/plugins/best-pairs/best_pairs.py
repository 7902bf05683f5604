"""The policy best-pairs: circuits for the pairs that owe most, as many as the NICs allow."""

from dataclasses import dataclass, field

import numpy as np

from moefabric import CircuitSet, DemandMatrix, Fabric, PolicyTraits, Region, Split
from moefabric.planner.nic_assignment import assign_nics, usable_ports
from moefabric.planner.waterfill import optimal_split


@dataclass(frozen=True)
class BestPairs(PolicyTraits):
    """Takes pairs in the order of their bytes, again and again, until no NIC is free."""

    name: str = "best-pairs"
    splits_by_demand: bool = field(default=True, kw_only=True)

    def circuits(
        self, fabric: Fabric, region: Region, demand: DemandMatrix, current: CircuitSet
    ) -> CircuitSet:
        """Choose the circuits of a region while those of `current` are lit."""
        free = usable_ports(fabric, region)  # optical NICs of each server that work
        owed = np.triu(demand.symmetric(), 1)  # bytes of each pair, both directions together
        order = np.argsort(-owed, axis=None, kind="stable")
        pairs = [divmod(int(cell), len(free)) for cell in order if owed.flat[cell] > 0]
        counts = np.zeros((len(free), len(free)), dtype=np.int64)
        while chosen := [(i, j) for i, j in pairs if free[i] and free[j]]:
            for i, j in chosen:
                if free[i] and free[j]:
                    free[i], free[j] = free[i] - 1, free[j] - 1
                    counts[i, j] = counts[j, i] = counts[i, j] + 1
        return assign_nics(fabric, region, counts, current)  # joined pairs keep their NICs

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        """Split each pair's bytes so that its circuits and the EPS end together."""
        return optimal_split(fabric, demand, circuits)
