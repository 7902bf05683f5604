"""Chooses circuits for the split in which servers forward, and moves them only where that pays."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Self

import numpy as np

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Split
from moefabric.core.topology import Fabric, Region
from moefabric.planner.arrays import Array, Ints, circuit_counts
from moefabric.planner.even_circuits import even_order
from moefabric.planner.joint import TOLERANCE, Joint, best_circuits
from moefabric.planner.mixnet import algorithm1_order
from moefabric.planner.moving_circuits import Candidates, MovingCircuits
from moefabric.planner.multihop import least_s, multihop_split
from moefabric.planner.nic_assignment import assign_nics, usable_ports
from moefabric.planner.pair_order import affordable_pairs
from moefabric.planner.waterfill import EpsLinks, nic_rates, off_diagonal

_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class _Forwarded(Candidates):
    """Candidates for the split in which servers forward.

    Attributes:
        fabric: The wired fabric.
        region: The region whose servers are joined.
    """

    fabric: Fabric
    region: Region

    @classmethod
    def of(cls, fabric: Fabric, region: Region, owed: Array) -> Self:
        """Return the candidates for bytes [from, to] between the servers of a region."""
        ports, rates = np.array(usable_ports(fabric, region)), nic_rates(fabric, region.servers)
        links = EpsLinks.one_leaf(np.zeros(len(ports)))
        if fabric.leaves:
            links = EpsLinks.of(fabric, region.servers)
        return cls(owed, ports, rates, links, fabric, region)

    @property
    def nearly_best_s(self) -> float:
        """A time little above the bound."""
        return self.bound_s * (1 + TOLERANCE)

    def seconds(self, counts: Ints) -> float:
        """Return when the demand ends over circuits.

        Which NICs they have hardly matters, but equal counts must have equal times: otherwise
        circuits would move for equal ones.
        """
        return self.seconds_over(assign_nics(self.fabric, self.region, counts, CircuitSet()))

    def seconds_over(self, circuits: CircuitSet) -> float:
        """Return when the demand ends over circuits with these NICs."""
        return least_s(self.fabric, DemandMatrix(self.region.servers, self.owed), circuits)

    def best(self, known: Ints, known_s: float) -> tuple[Ints, float]:
        """Return the best circuits and their time; known circuits are among the candidates."""
        best, best_s = known, known_s
        for counts in self._demand_driven():
            if best_s <= self.nearly_best_s:
                break
            best, best_s = self.sooner(best, best_s, counts)
        return best, best_s

    def _demand_driven(self) -> Iterator[Ints]:
        """Yield circuits for direct bytes, and mixtures with evenly spread ones for the others."""
        both, ports = self.owed + self.owed.T, self.ports.tolist()
        if self.fabric.leaves:
            yield best_circuits(self.owed, self.ports, self.rates, self.links)
        most = max(ports)
        for spread in dict.fromkeys(count for count in (0, 1, 2, most - 1) if 0 <= count < most):
            even = circuit_counts(len(ports), even_order([min(spread, nics) for nics in ports]))
            free = (self.ports - even.sum(axis=1)).tolist()
            # Pairs whose bytes even circuits carry in the least time need no second circuit first.
            carried = 2 * self.pair_rates * self.bound_s * even
            rest = np.where(both > 0, np.maximum(both - carried, _ROUNDING * both), 0.0)
            pairs = affordable_pairs(algorithm1_order(rest, free), free)
            yield even + circuit_counts(len(ports), pairs)


@dataclass(frozen=True)
class JointMultihop(MovingCircuits):
    """The best of many circuits for the split in which servers forward."""

    name: str = "joint-multihop"
    forwards: bool = field(default=True, kw_only=True)

    def circuits(
        self, fabric: Fabric, region: Region, demand: DemandMatrix, current: CircuitSet
    ) -> CircuitSet:
        """Choose the fastest of three: lit circuits, even ones, and the best for the demand."""
        if not fabric.forwarding:
            return Joint(horizon=self.horizon).circuits(fabric, region, demand, current)
        owed = off_diagonal(demand)
        # Dispatch and combine are each other's transpose and share their circuits.
        canonical = min(owed, owed.T, key=lambda matrix: matrix.tolist())
        candidates = _Forwarded.of(fabric, region, canonical)
        target = self.choose(fabric, region, candidates, current)
        if not current or target == current:
            return target
        # The NICs that pairs keep, or one of both directions, may suit forwarding less.
        reverse = replace(candidates, owed=canonical.T)
        is_sooner = all(
            both.seconds_over(target) < both.seconds_over(current) for both in (candidates, reverse)
        )
        return target if is_sooner else current

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        """Split over circuits, the EPS and relay trees, so that all end as soon as possible."""
        return multihop_split(fabric, demand, circuits)
