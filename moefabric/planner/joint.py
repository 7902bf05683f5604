"""Chooses circuits and split together, so that a demand is met as soon as possible.

The best circuits never end later than Algorithm 1's with the spill split. For regions of up to
8 servers they end within a hundredth of the optimum of the mixed-integer program
(`tests/unit/planner/test_joint_optimum.py`). Circuits move only where that pays.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, combinations, cycle
from math import inf
from typing import Final

import numpy as np

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.topology import Fabric, Region
from moefabric.planner.arrays import Array, Ints, circuit_counts
from moefabric.planner.circuit_search import CircuitSearch
from moefabric.planner.deadline_circuits import deadline_bound_s, deadline_circuits
from moefabric.planner.horizon import ALL_TO_ALLS
from moefabric.planner.mixnet import MIXNET, algorithm1_order
from moefabric.planner.moving_circuits import Candidates, MovingCircuits
from moefabric.planner.nic_assignment import usable_ports
from moefabric.planner.pair_order import affordable_pairs
from moefabric.planner.static import ring_order
from moefabric.planner.waterfill import EpsLinks, Rates, completion_s, nic_rates, off_diagonal

TOLERANCE: Final = 2e-3
"""Relative distance from a bound at which circuits count as the best."""
_DEADLINES: Final = (0.25, 0.5, 0.75, 0.9)
"""Deadlines of successive searches, from the bound (0) to the best end so far (1)."""
_STEPS: Final = 10
"""Steps of a search: short ones from many starts find more than long ones from few."""
_LEAST_MISSES: Final = 10
_MOST_MISSES: Final = 50
"""Searches in a row without success after which no better circuits are expected."""
_SEARCH_S: Final = 1.5e-3
"""Seconds of a search for 8 servers."""
_HOPE: Final = 0.05
"""Share of the distance from the bound that further searches are expected to gain."""


class _Problem(Candidates):
    """Candidates for the best split over circuits and the EPS."""

    def seconds(self, counts: Ints) -> float:
        """Return when the demand, and its transpose, ends over circuits with the best split."""
        return completion_s(self.owed, self.pair_rates * counts.astype(np.float64), self.links)

    def best(self, known: Ints, known_s: float) -> tuple[Ints, float]:
        """Return the circuits that are best for the demand, and their seconds."""
        best = best_circuits(self.owed, self.ports, self.rates, self.links)
        return best, self.seconds(best)

    def searched(self) -> Ints:
        """Return the best circuits that the search finds, or Algorithm 1's if none are better."""
        # Where demand is nearly even, Algorithm 1 may leave one server almost without circuits:
        # uniform circuits are a better start.
        n, ports = len(self.owed), self.ports.tolist()
        orders = algorithm1_order(self.owed + self.owed.T, ports), ring_order(ports)
        starts = [circuit_counts(n, order) for order in orders]
        best, end_s = self.sooner(starts[0], inf, *starts)
        problem = self.owed, self.ports, self.rates, self.links
        bound_s = deadline_bound_s(*problem, end_s, TOLERANCE / 4)
        if end_s <= bound_s * (1 + TOLERANCE) or bound_s == inf:
            return best
        greedy = deadline_circuits(*problem, bound_s)
        best, end_s = self.sooner(best, end_s, greedy)
        return self._search(end_s, best, chain([greedy, *starts], self._random_starts()), bound_s)

    def _search(self, end_s: float, best: Ints, starts: Iterable[Ints], bound_s: float) -> Ints:
        """Search from one start after the other, until many in a row have found nothing better."""
        search, misses = CircuitSearch.of(self.owed, self.ports, self.rates, self.links), 0
        worth_s = _HOPE * ALL_TO_ALLS * (end_s - bound_s)
        most_misses = min(max(worth_s / _SEARCH_S, _LEAST_MISSES), _MOST_MISSES)
        for start, nearness in zip(starts, cycle(_DEADLINES), strict=False):
            if misses >= most_misses or end_s <= bound_s * (1 + TOLERANCE):
                break
            candidate = search.run(start, bound_s + nearness * (end_s - bound_s), _STEPS)
            before_s = end_s
            best, end_s = self.sooner(best, end_s, candidate)
            misses = misses + 1 if end_s == before_s else 0
        return best

    def _random_starts(self) -> Iterator[Ints]:
        n, ports = len(self.owed), self.ports.tolist()
        pairs = list(combinations(range(n), 2)) * max(ports)
        # This generator's numbers are the same in all versions of numpy.
        draw = np.random.RandomState(0)
        while True:
            order = [pairs[number] for number in draw.permutation(len(pairs))]
            yield circuit_counts(n, affordable_pairs(order, ports))


def best_circuits(owed: Array, ports: Ints, rates: Rates, links: EpsLinks) -> Ints:
    """Return Algorithm 1's circuits, or better ones if the search finds some.

    The search is bounded by steps, not by time: equal arguments give equal circuits on every
    machine. It makes more of them if much might be gained, as planning delays traffic too.

    Args:
        owed: Bytes [from, to], diagonal empty.
        ports: Optical NICs of each server.
        rates: Bytes per second of an optical NIC.

    Returns:
        Circuits of each pair [server, server], symmetric; the same for the transposed demand.
    """
    # Dispatch and combine are each other's transpose and share their circuits.
    canonical = min(owed, owed.T, key=lambda matrix: matrix.tolist())
    return _Problem(canonical, ports, rates, links).searched()


@dataclass(frozen=True)
class Joint(MovingCircuits):
    """The best circuits that the search finds, with the best split over them."""

    name: str = "joint"

    def circuits(
        self, fabric: Fabric, region: Region, demand: DemandMatrix, current: CircuitSet
    ) -> CircuitSet:
        """Choose the fastest of three: lit circuits, even ones, and the best for the demand."""
        if not fabric.leaves or not fabric.optical:
            return MIXNET.circuits(fabric, region, demand, current)
        owed, ports = off_diagonal(demand), np.array(usable_ports(fabric, region))
        rates, links = nic_rates(fabric, region.servers), EpsLinks.of(fabric, region.servers)
        return self.choose(fabric, region, _Problem(owed, ports, rates, links), current)
