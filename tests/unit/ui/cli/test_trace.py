"""`moefabric trace info|convert|generate`: what a user sees of traces."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from moefabric.traces.formats import named_writer
from moefabric.traces.gating_files import load_gating
from moefabric.traces.goal import GoalReader
from moefabric.ui.cli.main import main
from moefabric.workload.graphs.execution_graph import ExecutionGraph, Node
from tests.support.paths import EXAMPLES

SIMAI = EXAMPLES / "data" / "simai-moe-9216.txt.gz"
TRAINING = EXAMPLES / "data" / "training-1200-steps.npz"


class ImpossibleReader:
    """A reader of another package whose graph can't run."""

    name = "impossible"

    def matches(self, _path: Path, _head: bytes) -> bool:
        return True

    def read(self, _path: Path) -> ExecutionGraph:
        return ExecutionGraph({0: (Node(1, "compute", after=(5,)),)})


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["trace", *map(str, arguments)])


@pytest.fixture
def flows(tmp_path: Path) -> Path:
    path = tmp_path / "flows.goal"
    path.write_text(
        "num_ranks 2\nrank 0 {\nl1: calc 1000\nl2: send 1000b to 1 tag 1\nl2 requires l1\n"
        "l3: recv 3000b from 1 tag 2\n}\n"
        "rank 1 {\nl1: send 3000b to 0 tag 2\nl2: recv 1000b from 0 tag 1\n}\n"
    )
    return path


def test_info_prints_operations_bytes_times_and_notes(flows: Path) -> None:
    """1,000 bytes at 8 Mb/s take 1 ms after a start of 1 us, 3,000 bytes take 3 ms."""
    result = run("info", flows, "--rate", "8Mb/s")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        f"{flows}: goal, 2 ranks",
        "  operations: send 2, receive 2, compute 1",
        "  groups: 1 of 2 ranks",
        "  operation  groups  ranks  calls  a rank sends  all send",
        "  message                2      1       3.00 kB   4.00 kB",
        (
            "  computation 1.00 µs of the busiest rank, 1.00 µs on the critical path; "
            "ideal time with NICs of 8Mb/s: 3.00 ms"
        ),
    ]


def test_info_of_folded_ranks_keeps_bytes_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "workload.txt"
    header = "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 4 pp: 1 all_gpus: 8"
    file.write_text(f"{header}\n1\na -1 1000 ALLTOALL_EP 80 0 NONE 0 0 NONE 0 100\n")
    document = json.loads(run("info", file, "--ranks", 4, "--json").output)
    (row,) = document["traffic"]
    assert (document["format"], document["ranks"], row["ranks"]) == ("simai", 4, 2)
    assert row["rank_bytes"] == 80 * 3 // 4, "as of four ranks"
    assert document["critical_path_s"] == pytest.approx(1e-6)
    assert any(note.startswith("8 ranks are folded onto 4: ") for note in document["notes"])


@pytest.mark.nightly
def test_info_of_9216_gpus_on_8_ranks() -> None:
    result = run("info", SIMAI, "--ranks", 8, "--json")
    document = json.loads(result.output)
    assert (document["format"], document["ranks"]) == ("simai", 8)
    rows = {(one["operation"], one["groups"][0]): one for one in document["traffic"]}
    assert rows["all_to_all", "ep0"]["rank_bytes"] == 2 * 384 * 100_663_296 * 15 // 16
    assert rows["all_to_all", "ep0"]["ranks"] == 4
    assert document["critical_path_s"] == pytest.approx(4.5428, abs=1e-4)
    assert any(note.startswith("64 ranks are folded onto 8: ") for note in document["notes"])


def test_info_of_several_files_is_a_list(flows: Path) -> None:
    documents = json.loads(run("info", flows, TRAINING, "--json").output)
    assert [document["format"] for document in documents] == ["goal", "gating"]
    assert documents[1]["experts"] == 16
    assert documents[1]["statistics"]["max_over_mean"] == pytest.approx(1.455, abs=1e-3)
    text = run("info", TRAINING).output
    assert "gating, 1,200 iterations, 4 layers, 8 ranks, 16 experts" in text
    assert "  max over mean: 1.455" in text


