"""Times of an execution graph on an ideal network, for pictures and for bounds.

A message takes as long as its bytes at the rate of one NIC, a collective as long as the bytes of
its busiest rank, and neither slows another one down. With an infinite rate, the end of the timeline
is the critical path of the computation.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import chain
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
        waits: Numbers of the meetings for which each operation of a meeting waits.
        ordered: Numbers of all meetings.
    """

    meetings: Sequence[Sequence[tuple[int, Node]]]
    waits: Sequence[Sequence[Sequence[int]]]
    ordered: Sequence[int]

    @classmethod
    def of(cls, graph: ExecutionGraph) -> Self:
        meetings = list(graph.meetings())
        numbers: dict[int, dict[int, int]] = {rank: {} for rank in graph.ranks}
        for n, own in enumerate(meetings):
            for rank, node in own:
                numbers[rank][node.number] = n
        earlier = {rank: graph.dependencies(rank) for rank in graph.ranks}
        waits = [
            [[numbers[rank][one] for one in earlier[rank][node.number]] for rank, node in own]
            for own in meetings
        ]
        before = [list(chain.from_iterable(own)) for own in waits]
        ordered = _ordered(before)
        if len(ordered) == len(before):
            return cls(meetings, waits, ordered)
        try:
            TopologicalSorter(dict(enumerate(before))).prepare()
        except CycleError as error:
            rank, number = min(
                (rank, node.number)
                for n in error.args[1]
                for (rank, node), own in zip(meetings[n], waits[n], strict=True)
                if own
            )
            message = f"operation {number} waits for operations of other ranks that wait for it"
            raise SpecError([(f"rank {rank}", message)]) from None
        raise AssertionError("numbers that can't be ordered have a cycle")


def _ordered(before: Sequence[Sequence[int]]) -> list[int]:
    """Return the numbers of an order in which each follows those before it; fewer with cycles.

    It takes a third of the time of `graphlib`, which can name a cycle.
    """
    after: list[list[int]] = [[] for _ in before]
    missing = [len(own) for own in before]
    for number, own in enumerate(before):
        for one in own:
            after[one].append(number)
    ordered = [number for number, count in enumerate(missing) if not count]
    for number in ordered:  # which grows meanwhile
        for one in after[number]:
            missing[one] -= 1
            if not missing[one]:
                ordered.append(one)
    return ordered


def _intervals(order: _Order, bytes_per_s: float) -> Iterator[Interval]:
    ends_s = [0.0] * len(order.meetings)
    for n in order.ordered:
        meeting = order.meetings[n]
        starts_s = [max((ends_s[one] for one in waits), default=0.0) for waits in order.waits[n]]
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
