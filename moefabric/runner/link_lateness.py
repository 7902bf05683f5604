"""How late the relay of programmed links has been during a run, and what that says of the run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from moefabric.core.topology import Fabric
from moefabric.core.units import duration_text
from moefabric.emulator.fabric import lifecycle
from moefabric.runner.result_parts import LinkLateness

LEAST_BOUND_NS: Final = 500_000
"""Lateness that degrades no run; a relay on an idle machine wakes up within 0.2 ms."""
DELAY_SHARE: Final = 0.05
"""Lateness that degrades no run, as a share of the links' delay."""


@contextmanager
def link_lateness(fabric: Fabric, *, enabled: bool) -> Iterator[list[LinkLateness]]:
    """Measure the lateness of a running fabric's links during the `with`.

    Yields:
        A list that holds the lateness afterwards; it stays empty if links aren't programmed or it
        isn't `enabled`.
    """
    measured: list[LinkLateness] = []
    if not enabled or fabric.eps_link is None:
        yield measured
        return
    lifecycle.link_lateness(fabric.name)
    yield measured
    measured.append(LinkLateness(**lifecycle.link_lateness(fabric.name)))


def lateness_remarks(fabric: Fabric, lateness: LinkLateness) -> Iterator[str]:
    """Yield why links whose relay was so late degrade a run."""
    link = fabric.eps_link
    delay_ns = fabric.scale.wall_ns(link.behaviour.delay_ns) if link is not None else 0
    bound_ns = max(LEAST_BOUND_NS, DELAY_SHARE * delay_ns)
    if lateness.p99_ns > bound_ns:
        late, most = duration_text(lateness.p99_ns), duration_text(lateness.max_ns)
        yield (
            f"99th percentile of how late links pass packets on, {late}, is over "
            f"{duration_text(bound_ns)} (most: {most})"
        )
    if lateness.overflows:
        yield f"{lateness.overflows} packets were lost because the relay of links was too late"