def test_convert_takes_the_format_from_the_ending_and_prints_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where folders are made
    source, target = tmp_path / "a.goal", tmp_path / "new" / "b.csv"
    nodes = (
        Node(0, "collective", size=64, collective="all_to_all"),
        Node(1, "compute", after=(0,), duration_s=1e-6),
        Node(2, "collective", after=(1,), size=64, collective="all_to_all"),
    )
    graph = ExecutionGraph(dict.fromkeys(range(4), nodes))
    chakra = tmp_path / "job"
    assert not list(graph.faults())
    named_writer("chakra").write(graph, chakra)
    folded = run("convert", chakra, source, "--ranks", 2)
    assert folded.exit_code == 0
    assert "note: 4 ranks are folded onto 2: " in folded.output
    assert "note: Collectives are lowered to messages (all_to_all: " in folded.output
    sends = [node.size for node in GoalReader().read(source).ranks[0] if node.kind == "send"]
    assert sends == [48, 48]
    result = run("convert", source, target)
    assert result.exit_code == 0
    assert f"{source} (goal) -> {target} (csv), 2 ranks" in result.output
    assert target.read_text().startswith("source,target,bytes,")


def test_convert_writes_gating(tmp_path: Path) -> None:
    recorded, out = EXAMPLES / "data" / "mixtral-8x7b-domains.npz", tmp_path / "out.csv"
    assert run("convert", recorded, out).exit_code == 0
    assert np.array_equal(load_gating(out).tokens, load_gating(recorded).tokens)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "FLOWS", "x.unknown"], "x.unknown: .unknown is not one of .goal, .csv,"),
        (["convert", "FLOWS", "x", "--to", "nothing"], "trace writer: 'nothing' is not one of"),
        (
            ["convert", "FLOWS", "x.npz"],
            "x.npz: npz is a format of gating, and these are operations",
        ),
        (["convert", str(TRAINING), "x.goal"], "--to: 'goal' is not one of csv, npz"),
        (["convert", str(TRAINING), "x.csv", "--ranks", "2"], "--ranks: gating isn't folded"),
        (["info", "FLOWS", "--ranks", "9"], "ranks: 9 is not 1 to 2"),
        (["info", "FLOWS", "--from", "nccl-log"], "the content is goal, not nccl-log"),
        (["info", "missing.goal"], "missing.goal: there is no such file"),
        (["generate", "nothing", "-o", "x.npz"], "nothing: 'nothing' is not one of mixtral-web,"),
        (["generate", "uniform", "-o", "x.npz", "--top-k", "99"], "top_k: a token has no 99 of 64"),
        (
            ["generate", "uniform", "-o", "x.npz", "--ranks", "9999999"],
            "iterations, layers, ranks: 20479997952 counts are more than",
        ),
    ],
)
def test_wrong_arguments_are_one_line(
    flows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*(str(flows) if word == "FLOWS" else word for word in arguments))
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1
    assert message in result.output


def test_generate_needs_a_preset_or_a_file(tmp_path: Path) -> None:
    assert run("generate", "-o", tmp_path / "x.npz").exit_code == 2
    assert run("generate", "uniform", "--fit", TRAINING, "-o", tmp_path / "x").exit_code == 2


def test_generate_has_the_shape_that_is_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "g.npz"
    sizes = ("--ranks", 4, "--layers", 3, "--iterations", 2, "--experts", 32)
    assert run("generate", "olmoe-web", "-o", out, *sizes, "--tokens", 100).exit_code == 0
    tokens = load_gating(out).tokens
    assert tokens.shape == (2, 3, 4, 32)
    assert set(tokens.sum(axis=-1).ravel().tolist()) == {800}
    fitted = tmp_path / "f.csv"
    assert run("generate", "--fit", out, "-o", fitted, "--ranks", 2, "--seed", 5).exit_code == 0
    assert load_gating(fitted).tokens.shape == (2, 3, 2, 32)
    again = tmp_path / "h.csv"
    run("generate", "--fit", out, "-o", again, "--ranks", 2, "--seed", 5)
    assert again.read_text() == fitted.read_text()


@pytest.mark.parametrize("command", ["info", "convert"])
def test_graph_that_cannot_run_is_refused(command: str, flows: Path, tmp_path: Path) -> None:
    outputs: dict[str, list[object]] = {"info": [], "convert": [tmp_path / "x.goal"]}
    result = run(command, flows, *outputs[command], "--from", f"{__name__}:ImpossibleReader")
    assert result.exit_code == 1
    assert result.output == (
        f"moefabric: {flows}: rank 0, operation 1: it waits for operation 5, which is not there\n"
    )


def test_ranks_of_a_replay_are_at_least_two_and_at_most_those_of_the_trace(flows: Path) -> None:
    result = CliRunner().invoke(main, ["replay", str(flows), "--ranks", "9"])
    assert result.output == "moefabric: --ranks: 9 is not 2 to 2, the ranks of the trace\n"
    for ranks in ("0", "1"):
        assert CliRunner().invoke(main, ["replay", str(flows), "--ranks", ranks]).exit_code == 2
