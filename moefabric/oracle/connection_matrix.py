"""htsim's connection matrices (`.cm`): one line for each flow.

    Nodes 8
    Connections 2
    0->1 id 1 start 0 size 524288
    1->0 id 2 start 0 size 524288

`htsim_ndp -tm FILE -nodes 8 -linkspeed 100000 -mtu 9000 -q 100 -strat perm -cwnd 50` simulates
100 Gb/s; `start` is in picoseconds, and a size is at most 2,147,483,647 bytes.
"""

import re
from collections.abc import Mapping
from typing import Final

from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import SpecError

MAX_BYTES: Final = 2**31 - 1
"""Largest flow of htsim, whose sizes are 32-bit integers."""
_COUNT = re.compile(r"(Nodes|Connections) (\d+)$")
_FLOW = re.compile(r"(\d+)->(\d+)(?: id \d+)?(?: start (\d+))? size (\d+)$")


def connection_matrix_text(demand: DemandMatrix, nodes: int | None = None) -> str:
    """Return a demand as a connection matrix.

    Pairs that owe more than htsim's largest flow have several flows.

    Args:
        demand: Bytes between servers.
        nodes: Number of nodes; by default that of the servers.
    """
    sizes = [
        (a, b, size) for (a, b), total in whole_bytes(demand).items() for size in _parts(total)
    ]
    lines = [f"Nodes {nodes or len(demand.servers)}", f"Connections {len(sizes)}"]
    lines += [f"{a}->{b} id {n} start 0 size {s}" for n, (a, b, s) in enumerate(sizes, start=1)]
    return "\n".join(lines) + "\n"


def whole_bytes(demand: DemandMatrix) -> Mapping[tuple[int, int], int]:
    """Return the whole bytes, above 0, that each pair of servers owes, by their positions."""
    index = {server: position for position, server in enumerate(demand.servers)}
    owed = {(index[a], index[b]): round(size) for a, b, size in demand.pairs()}
    return {pair: size for pair, size in owed.items() if size}


def _parts(total: int) -> list[int]:
    full, rest = divmod(total, MAX_BYTES)
    return [MAX_BYTES] * full + [rest] * bool(rest)


def connection_matrix_demand(text: str) -> DemandMatrix:
    """Return the demand of a connection matrix whose flows all start at once.

    Raises:
        SpecError: If a line is not understood, or counts are wrong.
    """
    counts: dict[str, int] = {}
    flows: list[tuple[int, int, int]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.strip()
        if match := _COUNT.match(words):
            counts[match[1]] = int(match[2])
        elif (match := _FLOW.match(words)) and not int(match[3] or 0):
            flows.append((int(match[1]), int(match[2]), int(match[4])))
        elif words and not words.startswith("#"):
            message = f"{words!r} is not a flow that starts at 0, such as '0->1 start 0 size 9'"
            raise SpecError([(f"line {number}", message)])
    nodes = counts.get("Nodes", 0)
    if counts.get("Connections") != len(flows):
        message = f"{counts.get('Connections', 'no')} connections are announced, {len(flows)} given"
        raise SpecError([("Connections", message)])
    rows = [[0] * nodes for _ in range(nodes)]
    for a, b, size in flows:
        if max(a, b) >= nodes:
            raise SpecError([(f"{a}->{b}", f"there are {nodes} nodes only")])
        rows[a][b] += size
    return DemandMatrix([f"s{n}" for n in range(nodes)], rows)
