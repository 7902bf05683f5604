"""SimAI's workloads: order, groups, folding, checkpoints and faults."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from moefabric.core.errors import TraceError
from moefabric.traces.formats import trace_reader
from moefabric.traces.simai import SimaiReader, parse_simai, simai_graph
from moefabric.workload.graphs.execution_graph import ExecutionGraph, Node
from moefabric.workload.graphs.timeline import sent_bytes
from tests.support.paths import EXAMPLES

FILE = EXAMPLES / "data" / "simai-moe-9216.txt.gz"
HEADER = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 2 pp: 1 all_gpus: 8"


@pytest.fixture(scope="module")
def graph() -> ExecutionGraph:
    return SimaiReader().read(FILE)


def test_workload_of_9216_gpus_has_its_collectives(graph: ExecutionGraph) -> None:
    """The file has 384 rows with ALLTOALL_EP in both directions, and 576 + 24 all-gathers."""
    assert trace_reader(FILE).name == "simai"
    assert len(graph.ranks) == 64
    assert not list(graph.faults())
    calls = Counter(
        (node.collective, node.group.rstrip("0123456789"))
        for node in graph.ranks[0]
        if node.kind == "collective"
    )
    assert calls["all_to_all", "ep"] == 2 * 384
    assert calls["all_to_all", "tp"] == 2 * 384
    assert calls["all_gather", "tp"] == 600 + 576
    assert calls["all_reduce", "tp"] == 31 + 1
    assert calls["all_gather", "dp"] == calls["reduce_scatter", "dp_ep"] == 1
    assert graph.groups["ep0"] == tuple(range(0, 32, 2))
    assert graph.groups["ep3"] == tuple(range(33, 64, 2))
    assert graph.groups["dp_ep5"] == (5, 37)


def test_ranks_of_9216_gpus_send_what_gpus_sent(graph: ExecutionGraph) -> None:
    sent: Counter[tuple[str | None, str]] = Counter()
    for node in graph.ranks[7]:
        if node.kind == "collective":
            key = node.collective, node.group.rstrip("0123456789")
            sent[key] += sent_bytes(node, len(graph.groups[node.group]))
    assert sent["all_to_all", "ep"] == 2 * 384 * 100_663_296 * 15 // 16
    shards = 2_807_758_848 * 383 / 384, 19_327_352_832 * 23 / 24
    assert sent["all_gather", "dp"] == pytest.approx(shards[0], rel=1e-6)
    assert sent["all_gather", "dp_ep"] == pytest.approx(shards[1], rel=1e-6)
    assert sent["reduce_scatter", "dp"] == pytest.approx(2 * shards[0], rel=1e-6)
    assert graph.notes[0].startswith("9216 GPUs (tensor 2, expert 16, pipeline 12, data 384) are")
    assert "12 stages is left out, with its messages of 50.33MB a" in graph.notes[2]


def layer(name: str, *parts: str) -> str:
    """Return a row with three passes of 'nanoseconds collective bytes'."""
    return f"{name} -1 {' '.join(parts)} 100"


def text(*rows: str, header: str = HEADER) -> str:
    return "\n".join([header, str(len(rows)), *rows])


NOTHING = "0 NONE 0"


def test_backward_pass_goes_from_the_last_layer_and_weights_do_not_hold_it_up() -> None:
    rows = (
        layer("a", "10 ALLGATHER 64", "20 NONE 0", "30 REDUCESCATTER 256"),
        layer("b", "40 ALLTOALL_EP 80", "50 ALLREDUCE 8", "0 ALLGATHER_DP_EP 128"),
    )
    read = simai_graph(parse_simai(text(*rows)))
    assert read.ranks[0] == (
        Node(0, "compute", "a", duration_s=10e-9, stream=0),
        Node(1, "collective", "a", size=32, collective="all_gather", group="tp0", stream=0),
        Node(2, "compute", "b", duration_s=40e-9, stream=0),
        Node(3, "collective", "b", size=80, collective="all_to_all", group="ep0", stream=0),
        Node(4, "compute", "b input gradient", duration_s=50e-9, stream=0),
        Node(
            5, "collective", "b input gradient", size=8, collective="all_reduce", group="tp0",
            stream=0,
        ),
        Node(
            6, "collective", "b weight gradient", (5,), size=64, collective="all_gather",
            group="dp_ep0", stream=1,
        ),
        Node(7, "compute", "a input gradient", duration_s=20e-9, stream=0),
        Node(8, "compute", "a weight gradient", duration_s=30e-9, stream=0),
        Node(
            9, "collective", "a weight gradient", (8,), size=256, collective="reduce_scatter",
            group="dp0", stream=1,
        ),
    )  # fmt: skip
    assert read.groups["dp0"] == (0, 2, 4, 6)
    assert read.notes == ()


def test_layers_from_a_checkpoint_run_again() -> None:
    rows = [layer(name, "1 NONE 0", "1 NONE 0", NOTHING) for name in "abc"]
    header = f"{HEADER} checkpoints: 2 0 1 checkpoint_initiates: 1 2"
    graph = simai_graph(parse_simai(text(*rows, header=header)))
    assert [node.name for node in graph.ranks[0]] == [
        "a", "b", "c", "b again", "c again", "c input gradient", "b input gradient",
        "a input gradient",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the lines of parallelism and layers are missing"),
        ("MICRO\n0\n", "line 1: the policy is not one of HYBRID_TRANSFORMER_FWD_IN_BCKWD"),
        (
            text(layer("a", *[NOTHING] * 3), header="HYBRID_TRANSFORMER ep: 2"),
            "line 1: model_parallel_NPU_group is missing",
        ),
        (f"{HEADER} vpp\n0\n", "line 1: vpp is 'nothing', not a whole number"),
        (f"{HEADER} checkpoints: 3 1\n0\n", "line 1: checkpoints announces 3 layers, 1 follow"),
        (
            text(layer("a", *[NOTHING] * 3), header=f"{HEADER} checkpoint_initiates: 1 4"),
            "line 1: checkpoints name layer 4 of 1",
        ),
        (
            text(layer("a", *[NOTHING] * 3), header=f"{HEADER} checkpoint_initiates: 1 0"),
            "line 1: layer 0 has no checkpoint before it",
        ),
        (
            text(layer("a", *[NOTHING] * 3), header=HEADER.replace("pp: 1", "pp: 3")),
            "line 1: 8 GPUs are not filled by groups of 2 (tensor), 3 (pipeline) and 2 (expert)",
        ),
        (f"{HEADER}\n2\n{layer('a', *[NOTHING] * 3)}", "line 2: 2 layers are announced, 1 given"),
        (f"{HEADER}\nmany\n", "line 2: the number of layers is 'many', not a whole number"),
        (text("a -1 0 NONE"), "line 3: 4 columns are not 12"),
        (text(layer("a", "1 SCATTER 5", NOTHING, NOTHING)), "line 3: SCATTER is not ALLREDUCE,"),
        (text(layer("a", "-1 NONE 5", NOTHING, NOTHING)), "line 3: a column is '-1', not a whole"),
        (
            text(layer("a", NOTHING, NOTHING, "0 ALLREDUCE 9999999999999999")),
            "line 3: a column is 9999999999999999, more than",
        ),
    ],
)
def test_wrong_workload_is_refused_in_place(content: str, message: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_simai(content)
    assert message in str(caught.value)


def test_workload_of_too_many_operations_is_refused() -> None:
    header = "HYBRID_TRANSFORMER model_parallel_NPU_group: 1024 ep: 1024"
    rows = [layer("a", "1 NONE 0", NOTHING, NOTHING)] * 4
    with pytest.raises(TraceError, match="4 operations on each of 1048576 ranks are more than"):
        simai_graph(parse_simai(text(*rows, header=header)))


def test_file_without_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.txt"
    path.write_bytes(HEADER.encode() + b"\n\xff\n")
    with pytest.raises(TraceError, match="is not text in UTF-8: byte 0xff"):
        SimaiReader().read(path)
