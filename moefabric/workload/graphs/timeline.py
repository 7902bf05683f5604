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
    if not any(node.splits for node in nodes):
        parts = [node.size // ranks for node in nodes]
        return max(max(parts) * (ranks - 1), sum(parts) - min(parts))
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
        waits: Numbers of the meetings for which each of these operations waits.
        sizes: Bytes of each meeting; 0 of a computation.
        ordered: Numbers of all meetings.
    """

    meetings: Sequence[Sequence[tuple[int, Node]]]
    waits: Sequence[Sequence[Sequence[int]]]
    sizes: Sequence[int]
    ordered: Sequence[int]

    @classmethod
    def of(cls, graph: ExecutionGraph) -> Self:
        meetings = list(graph.meetings())
        numbers: dict[int, dict[int, int]] = {rank: {} for rank in graph.ranks}
        for n, own in enumerate(meetings):
            for rank, node in own:
                numbers[rank][node.number] = n
        before = {rank: graph.dependencies(rank) for rank in graph.ranks}
        waits = [
            tuple(
                [
                    tuple(map(numbers[rank].__getitem__, before[rank][node.number]))
                    for rank, node in own
                ]
            )
            for own in meetings
        ]
        ordered = _ordered(waits)
        if len(ordered) < len(meetings):
            raise _circle(meetings, waits)
        return cls(meetings, waits, [*map(_size, meetings)], ordered)

    def ends_s(self, bytes_per_s: float) -> list[float]:
        """Return the end of each meeting."""
        ends_s = [0.0] * len(self.meetings)
        for n in self.ordered:
            start_s = max([ends_s[one] for own in self.waits[n] for one in own], default=0.0)
            node = self.meetings[n][0][1]
            is_computation = node.kind == "compute"
            ends_s[n] = start_s + (
                node.duration_s if is_computation else self.sizes[n] / bytes_per_s
            )
        return ends_s


def _ordered(waits: Sequence[Sequence[Sequence[int]]]) -> list[int]:
    """Return the numbers of meetings after those for which they wait; without those in a circle.

    `graphlib` has such an order, too, and takes several times as long.
    """
    missing = [sum(map(len, own)) for own in waits]
    after: list[list[int]] = [[] for _ in waits]
    for n, own in enumerate(waits):
        for before in own:
            for one in before:
                after[one].append(n)
    ordered = [n for n, count in enumerate(missing) if not count]
    for n in ordered:  # which grows
        for one in after[n]:
            missing[one] -= 1
            if not missing[one]:
                ordered.append(one)
    return ordered


def _circle(
    meetings: Sequence[Sequence[tuple[int, Node]]], waits: Sequence[Sequence[Sequence[int]]]
) -> SpecError:
    """Return the error of meetings that wait for each other."""
    try:
        TopologicalSorter({n: chain(*own) for n, own in enumerate(waits)}).prepare()
    except CycleError as error:
        rank, number = min(
            (rank, node.number)
            for n in error.args[1]
            for (rank, node), before in zip(meetings[n], waits[n], strict=True)
            if before
        )
        message = f"operation {number} waits for operations of other ranks that wait for it"
        return SpecError([(f"rank {rank}", message)])
    raise AssertionError("no circle")


def _intervals(order: _Order, bytes_per_s: float) -> Iterator[Interval]:
    ends_s = order.ends_s(bytes_per_s)
    for n in order.ordered:
        for (rank, node), before in zip(order.meetings[n], order.waits[n], strict=True):
            start_s = max((ends_s[one] for one in before), default=0.0)
            yield Interval(rank, node, start_s, ends_s[n])


def _size(meeting: Sequence[tuple[int, Node]]) -> int:
    """Return the bytes of operations that end together; 0 of a computation."""
    first = meeting[0][1]
    if first.kind == "collective":
        return collective_bytes([node for _, node in meeting])
    return 0 if first.kind == "compute" else first.size


def length_s(graph: ExecutionGraph, bytes_per_s: float = math.inf) -> float:
    """Return the end of the timeline in seconds."""
    return lengths_s(graph, [bytes_per_s])[0]


def lengths_s(graph: ExecutionGraph, rates: Sequence[float]) -> list[float]:
    """Return the ends of the timelines with NICs of several rates, in bytes a second."""
    order = _Order.of(graph)
    return [max(order.ends_s(rate), default=0.0) for rate in rates]
