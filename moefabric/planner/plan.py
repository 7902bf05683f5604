"""Plans: the circuits that a policy gives a demand, the split over them and the prediction."""

from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import SpecError
from moefabric.core.flows import Split, flows
from moefabric.core.forwarding import next_hops
from moefabric.core.topology import Fabric, Region
from moefabric.planner.arrays import circuit_matrix
from moefabric.planner.horizon import Horizon
from moefabric.planner.nic_assignment import usable_ports
from moefabric.planner.policy import Policy
from moefabric.simulator.fluid import bound_s, predict

_P = TypeVar("_P")


@runtime_checkable
class HorizonPolicy(Protocol):
    """A policy that weighs the all-to-alls that its circuits will serve."""

    def with_horizon(self, horizon: Horizon) -> Self:
        """Return the policy that knows the all-to-alls that its circuits will serve."""


def with_horizon(policy: _P, horizon: Horizon | None) -> _P:
    """Return a policy that knows its horizon, if it is a policy that weighs horizons."""
    if horizon is not None and isinstance(policy, HorizonPolicy):
        return policy.with_horizon(horizon)
    return policy


@dataclass(frozen=True)
class Plan:
    """The circuits that a policy chose for a region's demand.

    The split and the prediction are computed when they are first read: a controller that moves
    circuits while traffic waits needs only the circuits. Bytes and seconds are the model's.

    Attributes:
        fabric: The wired fabric.
        region: The region whose servers are joined.
        demand: Bytes between the servers of the region.
        policy: The policy that chose.
        circuits: The circuits chosen.
    """

    fabric: Fabric
    region: Region
    demand: DemandMatrix
    policy: Policy
    circuits: CircuitSet

    @property
    def servers(self) -> tuple[str, ...]:
        """Servers of the region, in the order of rows and columns."""
        return self.region.servers

    @cached_property
    def counts(self) -> tuple[tuple[int, ...], ...]:
        """Circuits of each pair [server][server]."""
        return tuple(map(tuple, circuit_matrix(self.servers, self.circuits).tolist()))

    @property
    def leftover_ports(self) -> tuple[int, ...]:
        """Usable optical NICs of each server that end no circuit."""
        ports = usable_ports(self.fabric, self.region)
        return tuple(port - sum(row) for port, row in zip(ports, self.counts, strict=True))

    @cached_property
    def split(self) -> Split:
        """Each pair's bytes over its circuits and over the EPS."""
        return self.policy.split(self.fabric, self.demand, self.circuits)

    @property
    def predicted_s(self) -> float:
        """Completion time in the fluid model; infinite if a pair has no route."""
        if self._has_unreachable_pair:
            return inf
        sent = flows(self.fabric, self.circuits, self.split)
        return predict(self.fabric, self.circuits, sent).seconds

    @property
    def _has_unreachable_pair(self) -> bool:
        """True if a pair has neither electrical NICs nor circuits, nor servers that forward."""
        fabric = self.fabric
        return not fabric.electrical and any(
            share.eps_bytes > 0
            and not (fabric.patch_panel and (share.src, share.dst) in next_hops(self.circuits))
            for share in self.split
        )

    @property
    def bound_s(self) -> float:
        """Lower bound of the completion time on any fabric with these NICs."""
        return bound_s(self.fabric, self.demand)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `moefabric plan --json` prints.

        An infinite prediction is null.
        """
        return dict(self._document)

    @cached_property
    def _document(self) -> dict[str, Any]:
        predicted_s = self.predicted_s
        return {
            "policy": self.policy.name,
            "circuits": [list(row) for row in self.counts],
            "leftover_ports": list(self.leftover_ports),
            "split": [share.to_json() for share in self.split],
            "predicted_s": predicted_s if isfinite(predicted_s) else None,
            "bound_s": self.bound_s,
        }


def plan(
    fabric: Fabric,
    region: Region,
    demand: DemandMatrix,
    policy: Policy,
    current: CircuitSet,
    pinned: CircuitSet | None = None,
    horizon: Horizon | None = None,
) -> Plan:
    """Let a policy choose the circuits for a region's demand.

    Example:
        >>> from moefabric import Eps, Ocs, policy_named
        >>> region = Region("r0", 0, ("s0", "s1", "s2"), Ocs("ocs0", ports=3))
        >>> fabric = Fabric("lab", (region,), 8, 1, 1, 100e9, Eps(servers_per_leaf=4))
        >>> demand = DemandMatrix(region.servers, [[0, 1e9, 8e9], [1e9, 0, 1e9], [8e9, 1e9, 0]])
        >>> chosen = plan(fabric, region, demand, policy_named("mixnet"), CircuitSet())
        >>> str(chosen.circuits), round(chosen.predicted_s, 3)
        ('s0/o0~s2/o0', 0.669)

    Args:
        fabric: The wired fabric. NICs in `fabric.unusable_nics` end no circuit.
        region: The region whose servers are joined.
        demand: Bytes between the servers of the region, in their order.
        current: Circuits that are lit.
        pinned: Circuits that stay whatever the demand; the policy has the other NICs.
        horizon: The all-to-alls that the circuits will serve; None if it is unknown.

    Returns:
        The plan, which contains the pinned circuits.

    Raises:
        SpecError: If the demand isn't that of the region's servers.
    """
    if demand.servers != region.servers:
        wrong, right = ", ".join(demand.servers), ", ".join(region.servers)
        raise SpecError([("servers", f"{wrong} are not the servers of {region.name}, {right}")])
    pinned = pinned or CircuitSet()
    free = fabric.without_nics(pinned.nics)
    usable = current.without_nics(free.unusable_nics)
    chosen = with_horizon(policy, horizon).circuits(free, region, demand, usable)
    circuits = CircuitSet(chosen.circuits | pinned.circuits)
    return Plan(fabric, region, demand, policy, circuits)
