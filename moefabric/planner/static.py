"""Static circuits: spread evenly over the pairs of servers and set once, whatever the demand."""

from collections.abc import Sequence
from typing import Final

from moefabric.planner.pair_order import Pair, PairOrderPolicy, affordable_pairs


def ring_order(ports: Sequence[int]) -> list[Pair]:
    """Order pairs so that no server is preferred.

    Neighbours on a ring come first, then servers two apart, and so on; the whole sequence repeats
    while two servers of a pair have free ports.

    Args:
        ports: Usable optical NICs of each server.

    Returns:
        The pairs, one entry for each circuit.
    """
    servers = len(ports)
    ring = [
        (min(i, j), max(i, j))
        for distance in range(1, servers // 2 + 1)
        for i, j in ((i, (i + distance) % servers) for i in range(servers))
        if i < j or 2 * distance != servers  # half-way round, both ends would name the same pair
    ]
    return affordable_pairs(ring * max(ports, default=0), ports)


STATIC: Final = PairOrderPolicy(
    "static", lambda _demand, ports: ring_order(ports), reconfigures=False, suits_patch_panel=True
)
"""Uniform circuits that never change; a pair with a circuit sends over it alone."""
