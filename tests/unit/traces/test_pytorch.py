"""PyTorch execution traces and profiles: real ones, and faults."""

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from moefabric.core.errors import TraceError
from moefabric.traces.c10d_calls import GUESSED, called_group
from moefabric.traces.files import rank_files
from moefabric.traces.formats import read_trace, trace_reader
from moefabric.traces.pytorch_execution import PytorchExecutionReader
from moefabric.traces.pytorch_profile import PytorchProfileReader, read_profile
from moefabric.workload.graphs.execution_graph import WORLD, ExecutionGraph, Node

DATA = Path(__file__).parents[2] / "data" / "traces" / "pytorch"
DLRM = DATA / "dlrm"
NO_COMMUNICATION: dict[str, Any] = {"schema": "1.1.0-chakra.0.0.4", "nodes": []}


def graph_of(path: Path) -> ExecutionGraph:
    graph = read_trace(path)
    assert isinstance(graph, ExecutionGraph)
    assert not list(graph.faults())
    return graph


@cache
def shipped(path: Path) -> ExecutionGraph:
    """Return the graph of a file of the repository."""
    return graph_of(path)


def collectives(nodes: tuple[Node, ...]) -> list[Node]:
    return [node for node in nodes if node.kind == "collective"]


def finish_s(nodes: tuple[Node, ...], collective_s: list[float]) -> float:
    """Return when the last operation of a rank ends if collectives take these times."""
    ends, last, durations = dict[int, float](), dict[int, float](), iter(collective_s)
    for node in nodes:
        start = max([last.get(node.stream, 0.0), *(ends[number] for number in node.after)])
        duration = node.duration_s if node.kind == "compute" else next(durations)
        ends[node.number] = last[node.stream] = start + duration
    return max(ends.values())


def test_dlrm_has_five_all_to_alls_and_three_all_reduces_on_each_rank() -> None:
    graph = shipped(DLRM / "dlrm_eg")
    assert sorted(graph.ranks) == list(range(8))
    for nodes in graph.ranks.values():
        assert Counter(node.collective for node in nodes) == {"all_to_all": 5, "all_reduce": 3}
    uneven = collectives(graph.ranks[0])[3]
    assert uneven.splits == tuple(4 * n for n in (96, 224, 288, 1664, 592, 96, 192, 240))
    assert uneven.size == 13568
    assert [node.size for node in collectives(graph.ranks[0])] == [
        24576, 192, 1536, 13568, 1576964, 24576, 448, 907840,
    ]  # fmt: skip
    assert any("no times" in note for note in graph.notes)


def test_waits_let_operations_run_meanwhile() -> None:
    nodes = shipped(DLRM / "dlrm_eg").ranks[0]
    by_number = {node.number: node for node in nodes}
    # 1098 and 1103 are not waited for, so that the program waits at once; 1593 is waited for at
    # the end of the backward pass, after the all-reduce 1666 has started.
    assert by_number[1103].after == (1098,)
    assert by_number[1593].after == (1246,)
    assert by_number[1666].after == (1246,)
    assert by_number[1841].after == (1666, 1593)


def test_a_profile_in_the_folder_gives_the_computation() -> None:
    graph = shipped(DLRM)
    assert trace_reader(DLRM).name == "pytorch-et"
    assert not graph.notes
    profiles = rank_files(DLRM / "worker")
    for rank, nodes in graph.ranks.items():
        assert len(collectives(nodes)) == 8
        profile = read_profile(profiles[rank])
        activities = [*profile.compute, *profile.collectives]
        begin = min(one.start_s for one in activities)
        span = max(one.end_s for one in activities) - begin
        measured = [one.end_s - one.start_s for one in profile.collectives]
        assert finish_s(nodes, measured) == pytest.approx(span, abs=1e-6)
        assert finish_s(nodes, [0.0] * 8) < span


def test_the_trace_of_one_rank_stands_for_all() -> None:
    graph = shipped(DATA / "resnet_2gpu_et.json.gz")
    assert sorted(graph.ranks) == [0, 1]
    assert graph.ranks[0] == graph.ranks[1]
    kinds = Counter(node.collective for node in graph.ranks[0])
    assert kinds == {"broadcast": 6, "all_reduce": 15}
    assert collectives(graph.ranks[0])[2].size == 8196000
    assert "the file of one rank stands for all 2 ranks" in graph.notes


def call(*inputs: object, name: str = "record_param_comms", number: object = 1) -> dict[str, Any]:
    return {"name": name, "id": number, "inputs": {"values": list(inputs)}, "attrs": []}


