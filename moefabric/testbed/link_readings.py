"""What readings of a fabric's queues and programmed links before and after a run say."""

from collections.abc import Iterator
from typing import Final

from moefabric.core.port_counts import QueueCounts
from moefabric.core.topology import Fabric
from moefabric.core.units import duration_text
from moefabric.results.parts import DroppingPort, LinkLateness, QueueDrops
from moefabric.results.verdict import reasons
from moefabric.results.verdict.reasons import RunFinding

LEAST_BOUND_NS: Final = 500_000
"""Lateness that degrades no run; a relay on an idle machine wakes up within 0.2 ms."""
DELAY_SHARE: Final = 0.05
"""Lateness that degrades no run, as a share of the links' delay."""


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


def lateness_findings(fabric: Fabric, lateness: LinkLateness) -> Iterator[RunFinding]:
    """Yield the findings on a relay of links that was late."""
    link = fabric.eps_link
    delay_ns = fabric.scale.wall_ns(link.behaviour.delay_ns) if link is not None else 0
    bound_ns = max(LEAST_BOUND_NS, DELAY_SHARE * delay_ns)
    yield from reasons.LATE_LINKS.judge(
        lateness.p99_ns - bound_ns,
        late=duration_text(lateness.p99_ns),
        bound=duration_text(bound_ns),
        most=duration_text(lateness.max_ns),
    )
    yield from reasons.LATE_RELAY.judge(lateness.overflows)
