"""`moefabric predict`: its table is whole in 80 columns and in a pipe, and its notes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from moefabric.api.experiment import Experiment
from moefabric.core.errors import MoefabricError
from moefabric.ui.cli.main import main
from tests.support.paths import EXAMPLES

PROTOTYPE = str(EXAMPLES / "prototype.yaml")


def predicted(*settings: str) -> str:
    options = [word for setting in settings for word in ("--set", setting)]
    result = CliRunner().invoke(main, ["predict", PROTOTYPE, *options], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.output


def test_table_fits_80_columns() -> None:
    lines = predicted().splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)
    (mixnet,) = (line.split() for line in lines if line.startswith("mixnet "))
    assert mixnet[-3:] == ["1.44x", "100.0", "%"] or mixnet[-4:-1] == ["1.44x", "100.0", "%"]


def test_long_names_are_whole_in_a_pipe() -> None:
    name = "mixnet-with-a-very-long-name-31"
    assert any(
        line.startswith(f"{name} ") for line in predicted(f"fabrics[1].name={name}").splitlines()
    )


def test_assumptions_and_equal_circuits_are_said() -> None:
    text = " ".join(predicted().split())
    assert "assumed: 8.00 ms of control time for each change of circuits and the planned" in text
    assert "3 optical NICs each are a full mesh" in text
    assert (
        "mixnet, mixnet-spill, static: the same circuits as each other in every all-to-all, and"
        in text
    )
    assert "backward pass" not in text


def test_gating_of_decoding_says_that_a_backward_pass_is_included() -> None:
    text = predicted("gating={generator: deepseek-decode}", "training.iterations=1")
    note = (
        "deepseek-decode: an iteration holds a backward pass, since moefabric models training only"
    )
    assert note in " ".join(text.split())


def test_duration_of_a_run_is_said_below_the_table() -> None:
    last = predicted().splitlines()[-1]
    assert re.fullmatch("`run` takes about [0-9.]+ (s|min|h) on this machine", last)


def test_fabric_of_another_number_of_nics_is_said() -> None:
    text = " ".join(predicted("fabrics[3].optical=2").split())
    assert "static (fabrics[3]): 3 NICs in each server, where other fabrics have 4" in text
    assert text.count("(fabrics[") == 1
    assert "NICs in each server" not in predicted()


def test_speed_of_the_machine_that_can_not_be_read_hides_no_prediction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "machine.json"
    file.write_text("{")
    monkeypatch.setenv("MOEFABRIC_MACHINE", str(file))
    assert "how long `run` takes is not known: " in " ".join(predicted().split())


def test_optical_nics_of_an_eps_and_more_nics_than_gpus_are_said() -> None:
    text = " ".join(predicted("fabrics[0].optical=2", "fabrics[3].optical=8").split())
    assert "eps (fabrics[0]): the policy eps uses none of the 2 optical NICs of a server" in text
    assert "static (fabrics[3]): 9 NICs for 8 GPUs in each server" in text
    assert text.count("(fabrics[") == 2


def test_ratio_is_the_median_of_ratios_and_not_the_ratio_of_medians() -> None:
    """Demands differ from layer to layer here."""
    words = ["predict", str(EXAMPLES / "training.yaml"), "--json"]
    document: dict[str, Any] = json.loads(CliRunner().invoke(main, words).output)
    eps, mixnet = document["fabrics"][:2]
    of_medians = mixnet["all_to_all_s"] / eps["all_to_all_s"]
    assert abs(mixnet["all_to_all_vs_eps"] / of_medians - 1) > 0.005
    assert eps["all_to_all_vs_eps"] == 1.0


@pytest.mark.parametrize("key", ["trace", "matrix", "fit"])
def test_file_that_is_no_gating_is_named_with_its_key_and_the_formats(
    key: str, tmp_path: Path
) -> None:
    file = tmp_path / "notes.md"
    file.write_text("no gating\n")
    words = ["predict", PROTOTYPE, "--set", f"gating={{{key}: {file}}}"]
    refused = CliRunner().invoke(main, words).output
    known = {"gating", "gating-csv", "routes", "routes-parquet", "sglang"}
    start, _, shown = refused.strip().partition("in no known format; known are ")
    assert start == f"moefabric: gating.{key}: {file}: the content is "
    assert set(shown.split(", ")) <= known
    assert "sglang" in shown


def test_prediction_begins_with_the_fastest_and_the_best_per_dollar() -> None:
    text = " ".join(predicted().split())
    assert (
        "without packets Fastest is eps: iteration 3.391 s, 1.9 % less than mixnet-spill." in text
    )
    assert "Best per dollar is mixnet-spill: 1.50x of eps." in text
    assert "Fastest" not in predicted("fabrics=[{name: a, optical: 0, electrical: 4, policy: eps}]")


def test_even_gating_of_a_training_is_said() -> None:
    training = str(EXAMPLES / "train/prototype.yaml")
    even = "assumed: even gating; gating.trace replays what the gates of a training chose"
    for settings, is_said in ((), True), (("--set", "gating={generator: uniform}"), False):
        result = CliRunner().invoke(main, ["predict", training, "--json", *settings])
        assert result.exit_code == 0, result.output
        assert (even in json.loads(result.output)["notes"]) is is_said


def test_more_layers_than_the_model_has_are_said_before_the_computation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(_experiment: Experiment) -> None:
        raise MoefabricError("stopped")

    note = "note: model.layers: 33 are more than the 32 of mixtral-8x7b"
    words = ["predict", PROTOTYPE, "--set", "model.layers=33", "--set", "training.iterations=1"]
    assert CliRunner().invoke(main, words).output.count(note.removeprefix("note: ")) == 1
    monkeypatch.setattr(Experiment, "predict", stop)
    assert CliRunner().invoke(main, words).output.splitlines()[0] == note