TENSOR = [1, 2, 0, 8, 4, "cuda:0"]


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (3, r"nodes\[0\]: an object is needed"),
        (call(number="x"), r"nodes\[0\].id: 'x' is not a whole number"),
        (call(TENSOR, 1, ["0", ""]), r"nodes\[0\]: inputs.values of communication is too short"),
        (call(TENSOR, 1, ["0", ""], 0, "allswap"), "'allswap' is no collective that is known"),
        (call(TENSOR, 1, ["0", ""], 0, "all_to_allv", [3, 2]), "splits of 5 rows do not divide"),
        (call(TENSOR, 1, ["0", ""], 0, "all_to_allv", [-1]), r"\[-1\] are not splits"),
        (call("[{]", name="## process_group:init ##"), r"nodes\[0\]: is not JSON"),
        (call('[{"ranks": 3}]', name="process_group:init"), "has no list of ranks"),
    ],
)
def test_faults_of_nodes_have_the_place(tmp_path: Path, node: object, message: str) -> None:
    file = tmp_path / "t.json"
    file.write_text(json.dumps(NO_COMMUNICATION | {"nodes": [node]}))
    with pytest.raises(TraceError, match=message):
        read_trace(file)


def test_a_trace_without_communication_says_so(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text(json.dumps(NO_COMMUNICATION))
    assert any("no calls of communication" in note for note in graph_of(file).notes)


GLOO_CALLS = (
    ("all_to_all", 16384), ("all_to_all", 5120), ("all_reduce", 16384), ("all_reduce", 16384),
    ("all_gather", 4000), ("reduce_scatter", 16000), ("broadcast", 16384), ("reduce", 16384),
    ("all_gather", 40), ("barrier", 0),
)  # fmt: skip
"""Collectives of each rank of the recorded job, and the bytes of its tensors."""


@pytest.mark.parametrize("prefix", ["et_", "kineto_"])
def test_calls_of_gloo_are_collectives_with_their_sizes(prefix: str) -> None:
    graph = shipped(DATA / "gloo" / prefix)
    assert sorted(graph.ranks) == [0, 1, 2, 3]
    for rank, nodes in graph.ranks.items():
        found = [(node.collective, node.size) for node in collectives(nodes)]
        assert tuple(found) == GLOO_CALLS
        rows = [1 + (rank + other) % 4 for other in range(4)]
        assert collectives(nodes)[1].splits == tuple(512 * row for row in rows)
        roots = {node.collective: node.root for node in nodes if node.root}
        assert roots == {"broadcast": 1, "reduce": 2}
    (sent,) = [node for node in graph.ranks[0] if node.kind == "send"]
    (received,) = [node for node in graph.ranks[1] if node.kind == "receive"]
    assert (sent.size, sent.peer, received.size, received.peer) == (2000, 1, 2000, 0)
    assert any("don't name their group" in note for note in graph.notes)


def test_a_profile_of_gloo_takes_as_long_as_it_did() -> None:
    for rank in range(4):
        profile = read_profile(DATA / "gloo" / f"kineto_{rank}.json.gz")
        own = PytorchProfileReader().read(DATA / "gloo" / "kineto_").ranks[rank]
        lasted = [one.end_s - one.start_s for one in profile.collectives]
        whole = (*profile.compute, *profile.collectives)
        took_s = max(one.end_s for one in whole) - min(one.start_s for one in whole)
        assert finish_s(own, lasted) == pytest.approx(took_s, abs=1e-6)


def test_a_profile_of_gloo_gives_an_execution_trace_its_computation() -> None:
    alone, timed = shipped(DATA / "gloo" / "et_"), PytorchExecutionReader().read(DATA / "gloo")
    assert not any(node.kind == "compute" for node in alone.ranks[0])
    assert any(node.duration_s for node in timed.ranks[0])
    assert [one.size for one in collectives(timed.ranks[0])] == [size for _, size in GLOO_CALLS]


def gloo_profile(tmp_path: Path, change: Callable[[dict[str, Any]], object]) -> ExecutionGraph:
    """Return the graph of a recorded profile of rank 0 after a change of its document."""
    document = json.loads(gzip.decompress((DATA / "gloo/kineto_0.json.gz").read_bytes()))
    events = document["traceEvents"]
    document["traceEvents"] = [e for e in events if "send" not in str(e.get("name"))]
    change(document)
    file = tmp_path / "kineto.json"
    file.write_text(json.dumps(document))
    return graph_of(file)


def test_calls_without_shapes_are_computation(tmp_path: Path) -> None:
    def forget(document: dict[str, Any]) -> None:
        for event in document["traceEvents"]:
            for name in ("Input Dims", "Input type", "Concrete Inputs"):
                event.get("args", {}).pop(name, None)

    graph = gloo_profile(tmp_path, forget)
    assert [node.collective for node in collectives(graph.ranks[0])] == ["barrier"]
    assert any("record_shapes=True" in note for note in graph.notes)


def test_a_group_is_told_by_the_size_that_arguments_show() -> None:
    groups = {"0": (0, 1, 2, 3), "1": (0, 1)}
    notes: list[str] = []
    assert called_group(groups, [1, 3], [None, None], notes) == ("1", 2)
    assert called_group(groups, [], [4000, 1000], notes) == ("0", 4)
    assert called_group({}, [], [], notes) == ("0", None)
    assert notes == []
    assert called_group(groups, [], [4000, None], notes) == ("0", None)
    assert notes == [GUESSED]


def test_rows_of_splits_are_turned_into_bytes(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    node = call(TENSOR, 1, ["0", ""], 0, "all_to_allv", [3, 1], [2, 2])
    file.write_text(json.dumps(NO_COMMUNICATION | {"nodes": [node]}))
    graph = graph_of(file)
    assert graph.ranks[0][0].splits == (24, 8)
    assert sorted(graph.ranks) == [0, 1]


def test_times_of_linked_traces_give_the_computation(tmp_path: Path) -> None:
    first = call(TENSOR, 1, ["0", ""], 0, "allreduce") | {"ts": 100, "dur": 20}
    second = call(TENSOR, 2, ["0", ""], 0, "allreduce", number=2) | {"ts": 150.5, "dur": 20}
    file = tmp_path / "t.json"
    file.write_text(json.dumps(NO_COMMUNICATION | {"nodes": [second, first]}))
    one, gap, two = graph_of(file).ranks[0]
    assert (one.number, two.number) == (1, 2)
    assert gap.duration_s == pytest.approx(30.5e-6)
    assert (gap.after, two.after) == ((1,), (gap.number,))


def test_messages_of_a_single_file_need_the_others(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    groups = json.dumps([{"pg_name": "0", "ranks": [], "group_size": 2}])
    nodes = [
        call(groups, name="process_group:init"),
        call(TENSOR, 1, ["0", ""], 1, "send", number=2),
    ]
    file.write_text(json.dumps(NO_COMMUNICATION | {"nodes": nodes}))
    with pytest.raises(TraceError, match="2 ranks, the trace 1; it sends messages: the files of"):
        read_trace(file)


def kernel(start: int, end: int, name: str = "gemm", **facts: object) -> dict[str, Any]:
    stream = {"stream": 20 if facts else 7}
    return {"cat": "kernel", "name": name, "ts": start, "dur": end - start, "args": stream | facts}


def nccl(start: int, end: int, **facts: object) -> dict[str, Any]:
    sizes = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 256}
    return kernel(start, end, "ncclDevKernel_AllReduce", **(sizes | facts))


def profile_graph(folder: Path, *events: dict[str, Any]) -> ExecutionGraph:
    file = folder / "p.json"
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": list(events)}))
    return graph_of(file)


def test_computation_during_a_collective_does_not_wait_for_it(tmp_path: Path) -> None:
    graph = profile_graph(tmp_path, kernel(0, 10), nccl(10, 30), kernel(10, 50), kernel(50, 60))
    before, reduction, rest = graph.ranks[0]
    assert (before.duration_s, rest.duration_s) == pytest.approx((10e-6, 50e-6))
    assert (reduction.collective, reduction.size, reduction.after) == (
        "all_reduce", 1024, (before.number,),
    )  # fmt: skip
    assert rest.after == ()


def test_computation_after_a_collective_on_an_idle_gpu_waits_for_it(tmp_path: Path) -> None:
    graph = profile_graph(tmp_path, kernel(0, 10), nccl(10, 30), kernel(10, 15), kernel(32, 40))
    nodes = graph.ranks[0]
    assert [node.kind for node in nodes] == ["compute", "collective", "compute", "compute"]
    assert [round(node.duration_s * 1e6) for node in nodes] == [10, 0, 5, 10]
    assert nodes[3].after == (nodes[1].number,)


def test_computation_under_a_longer_kernel_is_not_idle(tmp_path: Path) -> None:
    long, short = kernel(0, 30), kernel(2, 5)
    graph = profile_graph(tmp_path, long, short, nccl(5, 20), kernel(30, 40))
    before, _, rest = graph.ranks[0]
    assert (before.duration_s, rest.duration_s) == pytest.approx((5e-6, 35e-6))
    assert rest.after == ()


def test_splits_and_groups_of_kernels_are_read(tmp_path: Path) -> None:
    facts = {
        "Collective name": "all_to_allv",
        "In split size": "[192, 64]",
        "Process Group Name": "3",
        "Process Group Ranks": "[0, 1]",
    }
    for rank in range(2):
        events = [nccl(0, 5, **facts)]
        (tmp_path / f"r{rank}.json").write_text(
            json.dumps({"trace_id": rank, "traceEvents": events})
        )
    graph = PytorchProfileReader().read(tmp_path)
    assert graph.ranks[0][0].splits == (768, 256)
    assert graph.groups == {WORLD: (0, 1), "3": (0, 1)}
    assert graph.ranks[1][0].group == "3"


def test_one_profile_with_collectives_of_all_ranks_stands_for_them(tmp_path: Path) -> None:
    ranks = {"Process Group Name": "0", "Process Group Ranks": "[0, 1, ...]", "Group size": 4}
    graph = profile_graph(tmp_path, nccl(0, 5, **ranks))
    assert graph.groups == {WORLD: (0, 1, 2, 3)}
    assert {node.group for nodes in graph.ranks.values() for node in nodes} == {WORLD}
    part = {"Process Group Name": "7", "Process Group Ranks": "[0, 2]"}
    with pytest.raises(TraceError, match="it calls collectives of part of the ranks"):
        profile_graph(tmp_path, nccl(0, 5, **part))


def test_nccl_kernels_without_sizes_are_computation() -> None:
    graph = PytorchProfileReader().read(DLRM / "worker")
    assert {node.kind for nodes in graph.ranks.values() for node in nodes} == {"compute"}
    assert any("without sizes" in note for note in graph.notes)


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"cat": "kernel", "ts": "x"}, r"traceEvents\[0\]: ts and dur are not microseconds"),
        (kernel(0, 1) | {"args": 3}, r"traceEvents\[0\].args: an object"),
        (nccl(0, 1, dtype="Complex4096"), r"traceEvents\[0\].args: dtype is 'Complex4096'"),
        (nccl(0, 1, **{"In msg nelems": -1}), "In msg nelems is -1"),
        (nccl(0, 1, **{"Collective name": "swap"}), "Collective name is 'swap'"),
    ],
)
def test_faults_of_events_have_the_place(
    tmp_path: Path, event: dict[str, Any], message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        profile_graph(tmp_path, event)


def test_a_profile_of_another_run_is_a_fault(tmp_path: Path) -> None:
    shutil.copy(DATA / "dlrm" / "dlrm_eg_0.json.gz", tmp_path / "eg_0.json.gz")
    (tmp_path / "worker0.json").write_text(json.dumps({"traceEvents": [nccl(0, 1)]}))
    with pytest.raises(TraceError, match="1 NCCL kernels, but 8 calls of the execution trace"):
        PytorchExecutionReader().read(tmp_path)


@pytest.mark.parametrize("source", ["execution", "profile", "gloo"])
def test_damaged_files_are_read_or_are_faults(tmp_path: Path, source: str) -> None:
    random, file, faults = Random(2), tmp_path / "t.json", 0
    if source == "execution":
        data = gzip.decompress((DATA / "gloo/et_0.json.gz").read_bytes())
    elif source == "gloo":
        data = gzip.decompress((DATA / "gloo/kineto_2.json.gz").read_bytes())
    else:
        document = json.loads(gzip.decompress(next(DLRM.glob("worker0*")).read_bytes()))
        events = [*document["traceEvents"][:10], nccl(0, 1), nccl(2, 3)]
        data = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    reader = PytorchExecutionReader() if source == "execution" else PytorchProfileReader()
    for _ in range(200):
        damaged = bytearray(data)
        for _ in range(random.randint(1, 8)):
            damaged[random.randrange(len(damaged))] = random.choice(b'0123456789-.[]{}",:aeE')
        file.write_bytes(damaged)
        with suppress(TraceError):
            reader.read(file)
            continue
        faults += 1
    assert faults > 50


@pytest.mark.parametrize("prefix", ["et_", "kineto_"])
def test_recording_of_one_rank_is_not_that_of_another(tmp_path: Path, prefix: str) -> None:
    recorded = sorted((DATA / "gloo").glob(f"{prefix}*"))
    for file in (recorded[0], *recorded[2:]):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / recorded[1].name).write_bytes(recorded[0].read_bytes())
    with pytest.raises(TraceError, match=f"is a copy of {recorded[0].name}: each rank"):
        read_trace(tmp_path)
