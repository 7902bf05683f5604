"""A plan: what one policy would light for a demand, who would send what by which way, and how long that takes."""

from collections.abc import Mapping
from dataclasses import dataclass
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
    """What to light and who sends what. Bytes and seconds are the model's; `predicted_s` is infinite where a pair has no way at all."""

    policy: str
    servers: tuple[str, ...]
    circuits: CircuitSet
    counts: Counts
    leftover_ports: tuple[int, ...]
    split: Split
    predicted_s: float
    bound_s: float

    def to_json(self) -> dict[str, Any]:
        """As `moefabric plan --json` prints it; a prediction without end is null."""
        return {
            "policy": self.policy,
            "circuits": [list(row) for row in self.counts],
            "leftover_ports": list(self.leftover_ports),
            "split": [
                {"from": s.src, "to": s.dst, "light_bytes": s.light_bytes, "eps_bytes": s.eps_bytes}
                for s in self.split
            ],
            "predicted_s": self.predicted_s if isfinite(self.predicted_s) else None,
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
    split = policy.split(fabric, demand, circuits)
    matrix = counted(region.servers, circuits)
    # Without electrical NICs, a pair without light has no way unless servers forward: the fluid model would refuse the flow.
    stranded = not fabric.electrical and any(
        share.eps_bytes > 0 and not (fabric.panel and (share.src, share.dst) in ways(circuits))
        for share in split
    )
    return Plan(
        policy=policy.name,
        servers=region.servers,
        circuits=circuits,
        counts=tuple(tuple(int(count) for count in row) for row in matrix),
        leftover_ports=tuple(
            ports - int(used)
            for ports, used in zip(nics.ports(fabric, region), matrix.sum(axis=1), strict=True)
        ),
        split=split,
        predicted_s=inf if stranded else predict(fabric, circuits, flows(fabric, circuits, split)).seconds,
        bound_s=bound_s(fabric, demand),
    )
