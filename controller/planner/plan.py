"""A plan: what one policy would light for a demand, who would send what by which way, and how long that takes."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite
from types import MappingProxyType
from typing import Any, Final

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
from moefabric.topology import Fabric, Region

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


def plan(fabric: Fabric, region: Region, demand: DemandMatrix, policy: Policy, now: CircuitSet) -> Plan:
    """What `policy` makes of a region's demand while `now` is lit. SpecError where the demand is not of the region's servers."""
    if demand.servers != region.servers:
        raise SpecError(
            [
                (
                    "servers",
                    f"{', '.join(demand.servers)} are not the servers of {region.name}, {', '.join(region.servers)}",
                )
            ]
        )
    circuits = policy.circuits(fabric, region, demand, now)
    split = policy.split(fabric, demand, circuits)
    matrix = counted(region.servers, circuits)
    # Without electrical NICs, a pair without light has no way: the fluid model would refuse the flow.
    stranded = split.eps_bytes > 0 and not fabric.electrical
    return Plan(
        policy=policy.name,
        servers=region.servers,
        circuits=circuits,
        counts=tuple(tuple(int(count) for count in row) for row in matrix),
        leftover_ports=tuple(int(fabric.optical - used) for used in matrix.sum(axis=1)),
        split=split,
        predicted_s=inf if stranded else predict(fabric, circuits, flows(fabric, circuits, split)).seconds,
        bound_s=bound_s(fabric, demand),
    )
