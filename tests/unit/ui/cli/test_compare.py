"""`moefabric compare` and `report` of several runs: output and exit status."""

import json
import re
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest
from click.testing import CliRunner, Result

from moefabric.ui.cli.main import main
from tests.support.paths import GOLDEN

SAMPLE = GOLDEN / "report" / "sample.json"


def variant(folder: Path, name: str, slower: float = 1.0, verdict: str = "pass") -> str:
    document = json.loads(SAMPLE.read_text())
    mixnet = document["results"][1]
    mixnet["fidelity"]["verdict"] = verdict
    for part in mixnet["iterations"]:
        part["measured_s"] *= slower
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document))
    return str(path)


def compare(*words: Any) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, words)])


def test_compare_of_equal_runs_succeeds(tmp_path: Path) -> None:
    result = compare(SAMPLE, variant(tmp_path, "same"))
    assert result.exit_code == 0
    assert result.output.splitlines()[0] == "no regression beyond 2 % and the spread of runs"


def test_compare_prints_the_change_and_fails_on_a_regression(tmp_path: Path) -> None:
    slower = variant(tmp_path, "slower", 1.2)
    result = compare(SAMPLE, slower)
    assert result.exit_code == 4
    lines = [line.split() for line in result.output.splitlines()]
    [row] = [line for line in lines if line[:1] == ["iteration"] and "regression" in line]
    assert "+20.00" in row
    assert result.output.splitlines()[0] == "regression of mixnet (iteration +20.00 %)"
    assert compare(SAMPLE, slower, "--threshold", "25%").exit_code == 0


def test_compare_of_several_earlier_runs_and_json(tmp_path: Path) -> None:
    runs = [variant(tmp_path, f"run{n}", slower) for n, slower in enumerate((0.9, 1.0, 1.1, 1.2))]
    result = compare(*runs, "--json")
    assert result.exit_code == 0
    document = json.loads(result.output)
    assert (document["regression"], document["earlier_runs"]) == (False, 3)
    figure = document["fabrics"][1]["figures"][0]
    assert (figure["outcome"], figure["exceeds_spread"]) == ("within spread", False)


def test_compare_of_runs_without_a_fabric_in_common_is_a_fault(tmp_path: Path) -> None:
    document = json.loads(SAMPLE.read_text())
    for result in document["results"]:
        result["fabric"] = f"my-{result['fabric']}"
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document))
    result = compare(SAMPLE, other)
    assert result.exit_code == 1
    assert "the runs have no fabric in common (eps, mixnet, " in result.output
    assert ", my-mixnet" in result.output


def test_two_fabrics_of_a_run_are_compared_iteration_by_iteration(tmp_path: Path) -> None:
    result = compare(variant(tmp_path, "run", 0.5), "--fabrics", "eps", "mixnet")
    assert result.exit_code == 0, result.output
    head, _, verdict, iteration, *_ = result.output.splitlines()
    figures = ("iteration", "all-to-all", "optical share")
    assert re.fullmatch(
        "mixnet against eps: " + ", ".join(rf"{name} [-+][0-9.]+ \S+" for name in figures), head
    )
    assert verdict.split() == ["verdict", "pass", "pass"]
    assert iteration.split()[-1] == "better"
    document = json.loads(compare(SAMPLE, "--fabrics", "mixnet", "eps", "--json").output)
    [fabric] = document["fabrics"]
    assert fabric["fabric"] == "mixnet to eps"
    before, after = (
        geometric_mean(part["measured_s"] for part in entry["iterations"])
        for entry in json.loads(SAMPLE.read_text())["results"][1::-1]
    )
    assert fabric["figures"][0]["change"] == pytest.approx(after / before - 1)


def test_unknown_fabric_and_runs_beside_fabrics_are_refused() -> None:
    unknown = compare(SAMPLE, "--fabrics", "eps", "mixxnet")
    assert unknown.exit_code == 1
    assert "mixxnet is not one of the fabrics of the run: eps, mixnet" in unknown.output
    assert compare(SAMPLE, SAMPLE, "--fabrics", "eps", "mixnet").exit_code == 2
    assert compare(SAMPLE).exit_code == 2


def test_compare_of_invalid_runs_has_the_status_of_invalid_measurements(tmp_path: Path) -> None:
    invalid = [variant(tmp_path, name, verdict="invalid") for name in "ab"]
    result = compare(*invalid)
    assert result.exit_code == 3
    judged = "in the 9 of 12 figures that could be judged"
    assert result.output.splitlines()[0].endswith(judged)
    assert compare(SAMPLE, invalid[0]).exit_code == 4


def test_compare_says_that_no_figure_could_be_judged(tmp_path: Path) -> None:
    document = json.loads(SAMPLE.read_text())
    for fabric in document["results"]:
        fabric["fidelity"]["verdict"] = "invalid"
    (file := tmp_path / "invalid.json").write_text(json.dumps(document))
    first = compare(file, file).output.splitlines()[0]
    assert first == "nothing could be judged: no figure was measured in runs that can be trusted"


@pytest.mark.parametrize("threshold", ["fast", "-1%", "100%", "2%%"])
def test_compare_refuses_wrong_threshold(threshold: str) -> None:
    result = compare(SAMPLE, SAMPLE, "--threshold", threshold)
    assert result.exit_code == 2
    assert "is not a share such as 2% or 0.02" in result.output


def test_compare_reports_missing_file_in_one_line(tmp_path: Path) -> None:
    result = compare(SAMPLE, tmp_path / "none.json")
    assert result.exit_code == 1
    expected = [f"moefabric: {tmp_path}/none.json: No such file or directory"]
    assert result.output.splitlines() == expected
