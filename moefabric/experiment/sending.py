"""Sending: what all servers send whom in a collective, by which NIC and at which pace."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.flows import Flow, Split, flows
from moefabric.fluid import Prediction, works_for
from moefabric.spread import on_few_nics
from moefabric.topology import Fabric, Region

PACING_HEADROOM: Final = 1.03
"""A flow is paced this much above its planned rate: what it loses to starting it makes good."""

BURST_SEGMENTS: Final = 8
"""Segments that a connection sends at once, however slow its pace (`emulator.links`)."""


class Policy(Protocol):
    """What a demand lights, and how it is parted over light and EPS."""

    def circuits(
        self, fabric: Fabric, region: Region, demand: DemandMatrix, now: CircuitSet
    ) -> CircuitSet: ...
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
    fabric: Fabric,
    policy: Policy,
    demand: DemandMatrix,
    circuits: CircuitSet,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Flow, ...]:
    """What all servers send whom and by which NIC, the demand of each region, or of each of the `groups` that work for one, split by itself."""
    made: list[Flow] = []
    for servers in (fabric.groups if groups is None else groups).values():
        split = policy.split(fabric, demand.of(servers), circuits)
        each = flows(fabric, circuits, split)
        made += each if any(share.by_nic for share in split) else on_few_nics(fabric, each)
    return tuple(made)


def lit_together(lit: Iterable[CircuitSet]) -> CircuitSet:
    """The light of several regions: no circuit leaves one."""
    return CircuitSet(frozenset(circuit for each in lit for circuit in each.circuits))


def pace_bps(fabric: Fabric, size: int, wall_s: float) -> float | None:
    """The pace at which so many bytes end in so many seconds; None for what leaves at once at any pace.

    A connection waits after each burst for as long as its pace says: after a few bytes at a few bytes a second, the next collective's would wait too.
    """
    return PACING_HEADROOM * 8 * size / wall_s if size > BURST_SEGMENTS * fabric.mtu else None


def paced(
    fabric: Fabric,
    planned: Sequence[Flow],
    predictions: Mapping[str, Prediction],
    groups: Mapping[str, Sequence[str]] | None = None,
    *,
    greedily: bool = False,
) -> list[PacedFlow]:
    """What the agents are told: bytes really sent, and a pace at which each region's flows end together; none where they are to be greedy."""
    scale, region_of = fabric.scale, works_for(fabric, groups)
    made = []
    # The largest first: the fullest link must not wait while an agent starts the others.
    for flow in sorted(planned, key=lambda flow: -flow.bytes):
        size = scale.size_bytes(flow.bytes)
        wall_s = predictions[region_of[flow.src]].seconds * scale.dilation
        rate = None if greedily else pace_bps(fabric, size, wall_s)
        made.append(PacedFlow(flow.src, flow.dst, flow.path, size, rate))
    return made
