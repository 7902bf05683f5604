"""The policy protocol, the base class of policies, the baseline, and what a policy knows."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Split
from moefabric.core.topology import Fabric, Region
from moefabric.planner.waterfill import circuit_first_split, optimal_split


class Policy(Protocol):
    """Chooses the circuits of a region and splits its demand over OCS and EPS.

    A policy is pure: equal demand and equal current circuits give equal circuits and an equal
    split.

    Example:
        >>> from moefabric import policy_named
        >>> policy = policy_named("joint")
        >>> policy.name, policy.reconfigures, policy.splits_by_demand
        ('joint', True, True)
    """

    @property
    def name(self) -> str:
        """The name that specifications use."""

    @property
    def reconfigures(self) -> bool:
        """True if circuits change while a job runs; otherwise they are set once, before it."""

    @property
    def forwards(self) -> bool:
        """True if the split sends bytes through other servers."""

    @property
    def splits_by_demand(self) -> bool:
        """True if the split divides a pair's bytes among its paths by the demand of all pairs."""

    @property
    def suits_patch_panel(self) -> bool:
        """True if the circuits are set once and connect servers without an EPS."""

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

        Returns:
            One share for each ordered pair of servers that owes something.
        """


@dataclass(frozen=True, kw_only=True)
class PolicyTraits:
    """The facts and the split of a policy that has no special needs.

    Example:
        A policy that lights one circuit between the first two servers of a region:

        >>> @dataclass(frozen=True)
        ... class FirstPair(PolicyTraits):
        ...     name: str = "first-pair"
        ...
        ...     def circuits(self, fabric, region, demand, current):
        ...         a, b = region.servers[:2]
        ...         return CircuitSet.of([f"{a}/o0~{b}/o0"])
        >>> FirstPair().reconfigures
        True

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

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        """Split by demand so that circuits and the EPS end together, or else circuits first."""
        if self.splits_by_demand:
            return optimal_split(fabric, demand, circuits)
        return circuit_first_split(demand, circuits)


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


class KnownDemand(StrEnum):
    """Knowledge of a job's demand with which a policy chooses circuits."""

    NOTHING = "nothing"
    """None: the policy chooses no circuits."""
    OWN = "own demand"
    """The demand of the all-to-all for which it chooses, once the gate has run."""
    PREDICTED = "predicted demand"
    """For first all-to-alls a prediction from demands before; its own demand for others."""
    FUTURE_TOTAL = "future total"
    """The sum of all dispatches of the job before it begins, which nobody knows in a cluster."""


def known_demand(policy: Policy, dispatch_light: str) -> KnownDemand:
    """Return a policy's knowledge of demands.

    Args:
        dispatch_light: What first all-to-alls do until their circuits are lit.
    """
    if policy.name == "eps":
        return KnownDemand.NOTHING
    if not policy.reconfigures:
        return KnownDemand.FUTURE_TOTAL
    return KnownDemand.PREDICTED if dispatch_light == "predict" else KnownDemand.OWN
