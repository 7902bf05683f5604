"""Policies that move circuits only where that pays in the rest of the job."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Final, Self

import numpy as np

from moefabric.core.circuits import CircuitSet
from moefabric.core.topology import Fabric, Region
from moefabric.core.units import NS_PER_S
from moefabric.planner.arrays import Array, Ints, circuit_counts, circuit_matrix
from moefabric.planner.even_circuits import even_order
from moefabric.planner.horizon import Horizon
from moefabric.planner.nic_assignment import assign_nics
from moefabric.planner.policy import PolicyTraits
from moefabric.planner.waterfill import EpsLinks, Rates, pair_rates

_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class Candidates(ABC):
    """Circuits that may be the best for a demand, as counts [server, server], with their times.

    Attributes:
        owed: Bytes [from, to], diagonal empty.
        ports: Optical NICs of each server.
        rates: Bytes per second of an optical NIC.
        links: Links of the EPS.
    """

    owed: Array
    ports: Ints
    rates: Rates
    links: EpsLinks

    @cached_property
    def pair_rates(self) -> Array:
        """Bytes per second of a pair's circuit [server, server]."""
        return pair_rates(self.rates, len(self.ports))

    @cached_property
    def bound_s(self) -> float:
        """A time below which the NICs of no server carry its bytes."""
        nics = self.rates * self.ports + self.links.nics
        due = np.maximum(self.owed.sum(axis=0), self.owed.sum(axis=1))
        return float(np.divide(due, nics, out=np.zeros(len(due)), where=nics > 0).max(initial=0.0))

    @property
    def nearly_best_s(self) -> float:
        """Time at which circuits count as the best: that of a bound, or little above it."""
        return self.bound_s

    @cached_property
    def even(self) -> Ints:
        """Circuits that are spread evenly."""
        return circuit_counts(len(self.ports), even_order(self.ports.tolist()))

    @abstractmethod
    def seconds(self, counts: Ints) -> float:
        """Return when the demand ends over circuits; equal counts have equal times."""

    @abstractmethod
    def best(self, known: Ints, known_s: float) -> tuple[Ints, float]:
        """Return the best circuits and their time.

        Args:
            known: Circuits whose time is known.
            known_s: Their time.
        """

    def sooner(self, best: Ints, best_s: float, *others: Ints) -> tuple[Ints, float]:
        """Return the circuits that end sooner than the best, if there are any, and when."""
        for counts in others:
            found_s = self.seconds(counts)
            if found_s < best_s * (1 - _ROUNDING):
                best, best_s = counts, found_s
        return best, best_s


def moving_s(fabric: Fabric, region: Region) -> float:
    """Return the model seconds for which circuits of a region are dark when they move."""
    return region.moving_ns / NS_PER_S / fabric.scale.dilation


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
