"""Flows of a demand, and the rates at which agents pace them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Flow, PacedFlow, Split, consolidated_flows, flows
from moefabric.core.topology import Fabric, Region, drops_packets
from moefabric.planner.robust_split import assumed_split

MOST_HEADROOM, LEAST_HEADROOM = 1.03, 1.003
"""Ratio of pace to planned rate, which keeps a planned link full though flows begin late.

A full link queues what exceeds its rate. Linux lets a flow have two frames in all queues; a flow
with more to send gets an equal share of the link instead of its own, so that small flows end early
and large ones late, and links that wait for large ones stand idle. So a flow exceeds its planned
rate by a frame in all, within these bounds: the first frame is early by itself.
"""

LIMITED_HEADROOM: Final = 0.975
"""Ratio of pace to planned rate with limited queues, which a faster pace would overflow.

Acknowledgements of 66 bytes for every two packets of 1,514 bytes take 2.2 % of a link.
"""

BURST_SEGMENTS: Final = 8
"""Segments that a connection sends at once, however slow its pace (`emulator.fabric.links`)."""


class SplitPolicy(Protocol):
    """Chooses the circuits of a demand, and splits it over circuits and EPS."""

    def circuits(
        self, fabric: Fabric, region: Region, demand: DemandMatrix, now: CircuitSet
    ) -> CircuitSet:
        """Return the circuits that a region's demand deserves while `now` is lit."""

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        """Return the split of a demand over circuits and EPS."""


def planned_flows(
    fabric: Fabric,
    policy: SplitPolicy,
    demand: DemandMatrix,
    circuits: CircuitSet,
    groups: Mapping[str, Sequence[str]] | None = None,
    *,
    greedy: bool = False,
    split_demands: Sequence[DemandMatrix] = (),
) -> tuple[Flow, ...]:
    """Return the flows of a demand; the demand of each region is split by itself.

    Flows over the EPS are consolidated, unless they are greedy or each GPU has its own NIC.

    Args:
        fabric: The fabric that carries the flows.
        policy: Splits each region's demand.
        demand: Bytes between servers, of one region or of several.
        circuits: The lit circuits of these regions.
        groups: The servers that work for each region; by default the region's own.
        greedy: Whether congestion control alone sets the rates of flows. It gives the flows of a
            NIC equal rates, whatever their sizes: a few large flows end later than many small ones.
        split_demands: The demands for which the split is computed; empty for `demand`.
    """
    planned: list[Flow] = []
    for servers in (fabric.ep_groups if groups is None else groups).values():
        owed = demand.submatrix(servers)
        assumed = [other.submatrix(servers) for other in split_demands]
        split = assumed_split(fabric, policy.split, owed, circuits, assumed)
        spread = flows(fabric, circuits, split, owed.rank_parts if fabric.nic_per_gpu else {})
        stays = greedy or fabric.nic_per_gpu
        planned += spread if stays else consolidated_flows(fabric, spread)
    return tuple(planned)


def merge_circuits(regions: Iterable[CircuitSet]) -> CircuitSet:
    """Return the circuits of several regions as one set; no circuit leaves a region."""
    match list(regions):
        case [only]:
            return only
        case several:
            return CircuitSet(frozenset[Circuit]().union(*(region.circuits for region in several)))


def pace_bps(fabric: Fabric, size: int, wall_s: float) -> float | None:
    """Return the rate at which `size` bytes take `wall_s`; None if they leave in one burst.

    A connection pauses after each burst to keep its rate. At a few bytes a second, this pause would
    delay the bytes of the next collective, too. A burst is one packet if queues have limited room.
    """
    is_limited = drops_packets(fabric)
    burst = fabric.mtu * (1 if is_limited else BURST_SEGMENTS)
    if size <= burst:
        return None
    unlimited_headroom = max(LEAST_HEADROOM, min(1 + burst / size, MOST_HEADROOM))
    return (LIMITED_HEADROOM if is_limited else unlimited_headroom) * 8 * size / wall_s


def pace_flows(
    fabric: Fabric, planned: Sequence[Flow], seconds: Sequence[float], *, greedy: bool = False
) -> list[PacedFlow]:
    """Return the transfers of the agents, which take the given model seconds each.

    They have the order of the flows. `greedy` transfers are not paced.
    """
    paced = []
    for flow, model_s in zip(planned, seconds, strict=True):
        size = fabric.scale.size_bytes(flow.bytes)
        rate = None if greedy else pace_bps(fabric, size, model_s * fabric.scale.dilation)
        paced.append(PacedFlow(flow.src, flow.dst, flow.path, size, rate))
    return paced
