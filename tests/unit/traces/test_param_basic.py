"""PARAM's basic traces."""

import json
from pathlib import Path
from typing import Any

import pytest

from moefabric.core.errors import TraceError
from moefabric.traces.formats import read_trace
from moefabric.workload.graphs.execution_graph import WORLD, ExecutionGraph, Node


def call(comms: str, elements: int = 0, **more: object) -> dict[str, Any]:
    sizes = {"in_msg_size": elements, "out_msg_size": elements, "dtype": "Float"}
    return {"comms": comms, "world_size": 2, **(sizes if elements else {}), **more}


def graph_of(folder: Path, *ranks: list[dict[str, Any]]) -> ExecutionGraph:
    for number, calls in enumerate(ranks):
        (folder / f"{number}.json").write_text(json.dumps(calls))
    graph = read_trace(folder)
    assert isinstance(graph, ExecutionGraph)
    assert not list(graph.faults())
    return graph


def test_the_documented_all_to_allv_is_read(tmp_path: Path) -> None:
    split: dict[str, Any] = {
        "in_split": [6, 2],
        "out_split": [6, 2],
        "pg_id": 1,
        "global_ranks": [0, 1],
    }
    graph = graph_of(tmp_path, [call("all_to_allv", 8, req=0, **split)], [call("alltoallv", 8)])
    sent = graph.ranks[0][0]
    assert (sent.collective, sent.size, sent.splits, sent.group) == (
        "all_to_all", 32, (24, 8), WORLD,
    )  # fmt: skip


def test_calls_that_are_waited_for_run_meanwhile(tmp_path: Path) -> None:
    calls = [
        call("all_reduce", 4, req=0, pg_id=0),
        {"compute": "gemm", "mm_dim": 64, "dtype": "float", "count": 2},
        call("wait", req=0, pg_id=0),
        call("reduce_scatter", 4, req=1, pg_id=0),
    ]
    graph = graph_of(tmp_path, calls, calls)
    assert [(node.number, node.after) for node in graph.ranks[0]] == [
        (0, ()), (1, ()), (3, (1, 0)),
    ]  # fmt: skip
    assert any("no times" in note for note in graph.notes)


def test_calls_start_at_their_times_at_the_earliest(tmp_path: Path) -> None:
    calls = [
        call("all_reduce", 4, startTime_ns=5_000),
        call("all_gather", 4, startTime_ns=7_000),
        call("barrier", startTime_ns=6_000),
    ]
    graph = graph_of(tmp_path, calls, calls)
    first, delay, second, last = graph.ranks[1]
    assert delay == Node(3, "compute", "start", (), 2e-6)
    assert (first.after, second.after, last.after) == ((), (0, 3), (1, 3))


def test_messages_and_groups_are_read(tmp_path: Path) -> None:
    ends: dict[str, Any] = {"src_rank": 0, "dst_rank": 1, "use_batch": True}
    group: dict[str, Any] = {"pg_id": 4, "global_ranks": [1], "world_size": 1}
    batch = {"comms": "batch_isend_irecv"}
    graph = graph_of(
        tmp_path,
        [call("isend", 3, **ends), batch],
        [call("irecv", 3, **ends), batch, call("init", **group), call("broadcast", 2, **group)],
    )
    assert graph.ranks[0][0] == Node(0, "send", "isend", size=12, peer=1)
    assert graph.ranks[1][0] == Node(0, "receive", "irecv", size=12, peer=0)
    assert (graph.ranks[1][1].group, graph.groups["4"]) == ("4", (1,))


def test_the_size_of_a_scatter_is_that_of_the_roots_buffer(tmp_path: Path) -> None:
    calls = [call("scatter", 4, root=1)]
    node = graph_of(tmp_path, calls, calls).ranks[0][0]
    assert (node.collective, node.size, node.root) == ("scatter", 32, 1)


def test_one_file_stands_for_all_ranks(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, [call("all_reduce", 4)])
    assert sorted(graph.ranks) == [0, 1]
    assert graph.notes == ("the file of one rank stands for all 2 ranks",)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ([1], r"\[0\]: an object is needed"),
        ([{"compute": "sort"}], r"\[0\]: has neither comms nor a known compute"),
        ([call("all_swap", 4)], r"\[0\].comms: 'all_swap' is not known"),
        ([call("all_reduce", 4, dtype="Quad")], r"\[0\].dtype: 'Quad' is no data type"),
        ([call("all_reduce", 4, in_msg_size=-1)], r"\[0\].in_msg_size: -1 is not a whole number"),
        ([call("all_to_allv", 4, in_split=[1])], r"\[0\].in_split: 1 elements are not in_msg_size"),
        ([call("all_reduce", 4, global_ranks="all")], r"\[0\].global_ranks: is no list of ranks"),
        ([call("all_reduce", 4, world_size=1e9)], r"\[0\].world_size: 1000000000.0 is no number"),
    ],
)
def test_faults_have_the_place(tmp_path: Path, entry: object, message: str) -> None:
    file = tmp_path / "t.json"
    file.write_text(json.dumps(entry))
    with pytest.raises(TraceError, match=message):
        read_trace(file, "param-basic")
