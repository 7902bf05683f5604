"""Times on an ideal network follow from dependencies, streams, matched messages and collectives."""

from __future__ import annotations

import tracemalloc

import pytest

from moefabric.core.errors import SpecError
from moefabric.workload.graphs.execution_graph import CollectiveKind, ExecutionGraph, Node
from moefabric.workload.graphs.timeline import collective_bytes, length_s, sent_bytes, timeline

JOB = ExecutionGraph(
    {
        0: (
            Node(1, "compute", duration_s=2.0),
            Node(2, "send", after=(1,), size=30, peer=1),
            Node(3, "collective", after=(2,), size=40, collective="all_reduce"),
            Node(4, "compute", duration_s=1.0, stream=0),
            Node(5, "compute", duration_s=1.5, stream=0),
        ),
        1: (
            Node(1, "receive", size=30, peer=0),
            Node(2, "compute", after=(1,), duration_s=4.0),
            Node(3, "collective", after=(2,), size=40, collective="all_reduce"),
        ),
    }
)


def test_operations_start_when_what_they_wait_for_ends() -> None:
    """The message takes 3 s at 10 B/s, the all-reduce of 40 bytes among 2 ranks 4 s."""
    ends = {(i.rank, i.node.number): (i.start_s, i.end_s) for i in timeline(JOB, 10.0)}
    assert ends == {
        (0, 1): (0.0, 2.0), (0, 2): (2.0, 5.0), (0, 3): (5.0, 13.0), (0, 4): (0.0, 1.0),
        (0, 5): (1.0, 2.5), (1, 1): (0.0, 5.0), (1, 2): (5.0, 9.0), (1, 3): (9.0, 13.0),
    }  # fmt: skip
    assert length_s(JOB) == 6.0
    assert JOB.dependencies(0)[5] == (4,)


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("all_reduce", 120), ("reduce_scatter", 60), ("all_gather", 240), ("all_to_all", 60),
        ("broadcast", 80), ("barrier", 0), ("scatter", 60),
    ],
)  # fmt: skip
def test_bytes_that_a_rank_sends(kind: CollectiveKind, sent: int) -> None:
    node = Node(0, "collective", size=80, collective=kind)
    assert sent_bytes(node, 4) == sent
    assert sent_bytes(node, 1) == 0


def test_uneven_all_to_all_is_as_long_as_its_busiest_port() -> None:
    for rows, busiest in (
        (((1, 2, 3), (4, 5, 60), (7, 8, 9)), 64),
        (((100, 0, 9), (0, 100, 8), (1, 1, 100)), 17),
    ):
        nodes = [
            Node(0, "collective", size=sum(row), collective="all_to_all", splits=row)
            for row in rows
        ]
        assert collective_bytes(nodes) == busiest


def test_even_all_to_all_of_many_ranks_needs_no_matrix() -> None:
    """A matrix of 9,216 ranks would take 680 MB."""
    nodes = [Node(0, "collective", size=9216, collective="all_to_all")] * 9216
    larger = Node(0, "collective", size=2 * 9216, collective="all_to_all")
    tracemalloc.start()
    try:
        assert (collective_bytes(nodes), collective_bytes([larger, *nodes[1:]])) == (9215, 18430)
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()


def test_ranks_that_wait_for_each_other_are_named() -> None:
    """Each rank receives before it sends."""
    ranks = {
        rank: (
            Node(1, "receive", size=1, peer=1 - rank),
            Node(2, "send", after=(1,), size=1, peer=1 - rank),
        )
        for rank in (0, 1)
    }
    graph = ExecutionGraph(ranks)
    assert not list(graph.faults())
    with pytest.raises(SpecError, match="rank 0: operation 2 waits for operations of other ranks"):
        length_s(graph)


def test_collective_starts_when_its_last_rank_calls_it() -> None:
    """Rank 0 computes 5 s in one operation, rank 1 3 s in three."""
    call = Node(9, "collective", size=40, collective="all_to_all", stream=0)
    short = tuple(Node(n, "compute", duration_s=1.0, stream=0) for n in range(3))
    graph = ExecutionGraph(
        {0: (Node(0, "compute", duration_s=5.0, stream=0), call), 1: (*short, call)}
    )
    assert length_s(graph, 10.0) == 5.0 + 2.0
