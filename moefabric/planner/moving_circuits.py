"""Policies that move circuits only where that pays in the rest of the job."""

from dataclasses import dataclass, field, replace
from math import inf
from typing import Protocol, Self

from moefabric.core.circuits import CircuitSet
from moefabric.core.topology import Fabric, Region
from moefabric.planner.arrays import Ints, circuit_matrix
from moefabric.planner.horizon import Horizon
from moefabric.planner.nic_assignment import assign_nics
from moefabric.planner.policy import PolicyTraits


class Candidates(Protocol):
    """Circuits that may be the best for a demand, as counts [server, server], with their times."""

    @property
    def nearly_best_s(self) -> float:
        """Time at which circuits count as the best: that of a bound, or little above it."""

    @property
    def even(self) -> Ints:
        """Circuits that are spread evenly."""

    def seconds(self, counts: Ints) -> float:
        """Return when the demand ends over circuits; equal counts have equal times."""

    def best(self, known: Ints, known_s: float) -> tuple[Ints, float]:
        """Return the best circuits and their time.

        Args:
            known: Circuits whose time is known.
            known_s: Their time.
        """


def moving_s(fabric: Fabric, region: Region) -> float:
    """Return the model seconds for which circuits of a region are dark when they move."""
    moving_ns = region.ocs.settle_ns + region.ocs.link_up_ns if region.ocs else 0
    return moving_ns / 1e9 / fabric.scale.dilation


@dataclass(frozen=True)
class MovingCircuits(PolicyTraits):
    """Chooses the fastest of three: lit circuits, even ones, and the best for the demand.

    Circuits that are lit stay unless others save more in the rest of the job than their
    reconfigurations take (`moefabric.planner.horizon`).

    Attributes:
        name: The name that specifications use.
        horizon: The all-to-alls that circuits will serve.
    """

    name: str
    splits_by_demand: bool = field(default=True, kw_only=True)
    horizon: Horizon = field(default_factory=Horizon)

    def with_horizon(self, horizon: Horizon) -> Self:
        """Return the policy that knows the all-to-alls that circuits will serve."""
        return replace(self, horizon=horizon)

    def choose(
        self, fabric: Fabric, region: Region, candidates: Candidates, current: CircuitSet
    ) -> CircuitSet:
        """Choose the circuits that take least time in the rest of the job.

        Args:
            region: The region whose servers are joined.
            candidates: Circuits for the region's demand.
            current: Circuits that are lit.
        """
        dark_s, even = moving_s(fabric, region), candidates.even
        counts = circuit_matrix(region.servers, current)
        lit_s = candidates.seconds(counts)
        lit = bool(current) and lit_s < inf
        if lit and self.horizon.stays(lit_s, candidates.nearly_best_s, dark_s):
            return current
        even_s = candidates.seconds(even)
        known = (counts, lit_s) if lit and lit_s <= even_s else (even, even_s)
        best, best_s = candidates.best(*known)
        choice = self.horizon.choice(lit_s, even_s, best_s, dark_s, lit=lit)
        return assign_nics(
            fabric, region, {"lit": counts, "even": even, "best": best}[choice], current
        )
