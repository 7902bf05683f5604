"""Experiments from files and from values: the same keys, the same errors, the same predictions."""

import os
from pathlib import Path
from typing import Any

import pytest

from moefabric.api.experiment import Experiment
from moefabric.config.input_file import read_yaml
from moefabric.core.errors import SpecError, UnsupportedError
from moefabric.prediction.experiment import predict_fabrics
from tests.support.paths import EXAMPLES

PROTOTYPE = EXAMPLES / "prototype.yaml"


def values(**changes: Any) -> dict[str, Any]:
    document = read_yaml(PROTOTYPE)
    document["gating"] = {"matrix": EXAMPLES / "data/gating-8x8.json"}
    return document | changes


def test_experiment_of_values_is_that_of_the_file() -> None:
    loaded, built = Experiment.load(PROTOTYPE), Experiment(**values())
    assert built.spec.model_copy(update={"gating": loaded.spec.gating}) == loaded.spec
    assert built.predict() == loaded.predict()
    assert repr(built) == "Experiment('prototype': eps, mixnet, mixnet-spill, static)"


def test_values_may_be_tuples_and_paths() -> None:
    spec = Experiment(**values(fabrics=tuple(values()["fabrics"]))).spec
    assert len(spec.fabrics) == 4
    assert spec.gating.matrix == EXAMPLES / "data/gating-8x8.json"


def test_changes_reach_keys_and_places_and_leave_their_neighbours() -> None:
    places: dict[str, Any] = {"fabrics[1].policy": "joint", "scale.bytes": 100, "scale.dilation": 2}
    spec = Experiment.load(
        PROTOTYPE, ["training.micro_batch=2"], training={"iterations": 5}, **places
    ).spec
    training = spec.training
    assert (training.iterations, training.micro_batch, training.sequence) == (5, 2, 4096)
    assert [choice.policy for choice in spec.fabrics] == ["eps", "joint", "spill", "static"]
    assert spec.scale.build().bytes == 100  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        pytest.param({"speed": 3}, ["speed: is not a key here"], id="key"),
        pytest.param({"fabrics[9].policy": "eps"}, ["fabrics[9].policy: is no place"], id="place"),
        pytest.param(
            {"training": {"ep": "many"}, "seed": 1.5},
            ["training.ep: a whole number is needed, 'many' given", "seed: a whole number"],
            id="all-at-once",
        ),
    ],
)
def test_wrong_changes_are_named_with_their_places(
    changes: dict[str, Any], faults: list[str]
) -> None:
    with pytest.raises(SpecError) as error:
        Experiment.load(PROTOTYPE, **changes)
    lines = str(error.value).splitlines()
    assert len(lines) == len(faults)
    assert all(fault in line for fault, line in zip(faults, lines, strict=True)), lines


def test_wrong_values_are_named_as_in_a_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as built:
        Experiment(**values(seed="x", training={"ep": 0}))
    file = tmp_path / "wrong.yaml"
    text = PROTOTYPE.read_text().replace("training:", "seed: x\ntraining: {ep: 0}\nformer:")
    file.write_text("\n".join(line for line in text.splitlines() if "former:" not in line))
    with pytest.raises(SpecError) as loaded:
        Experiment.load(file)
    places = {place.removeprefix(f"{file}: "): fault for place, fault in loaded.value.errors}
    assert places == dict(built.value.errors)


def test_prediction_is_typed_and_equals_the_json() -> None:
    experiment = Experiment.load(PROTOTYPE)
    prediction = experiment.predict()
    assert prediction.to_json() == predict_fabrics(experiment.spec, experiment.folder).to_json()
    eps, mixnet = prediction["eps"], prediction["mixnet"]
    assert mixnet.iteration_s > eps.iteration_s > eps.compute_s > 0
    assert '<th scope="row">mixnet</th>' in prediction._repr_html_()
    with pytest.raises(SpecError, match="'other' is not one of the fabrics eps, mixnet"):
        prediction["other"]


def test_run_refuses_unknown_external_process() -> None:
    with pytest.raises(SpecError, match="external: switch is not one of ocs, controller"):
        Experiment.load(PROTOTYPE).run(external=["switch"])


def test_training_without_a_program_names_the_file_and_an_example() -> None:
    file = EXAMPLES / "training.yaml"
    with pytest.raises(SpecError, match=rf"{file}: train: is missing.*train/prototype.yaml"):
        Experiment.load(file).train()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another user")
def test_a_run_without_root_is_refused_before_it_announces_a_fabric(
    capfd: pytest.CaptureFixture[str],
) -> None:
    experiment = Experiment.load(EXAMPLES / "training.yaml")
    os.seteuid(65534)
    try:
        with pytest.raises(UnsupportedError, match="a fabric needs root"):
            experiment.run()
    finally:
        os.seteuid(0)
    assert not capfd.readouterr().err
