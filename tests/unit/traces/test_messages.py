"""Collectives as messages: the bytes of pairs, GOAL and CSV of lowered graphs, limits."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from moefabric.core.errors import SpecError
from moefabric.traces import messages
from moefabric.traces.goal import GoalReader, GoalWriter
from moefabric.traces.messages import FlowsCsvWriter, lowered
from moefabric.workload.graphs.execution_graph import (
    COLLECTIVES,
    CollectiveKind,
    ExecutionGraph,
    Node,
)
from tests.support.graph_bytes import message_bytes, pair_bytes


def job(kind: CollectiveKind) -> ExecutionGraph:
    """Return computation and one collective of ranks 2, 0 and 3, in this order, of 4."""
    members = (2, 0, 3)
    splits = {0: (8, 16, 0), 2: (40, 0, 4), 3: (12, 4, 4)} if kind == "all_to_all" else {}
    nodes = {
        rank: (
            Node(0, "compute", "expert, again", duration_s=2e-6, stream=0),
            Node(
                1, "collective", kind, size=sum(splits[rank]) if splits else 240, collective=kind,
                group="trio", splits=splits.get(rank, ()), root=0, stream=0,
            ),
        )
        for rank in members
    }  # fmt: skip
    ranks = dict(sorted({**nodes, 1: ()}.items()))
    return ExecutionGraph(ranks, {"trio": members}, "job")


@pytest.mark.parametrize("kind", [kind for kind in COLLECTIVES if kind != "barrier"])
def test_pairs_send_what_default_schedules_send(kind: CollectiveKind) -> None:
    graph = job(kind)
    assert not list(graph.faults())
    steps = lowered(graph)
    assert not list(steps.faults())
    assert np.array_equal(pair_bytes(graph), message_bytes(steps))
    assert pair_bytes(graph).any()
    assert steps.notes[-1].startswith(f"Collectives are lowered to messages ({kind}: ")


def test_graph_without_collectives_is_lowered_already() -> None:
    graph = ExecutionGraph({0: (Node(1, "compute"),)})
    assert lowered(graph) is graph


def test_collectives_are_written_as_messages(tmp_path: Path) -> None:
    graph = job("all_reduce")
    GoalWriter().write(graph, tmp_path / "g")
    assert GoalReader().read(tmp_path / "g").ranks == lowered(graph).ranks
    FlowsCsvWriter().write(graph, tmp_path / "f.csv")
    with (tmp_path / "f.csv").open() as file:
        flows = list(csv.DictReader(file))
    matrix = np.zeros((4, 4), dtype=np.int64)
    for flow in flows:
        matrix[int(flow["source"]), int(flow["target"])] += int(flow["bytes"])
    assert np.array_equal(matrix, pair_bytes(graph))
    assert {flow["name"] for flow in flows} == {
        "all_reduce reduce-scatter", "all_reduce all-gather",
    }  # fmt: skip


def test_graph_of_too_many_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_STEPS", 10)
    with pytest.raises(SpecError, match=r"job: its collectives have \d+ steps, more than 10: fold"):
        lowered(job("all_reduce"))
