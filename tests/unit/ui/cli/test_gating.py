"""`moefabric trace generate` writes traces and prints statistics."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from moefabric.traces.gating_files import load_gating
from moefabric.ui.cli.main import main
from moefabric.workload.gating.generator import generate
from moefabric.workload.gating.presets import preset
from moefabric.workload.gating.statistics import gating_statistics
from tests.support.paths import EXAMPLES

RECORD = str(EXAMPLES / "data" / "mixtral-8x7b-domains.npz")


def run(*arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(main, ["trace", "generate", *arguments])
    assert result.exit_code == status, result.output
    return result.output


@pytest.mark.parametrize("suffix", ["npz", "csv"])
def test_a_written_trace_is_that_of_the_generator(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"gating.{suffix}"
    sizes = ("--ranks=3", "--layers=2", "--iterations=2", "--tokens=100", "--experts=12")
    run("olmoe-domains", "-o", str(file), *sizes, "--top-k=4", "--seed=9", "--set", "skew=0.5")
    parameters = preset("olmoe-domains", tokens=100, experts=12, top_k=4, skew=0.5)
    expected = generate(parameters, ranks=3, layers=2, iterations=2, seed=9)
    assert load_gating(file).tokens.tolist() == expected.tokens.tolist()


def test_a_fit_has_the_shape_of_its_record_and_is_printed_beside_it() -> None:
    document = json.loads(run("--fit", RECORD, "--top-k=2", "--json"))
    assert document["parameters"]["skew"] == pytest.approx(preset("mixtral-domains").skew, rel=0.01)
    assert set(document["statistics"]) == {"recorded", "generated"}
    assert document["statistics"]["recorded"]["step_distance"] is None, "there is one iteration"
    one = json.loads(run("--fit", RECORD, "--rank=2", "--top-k=2", "--json"))
    assert one["parameters"]["skew"] == pytest.approx(preset("mixtral-web").skew, rel=0.01)


def test_replicas_have_a_least_and_a_greatest_statistic() -> None:
    printed = json.loads(run("olmoe-web", "--tokens=50", "--replicas=3", "--seed=4", "--json"))
    shape = {"ranks": 8, "layers": 4, "iterations": 8}
    loads = [
        gating_statistics(generate(preset("olmoe-web", tokens=50), **shape, seed=seed)).variation
        for seed in (4, 5, 6)
    ]
    columns = {name: column["variation"] for name, column in printed["statistics"].items()}
    assert columns == {"generated": loads[0], "least": min(loads), "greatest": max(loads)}


def test_presets_are_listed_with_their_sources() -> None:
    assert "mixtral-web: Mixtral-8x7B on web text" in run("--presets")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "give PRESET or --fit FILE"),
        (["nope"], 1, "'nope' is not one of mixtral-web"),
        (["uniform", "--set", "skw=1"], 1, "skw: is not one of experts"),
        (["uniform", "--set", "skew"], 2, "'skew' is not KEY=NUMBER"),
        (["uniform", "--set", "skew=-1"], 1, "skew: -1 is not in 0 to 100"),
        (["uniform", "-o", "gating.txt"], 2, "gating is written to .npz or .csv"),
        (["--fit", RECORD, "--first-step", "1"], 1, "has 1, numbered from 0"),
        (["uniform", "--iterations", "100000000"], 1, "counts are more than"),
        (["--fit", RECORD, "--top-k", "9"], 1, "8 experts: at least 9 are needed"),
    ],
)
def test_wrong_use_is_answered_in_a_line(arguments: list[str], status: int, message: str) -> None:
    assert message in run(*arguments, status=status)
