"""A plan: what one policy would light for a demand, who would send what by which way, and how long that takes."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite
from types import MappingProxyType
from typing import Any, Final

from controller.planner import nics
from controller.planner.eps import EpsOnly
from controller.planner.htsim import MIXNET_HTSIM
from controller.planner.joint import Joint
from controller.planner.matching import Matching
from controller.planner.mixnet import MIXNET
from controller.planner.policy import Counts, Policy, counted
from controller.planner.round_robin import RoundRobin
from controller.planner.spill import Spill
from controller.planner.static import Static
from controller.planner.topoopt import TopoOpt
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.errors import SpecError
from moefabric.flows import Split, flows
from moefabric.fluid import bound_s, predict
from moefabric.forwarding import ways
from moefabric.topology import Fabric, Region

_NONE: Final = CircuitSet()

POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            MIXNET,
            MIXNET_HTSIM,
            Spill(),
            Spill("mixnet-spill"),
            Joint(),
            Matching(),
            RoundRobin(),
            TopoOpt(),
            Static(),
            EpsOnly(),
        )
    }
)
"""Every policy, by the name that a specification calls it."""


def policy_named(name: str) -> Policy:
    """The policy of that name. SpecError, with the names there are, where there is none."""
    if name not in POLICIES:
        raise SpecError([("policy", f"{name!r} is not one of {', '.join(POLICIES)}")])
    return POLICIES[name]


@dataclass(frozen=True)
class Plan:
    """What `chosen` lights for a region's demand; who sends what then, and how long that takes, is found out when it is asked for.

    Whoever moves light needs the circuits alone, and traffic waits for them. Bytes and seconds are the model's.
    """

    fabric: Fabric
    region: Region
    demand: DemandMatrix
    chosen: Policy
    circuits: CircuitSet

    @property
    def policy(self) -> str:
        """The policy's name."""
        return self.chosen.name

    @property
    def servers(self) -> tuple[str, ...]:
        """Those of the region, in the order of rows and columns."""
        return self.region.servers

    @cached_property
    def counts(self) -> Counts:
        """How many circuits each pair has."""
        return tuple(tuple(row) for row in counted(self.servers, self.circuits).tolist())

    @property
    def leftover_ports(self) -> tuple[int, ...]:
        """How many optical NICs of each server end no circuit."""
        ports = nics.ports(self.fabric, self.region)
        return tuple(port - sum(row) for port, row in zip(ports, self.counts, strict=True))

    @cached_property
    def split(self) -> Split:
        """Which share of each pair's bytes goes by which light, and which by the EPS."""
        return self.chosen.split(self.fabric, self.demand, self.circuits)

    @property
    def predicted_s(self) -> float:
        """When all has arrived by the fluid model; infinite where a pair has no way at all."""
        if self._stranded:
            return inf
        return predict(self.fabric, self.circuits, flows(self.fabric, self.circuits, self.split)).seconds

    @property
    def _stranded(self) -> bool:
        """Whether a pair has no way: without electrical NICs and light, unless servers forward. The fluid model would refuse its flow."""
        fabric = self.fabric
        return not fabric.electrical and any(
            share.eps_bytes > 0 and not (fabric.panel and (share.src, share.dst) in ways(self.circuits))
            for share in self.split
        )

    @property
    def bound_s(self) -> float:
        """No fabric with these NICs is sooner."""
        return bound_s(self.fabric, self.demand)

    def to_json(self) -> dict[str, Any]:
        """As `moefabric plan --json` prints it; a prediction without end is null."""
        predicted_s = self.predicted_s
        return {
            "policy": self.policy,
            "circuits": [list(row) for row in self.counts],
            "leftover_ports": list(self.leftover_ports),
            "split": [
                {"from": s.src, "to": s.dst, "light_bytes": s.light_bytes, "eps_bytes": s.eps_bytes}
                for s in self.split
            ],
            "predicted_s": predicted_s if isfinite(predicted_s) else None,
            "bound_s": self.bound_s,
        }


def plan(
    fabric: Fabric,
    region: Region,
    demand: DemandMatrix,
    policy: Policy,
    now: CircuitSet,
    held: CircuitSet = _NONE,
) -> Plan:
    """What `policy` makes of a region's demand while `now` is lit. SpecError where the demand is not of the region's servers.

    NICs that are out in `fabric` end no circuit. Circuits in `held` stay whatever is owed, and the policy has the other NICs.
    """
    if demand.servers != region.servers:
        raise SpecError(
            [
                (
                    "servers",
                    f"{', '.join(demand.servers)} are not the servers of {region.name}, {', '.join(region.servers)}",
                )
            ]
        )
    free = fabric.without(nic for circuit in held for nic in (circuit.a, circuit.b))
    kept = CircuitSet(frozenset(circuit for circuit in now if not {circuit.a, circuit.b} & free.out))
    circuits = CircuitSet(policy.circuits(free, region, demand, kept).circuits | held.circuits)
    return Plan(fabric, region, demand, policy, circuits)
