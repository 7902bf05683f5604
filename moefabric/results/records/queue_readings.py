"""Readings of queues before and after a run: bytes at the uplinks to spines, and dropped packets.

Bytes that cross the spines of the EPS are planned by their routes, and counted at the uplinks.
"""

from collections.abc import Iterable, Sequence

from moefabric.core.circuits import CircuitSet
from moefabric.core.flows import Flow
from moefabric.core.port_counts import FRAME_HEADER_BYTES, QueueCounts
from moefabric.core.routes import crosses_spine, route
from moefabric.core.topology import Fabric
from moefabric.results.parts import CollectiveResult, DroppingPort, QueueDrops, SpineTraffic


def spine_bytes(fabric: Fabric, planned: Iterable[Flow]) -> float:
    """Return the bytes of flows whose routes cross a spine; no circuit leads there."""
    return sum(
        flow.bytes
        for flow in planned
        if not flow.is_optical and crosses_spine(route(fabric, CircuitSet(), flow))
    )


def uplink_payload(before: QueueCounts, after: QueueCounts) -> int:
    """Return the payload that left all leaves' ports to spines between two readings.

    A queue counts each packet of a large frame with headers of its own, and an acknowledgement as a
    packet without payload.
    """
    return sum(
        counts["bytes"]
        - before[port]["bytes"]
        - FRAME_HEADER_BYTES * (counts["packets"] - before[port]["packets"])
        for port, counts in after.items()
        if port.startswith("leaf") and " to spine" in port
    )


def spine_traffic(
    fabric: Fabric, sent: Sequence[CollectiveResult], counted: int | None
) -> SpineTraffic | None:
    """Return the bytes that crossed the spines; None without spines.

    Args:
        fabric: The wired fabric.
        sent: All collectives and transfers.
        counted: Payload that left the uplinks, in emulated bytes; None if nobody counted.
    """
    if not fabric.spines:
        return None
    crossed = sum(collective.bytes_planned_by_spines for collective in sent)
    return SpineTraffic(
        bytes=crossed,
        share=crossed / max(1, sum(collective.bytes for collective in sent)),
        counted_bytes=None if counted is None else round(counted * fabric.scale.bytes),
    )


def queue_drops(room: str, before: QueueCounts, after: QueueCounts) -> QueueDrops:
    """Return the packets that left all queues and those that were dropped between two readings.

    Args:
        room: Room of the queues.
        before: Counters at the beginning.
        after: Counters at the end.
    """
    ports = [
        DroppingPort(
            port=port,
            packets=counts["packets"] - before[port]["packets"],
            drops=counts["drops"] - before[port]["drops"],
        )
        for port, counts in after.items()
    ]
    return QueueDrops(
        limit=room,
        packets=sum(port.packets for port in ports),
        drops=sum(port.drops for port in ports),
        ports=sorted((p for p in ports if p.drops), key=lambda p: (-p.drops, p.port)),
    )
