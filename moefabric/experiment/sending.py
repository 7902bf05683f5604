"""Sending: what all servers send whom in a collective, by which NIC and at which pace."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.flows import Flow, Split, flows
from moefabric.fluid import Prediction
from moefabric.spread import on_few_nics
from moefabric.topology import Fabric

PACING_HEADROOM: Final = 1.03
"""A flow is paced this much above its planned rate: what it loses to starting it makes good."""


class Policy(Protocol):
    """How a demand is parted over light and EPS."""

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split: ...


@dataclass(frozen=True)
class PacedFlow:
    """What an agent has to send."""

    src: str
    dst: str
    path: str
    bytes: int
    rate_bps: float | None


def planned_flows(
    fabric: Fabric, policy: Policy, demand: DemandMatrix, circuits: CircuitSet
) -> tuple[Flow, ...]:
    """What all servers send whom and by which NIC, each region's demand split by itself."""
    made: list[Flow] = []
    for region in fabric.regions:
        split = policy.split(fabric, demand.of(region.servers), circuits)
        made += on_few_nics(fabric, flows(fabric, circuits, split))
    return tuple(made)


def lit_together(lit: Iterable[CircuitSet]) -> CircuitSet:
    """The light of several regions: no circuit leaves one."""
    return CircuitSet(frozenset(circuit for each in lit for circuit in each.circuits))


def paced(
    fabric: Fabric, planned: Sequence[Flow], predictions: Mapping[str, Prediction], *, greedily: bool = False
) -> list[PacedFlow]:
    """What the agents are told: bytes really sent, and a pace at which each region's flows end together; none where they are to be greedy."""
    scale = fabric.scale
    made = []
    # The largest first: the fullest link must not wait while an agent starts the others.
    for flow in sorted(planned, key=lambda flow: -flow.bytes):
        size = scale.size_bytes(flow.bytes)
        wall_s = predictions[fabric.region_of[flow.src].name].seconds * scale.dilation
        rate = None if greedily else PACING_HEADROOM * 8 * size / wall_s
        made.append(PacedFlow(flow.src, flow.dst, flow.path, size, rate))
    return made
