"""Times of an execution graph on an ideal network, for pictures and for bounds.

A message takes as long as its bytes at the rate of one NIC, a collective as long as the bytes of
its busiest rank, and neither slows another one down. With an infinite rate, the end of the timeline
is the critical path of the computation.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Self

from moefabric.core.errors import SpecError
from moefabric.workload.graphs.execution_graph import CollectiveKind, ExecutionGraph, Node


@dataclass(frozen=True, slots=True)
class Interval:
    """The time of one operation: from its readiness, or its rank's call, to its end, in seconds."""

    rank: int
    node: Node
    start_s: float
    end_s: float


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


def timeline(graph: ExecutionGraph, bytes_per_s: float = math.inf) -> Iterator[Interval]:
    """Yield the intervals of all operations, each after those that it waits for.

    Args:
        graph: A graph without faults.
        bytes_per_s: Rate of a NIC, each way.

    Raises:
        SpecError: If operations of several ranks wait for each other.
    """
    return _intervals(_Order.of(graph), bytes_per_s)


@dataclass(frozen=True, slots=True)
class _Order:
    """Dependencies of operations, and an order in which each operation follows its dependencies.

    Attributes:
        meetings: Operations that end together, with their ranks.
        waits: Numbers of the meetings for which an operation waits, by rank and operation.
        ordered: Numbers of all meetings.
    """

    meetings: Sequence[Sequence[tuple[int, Node]]]
    waits: Mapping[tuple[int, int], Sequence[int]]
    ordered: Sequence[int]

    @classmethod
    def of(cls, graph: ExecutionGraph) -> Self:
        meetings = list(graph.meetings())
        number_of = {(rank, one.number): n for n, own in enumerate(meetings) for rank, one in own}
        waits = {
            (rank, number): [number_of[rank, one] for one in before]
            for rank in graph.ranks
            for number, before in graph.dependencies(rank).items()
        }
        order = TopologicalSorter[int]()
        for n, own in enumerate(meetings):
            order.add(n, *(one for rank, node in own for one in waits[rank, node.number]))
        try:
            return cls(meetings, waits, tuple(order.static_order()))
        except CycleError as error:
            members = ((rank, node.number) for n in error.args[1] for rank, node in meetings[n])
            rank, number = min(place for place in members if waits[place])
            message = f"operation {number} waits for operations of other ranks that wait for it"
            raise SpecError([(f"rank {rank}", message)]) from None


def _intervals(order: _Order, bytes_per_s: float) -> Iterator[Interval]:
    ends_s = [0.0] * len(order.meetings)
    for n in order.ordered:
        meeting = order.meetings[n]
        starts_s = [
            max((ends_s[one] for one in order.waits[rank, node.number]), default=0.0)
            for rank, node in meeting
        ]
        ends_s[n] = max(starts_s) + _seconds([node for _, node in meeting], bytes_per_s)
        for (rank, node), start_s in zip(meeting, starts_s, strict=True):
            yield Interval(rank, node, start_s, ends_s[n])


def _seconds(nodes: Sequence[Node], bytes_per_s: float) -> float:
    """Return the time of operations that end together, from the start of the last one."""
    if nodes[0].kind == "compute":
        return nodes[0].duration_s
    size = collective_bytes(nodes) if nodes[0].kind == "collective" else nodes[0].size
    return size / bytes_per_s


def length_s(graph: ExecutionGraph, bytes_per_s: float = math.inf) -> float:
    """Return the end of the timeline in seconds."""
    return lengths_s(graph, [bytes_per_s])[0]


def lengths_s(graph: ExecutionGraph, rates: Sequence[float]) -> list[float]:
    """Return the ends of the timelines with NICs of several rates, in bytes a second."""
    order = _Order.of(graph)
    return [
        max((interval.end_s for interval in _intervals(order, rate)), default=0.0) for rate in rates
    ]
