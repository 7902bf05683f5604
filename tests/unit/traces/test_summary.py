"""Figures of traces: traffic by groups that do the same, and what ranks keep to themselves."""

from __future__ import annotations

import pytest

from moefabric.traces.summary import summary_document
from moefabric.workload.collectives.built_in import DEFAULTS
from moefabric.workload.collectives.program import lower
from moefabric.workload.graphs.execution_graph import CollectiveKind, ExecutionGraph, Node


def pairs() -> ExecutionGraph:
    """Return two pairs that reduce 80 bytes, and then an uneven all-to-all of all four ranks."""
    ranks = {
        rank: (
            Node(0, "collective", size=80, collective="all_reduce", group=f"pair{rank // 2}"),
            Node(
                1, "collective", after=(0,), size=100, collective="all_to_all",
                splits=tuple(70 if peer == rank else 10 for peer in range(4)),
            ),
            Node(2, "compute", duration_s=float(rank)),
        )
        for rank in range(4)
    }  # fmt: skip
    return ExecutionGraph(ranks, {"pair0": (0, 1), "pair1": (2, 3)}, "pairs", ("A note.",))


def test_groups_that_do_the_same_are_one_row() -> None:
    summary = summary_document(pairs(), "goal", 8000.0)
    columns = ("operation", "groups", "ranks", "calls", "rank_bytes", "total_bytes")
    assert [tuple(row[column] for column in columns) for row in summary["traffic"]] == [
        ("all_reduce", ("pair0", "pair1"), 2, 1, 80, 320),
        ("all_to_all", ("world",), 4, 1, 30, 120),
    ]
    assert summary["operations"] == {"all_reduce": 4, "all_to_all": 4, "compute": 4}
    assert summary["groups"] == {2: 2, 4: 1}
    assert (summary["compute_s"], summary["critical_path_s"]) == (3.0, 3.0)
    assert summary_document(pairs(), "goal", 80.0)["ideal_s"] == 8.0 + 3.0


@pytest.mark.parametrize(
    ("collective", "total"),
    [("broadcast", 12), ("reduce", 12), ("gather", 12), ("scatter", 3), ("all_gather", 48)],
)
def test_bytes_of_a_root_count_once(collective: CollectiveKind, total: int) -> None:
    """As many as the messages of a replay have."""
    node = Node(0, "collective", size=4_000_000, collective=collective, root=2)
    graph = ExecutionGraph(dict.fromkeys(range(4), (node,)))
    (row,) = summary_document(graph, "kineto", 8000.0)["traffic"]
    assert row["total_bytes"] == total * 1_000_000
    program = lower(graph, DEFAULTS)
    steps = (step for rank in range(4) for step in program.steps(rank) if step.kind == "send")
    assert sum(step.extent.size for step in steps if step.extent) == row["total_bytes"]


def test_document_has_the_format_and_the_notes() -> None:
    document = summary_document(pairs(), "goal", 80.0)
    assert document["format"] == "goal"
    assert document["notes"] == ("A note.",)


def test_trace_that_sends_nothing_says_so() -> None:
    silent = ExecutionGraph({0: (Node(0, "compute", duration_s=1.0),)}, notes=("a note",))
    notes = summary_document(silent, "kineto", 1e11)["notes"]
    assert notes == ("a note", "there are no collectives and no messages: nothing can be replayed")
