"""Folded graphs have fewer ranks, each of which sends as many bytes, and say what is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.errors import SpecError
from moefabric.workload.graphs.execution_graph import (
    COLLECTIVES,
    CollectiveKind,
    ExecutionGraph,
    Node,
)
from moefabric.workload.graphs.folding import fold, folded_size
from moefabric.workload.graphs.timeline import sent_bytes


@given(
    st.sampled_from([kind for kind in COLLECTIVES if kind != "gather"]),
    st.integers(1, 1 << 20),
    st.integers(2, 512),
    st.integers(2, 512),
)
def test_folded_size_keeps_what_a_rank_sends(
    kind: CollectiveKind, parts: int, before: int, now: int
) -> None:
    now = min(before, now)
    node = Node(0, "collective", collective=kind, size=4 * parts * before)
    size = folded_size(kind, node.size, before, now)
    rounding = 4 * now * now
    expected = sent_bytes(node, before)
    assert sent_bytes(replace(node, size=size), now) == pytest.approx(expected, abs=rounding)
    if kind in {"all_to_all", "reduce_scatter", "all_reduce", "scatter"}:
        assert size % (4 * now) == 0


def square(size: int) -> ExecutionGraph:
    """Return 8 ranks in two groups of 4 and four pairs across them."""
    groups: dict[str, tuple[int, ...]] = {f"row{r}": tuple(range(4 * r, 4 * r + 4)) for r in (0, 1)}
    groups |= {f"pair{c}": (c, c + 4) for c in range(4)}
    ranks = {
        rank: (
            Node(
                0, "collective", size=10 + size, collective="all_to_all", group=f"row{rank // 4}",
                splits=tuple(size if n == rank % 4 else part for n, part in enumerate(PARTS[rank])),
            ),
            Node(
                1, "collective", after=(0,), size=size, collective="all_reduce",
                group=f"pair{rank % 4}", stream=2,
            ),
        )
        for rank in range(8)
    }  # fmt: skip
    return ExecutionGraph(ranks, groups, "square", ("before.",))


PARTS = [[part if n != rank % 4 else 0 for n, part in enumerate((1, 2, 3, 4))] for rank in range(8)]
"""Bytes to the others of a row, of each rank; 10 less its own place's number are sent."""


def test_uneven_parts_of_ranks_that_go_are_taken_by_others() -> None:
    graph = square(6)
    graph = replace(
        graph,
        ranks={
            rank: (replace(nodes[0], size=sum(nodes[0].splits)), nodes[1])
            for rank, nodes in graph.ranks.items()
        },
    )
    folded = fold(graph, 2)
    assert not list(folded.faults())
    assert folded.groups["row0"] == (0, 1)
    assert folded.ranks[0][0].splits == (6, 2 + 3 + 4)
    assert folded.ranks[1][0].splits == (1 + 3 + 4, 6)
    assert folded.ranks[0][1] == Node(1, "compute", after=(0,), stream=2)
    assert folded.notes == (
        "before.",
        "8 ranks are folded onto 2: each one sends the bytes that it sent before, to fewer ranks.",
        "Group pair0 keeps 1 of 2 ranks: 6B that rank 0 sends in it are left out.",
    )
    assert fold(graph, 8) is graph


def test_root_that_goes_is_the_first_that_remains() -> None:
    node = Node(0, "collective", size=64, collective="broadcast", root=3)
    folded = fold(ExecutionGraph(dict.fromkeys(range(4), (node,))), 2)
    assert folded.ranks[1] == (replace(node, root=0),)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (1, "rank 0, operation 3: its message with rank 1 can't be folded onto 1 ranks"),
        (3, "3 is not 1 to 2, those of the trace"),
        (0, "0 is not 1 to 2, those of the trace"),
    ],
)
def test_messages_to_ranks_that_go_are_refused(ranks: int, message: str) -> None:
    send = Node(3, "send", size=5, peer=1)
    graph = ExecutionGraph({0: (send,), 1: (replace(send, kind="receive", peer=0),)})
    with pytest.raises(SpecError, match=message):
        fold(graph, ranks)
