"""Times of an execution graph on an ideal network, for pictures and for bounds.

A message takes as long as its bytes at the rate of one NIC, a collective as long as the bytes of
its busiest rank, and neither slows another one down. With an infinite rate, the end of the timeline
is the critical path of the computation.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from moefabric.core.errors import SpecError
from moefabric.workload.graphs.execution_graph import CollectiveKind, ExecutionGraph, Node


@dataclass(frozen=True, slots=True)
class Interval:
    """The time of one operation: from its readiness, or its rank's call, to its end, in seconds."""

    rank: int
    node: Node
    start_s: float
    end_s: float


def dependencies(nodes: Sequence[Node]) -> dict[int, tuple[int, ...]]:
    """Return the operations that each one waits for, those before it in its stream included."""
    last: dict[int, int] = {}
    waits = {}
    for node in nodes:
        before = node.after
        if node.stream >= 0:
            if (previous := last.get(node.stream)) is not None and previous not in before:
                before = (previous, *before)
            last[node.stream] = node.number
        waits[node.number] = before
    return waits


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
    """Yield the intervals of all operations, in the order of their ends' discovery.

    Args:
        graph: A graph without faults.
        bytes_per_s: Rate of a NIC, each way.

    Raises:
        SpecError: If operations of several ranks wait for each other.
    """
    return _Visit(graph, bytes_per_s).run()


def length_s(graph: ExecutionGraph, bytes_per_s: float = math.inf) -> float:
    """Return the end of the timeline in seconds."""
    return max((interval.end_s for interval in timeline(graph, bytes_per_s)), default=0.0)


@dataclass
class _Meeting:
    """Operations of several ranks that end together."""

    members: list[tuple[int, Node]]
    missing: int
    ready_s: float = 0.0


class _Visit:
    """Visits operations once all that they wait for have ended; times need no queue of events."""

    def __init__(self, graph: ExecutionGraph, bytes_per_s: float) -> None:
        self._graph, self._rate = graph, bytes_per_s
        self._left: dict[tuple[int, int], int] = {}
        self._ready_s: defaultdict[tuple[int, int], float] = defaultdict(float)
        self._followers: defaultdict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self._nodes = {
            (rank, node.number): node for rank, nodes in graph.ranks.items() for node in nodes
        }
        self._meetings: dict[tuple[int, int], _Meeting] = {}
        for rank, nodes in graph.ranks.items():
            for number, before in dependencies(nodes).items():
                self._left[rank, number] = len(before)
                for one in before:
                    self._followers[rank, one].append((rank, number))
        for meeting in self._all_meetings():
            for rank, node in meeting.members:
                self._meetings[rank, node.number] = meeting

    def _all_meetings(self) -> Iterator[_Meeting]:
        calls: defaultdict[tuple[object, ...], list[tuple[int, Node]]] = defaultdict(list)
        count: defaultdict[tuple[object, ...], int] = defaultdict(int)
        for rank, nodes in self._graph.ranks.items():
            for node in nodes:
                key: tuple[object, ...]
                if node.kind == "collective":
                    key = ("collective", node.group)
                elif node.kind == "send":
                    key = ("message", rank, node.peer, node.tag)
                elif node.kind == "receive":
                    key = ("message", node.peer, rank, node.tag)
                else:
                    continue
                # The n-th of one rank meets the n-th of the others.
                index = count[rank, node.kind, *key]
                count[rank, node.kind, *key] += 1
                calls[*key, index].append((rank, node))
        for key, members in calls.items():
            place = {rank: n for n, rank in enumerate(self._graph.groups.get(str(key[1]), ()))}
            if key[0] == "collective":
                members.sort(key=lambda member: place[member[0]])
            yield _Meeting(members, len(members))

    def run(self) -> Iterator[Interval]:
        ready = deque(key for key, left in self._left.items() if not left)
        visited = 0
        while ready:
            key = ready.popleft()
            meeting = self._meetings.get(key)
            if meeting is None:
                visited += 1
                node = self._nodes[key]
                end_s = self._ready_s[key] + node.duration_s
                yield Interval(key[0], node, self._ready_s[key], end_s)
                ready.extend(self._end(key, end_s))
                continue
            meeting.missing -= 1
            meeting.ready_s = max(meeting.ready_s, self._ready_s[key])
            if meeting.missing:
                continue
            end_s = meeting.ready_s + self._bytes(meeting) / self._rate
            for rank, node in meeting.members:
                visited += 1
                yield Interval(rank, node, self._ready_s[rank, node.number], end_s)
                ready.extend(self._end((rank, node.number), end_s))
        if visited < len(self._nodes):
            rank, number = next(key for key, left in self._left.items() if left)
            message = f"operation {number} waits for operations of other ranks that wait for it"
            raise SpecError([(f"rank {rank}", message)])

    def _bytes(self, meeting: _Meeting) -> int:
        nodes = [node for _, node in meeting.members]
        if nodes[0].kind != "collective":
            return nodes[0].size
        return collective_bytes(nodes)

    def _end(self, key: tuple[int, int], end_s: float) -> Iterator[tuple[int, int]]:
        for follower in self._followers[key]:
            self._ready_s[follower] = max(self._ready_s[follower], end_s)
            self._left[follower] -= 1
            if not self._left[follower]:
                yield follower
