"""Times of an execution graph on an ideal network, for bounds.

A message takes as long as its bytes at the rate of one NIC, a collective as long as the bytes of
its busiest rank, and neither slows another one down. With an infinite rate, a graph takes as
long as the critical path of the computation.
"""

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from moefabric.core.errors import SpecError
from moefabric.workload.graphs.execution_graph import CollectiveKind, ExecutionGraph, Node


def sent_bytes(node: Node, ranks: int) -> int:
    """Return the bytes that the busiest rank sends or receives in an operation, at the least.

    An all-reduce takes two passes over all but one part of its buffer, as in a ring; parts that a
    rank keeps are left out.

    Args:
        node: The operation.
        ranks: Ranks of its group.
    """
    if node.kind in {"send", "receive"}:
        return node.size
    if node.kind != "collective" or node.collective is None or ranks < 2:
        return 0
    part = (ranks - 1) / ranks
    factors: dict[CollectiveKind, float] = {
        "all_to_all": part, "all_reduce": 2 * part, "reduce_scatter": part, "scatter": part,
        "all_gather": ranks - 1, "gather": ranks - 1, "broadcast": 1, "reduce": 1, "barrier": 0,
    }  # fmt: skip
    return round(node.size * factors[node.collective])


def collective_bytes(nodes: Sequence[Node]) -> int:
    """Return the bytes of the busiest port of a collective, from each rank's operation of it."""
    ranks = len(nodes)
    if nodes[0].collective != "all_to_all":
        return max(sent_bytes(node, ranks) for node in nodes)
    rows = [node.splits or (node.size // ranks,) * ranks for node in nodes]
    sent = max(sum(row) - row[i] for i, row in enumerate(rows))
    received = [sum(row[i] for row in rows) - rows[i][i] for i in range(ranks)]
    return max(sent, *received)


def lengths_s(graph: ExecutionGraph, rates: Sequence[float]) -> list[float]:
    """Return the times of a graph without faults, in seconds.

    Args:
        graph: The graph.
        rates: Rates of a NIC, each way, in bytes a second.

    Raises:
        SpecError: If operations of several ranks wait for each other.
    """
    meetings = list(graph.meetings())
    before = _waits(graph, meetings)
    return [max(_ends_s(meetings, before, rate).values(), default=0.0) for rate in rates]


def _waits(
    graph: ExecutionGraph, meetings: Sequence[Sequence[tuple[int, Node]]]
) -> dict[int, Sequence[int]]:
    """Return the meetings that each meeting waits for, each meeting after those."""
    number_of = {(rank, one.number): n for n, own in enumerate(meetings) for rank, one in own}
    waits = {
        (rank, number): [number_of[rank, one] for one in before]
        for rank in graph.ranks
        for number, before in graph.dependencies(rank).items()
    }
    of_meetings = {
        n: [one for rank, node in own for one in waits[rank, node.number]]
        for n, own in enumerate(meetings)
    }
    try:
        return {n: of_meetings[n] for n in TopologicalSorter(of_meetings).static_order()}
    except CycleError as error:
        members = ((rank, node.number) for n in error.args[1] for rank, node in meetings[n])
        rank, number = min(place for place in members if waits[place])
        message = f"operation {number} waits for operations of other ranks that wait for it"
        raise SpecError([(f"rank {rank}", message)]) from None


def _ends_s(
    meetings: Sequence[Sequence[tuple[int, Node]]],
    waits: Mapping[int, Sequence[int]],
    bytes_per_s: float,
) -> dict[int, float]:
    """Return the end of each meeting in seconds."""
    ends_s: dict[int, float] = {}
    for n, before in waits.items():
        seconds = _seconds([node for _, node in meetings[n]], bytes_per_s)
        ends_s[n] = max((ends_s[one] for one in before), default=0.0) + seconds
    return ends_s


def _seconds(nodes: Sequence[Node], bytes_per_s: float) -> float:
    """Return the time of operations that end together, from the start of the last one."""
    if nodes[0].kind == "compute":
        return nodes[0].duration_s
    size = collective_bytes(nodes) if nodes[0].kind == "collective" else nodes[0].size
    return size / bytes_per_s
