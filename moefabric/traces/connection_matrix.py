"""htsim's connection matrices (`.cm`) of demands: flows that start at once.

    Nodes 8
    Connections 1
    0->1 id 1 start 0 size 524288

`htsim_ndp -tm FILE -nodes 8 -linkspeed 100000 -mtu 9000 -q 100 -strat perm -cwnd 50` simulates
100 Gb/s; `start` is in picoseconds, and a size is at most 2,147,483,647 bytes.
"""

from typing import Final

from moefabric.core.demand import DemandMatrix
from moefabric.traces.messages import whole_bytes

MAX_BYTES: Final = 2**31 - 1
"""Largest flow of htsim, whose sizes are 32-bit integers."""


def matrix_text(demand: DemandMatrix, nodes: int | None = None) -> str:
    """Return the text of a demand's connection matrix.

    Pairs that owe more than htsim's largest flow have several flows.

    Args:
        demand: Bytes between servers.
        nodes: Number of nodes; by default that of the servers.
    """
    flows = [(a, b, part) for (a, b), size in whole_bytes(demand).items() for part in _parts(size)]
    lines = [f"Nodes {nodes or len(demand.servers)}", f"Connections {len(flows)}"]
    lines += [f"{a}->{b} id {n} start 0 size {part}" for n, (a, b, part) in enumerate(flows, 1)]
    return "\n".join(lines) + "\n"


def _parts(size: int) -> list[int]:
    """Return the sizes of the flows that carry the bytes of a pair."""
    full, rest = divmod(size, MAX_BYTES)
    return [MAX_BYTES] * full + [rest] * bool(rest)
