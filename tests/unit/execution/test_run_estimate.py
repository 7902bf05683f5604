"""What a run says before it starts: fabrics, iterations, scale, duration, and what it lacks."""

import re
import sys

import pytest

from moefabric.config.loader import load_experiment
from moefabric.core.errors import UnsupportedError
from moefabric.core.units import Scale
from moefabric.execution.run import expected_duration, run, run_estimate, run_notes
from moefabric.prediction.experiment import ExperimentScale, experiment_scale
from moefabric.prediction.scaling import ProposedScale
from moefabric.results.progress import PlainProgressReporter
from tests.support.paths import EXAMPLES

PROTOTYPE = load_experiment(EXAMPLES / "prototype.yaml", ["training.iterations=3"])


def scales(iterations_s: float = 0.0, **dilations: float) -> ExperimentScale:
    """Return scales of dilation 5, or of the given ones by fabric."""
    dilations = dilations or {"eps": 5, "mixnet": 5}
    by_fabric = {name: ProposedScale(Scale(50, value)) for name, value in dilations.items()}
    return ExperimentScale(by_fabric, {}, iterations_s)


@pytest.mark.parametrize(
    ("iterations_s", "duration"),
    [
        (0.1, "20 s"),
        (10, "50 s"),
        (40, "2.5 min"),
        (100, "6 min"),
        (1500, "76 min"),
        (7200, "6.0 h"),
    ],
)
def test_estimate_is_rounded(iterations_s: float, duration: str) -> None:
    expected = f"4 fabrics, 3 iterations, scale 50 x 5, about {duration}"
    assert run_estimate(PROTOTYPE, scales(iterations_s)) == expected


def test_estimate_of_training_has_no_duration() -> None:
    assert run_estimate(PROTOTYPE, scales(), trains=True).endswith("50 x 5")


def test_iterations_take_what_computation_leaves_over_at_the_dilation() -> None:
    proposed = experiment_scale(PROTOTYPE, EXAMPLES, "bpf")
    exposed_s = proposed.iterations_s / proposed.slowest.scale.dilation
    assert 3 < exposed_s < 6, "four fabrics whose iterations expose about a second each"
    settings = ["scale.bytes=50", "scale.dilation=40"]
    slow = experiment_scale(load_experiment(EXAMPLES / "prototype.yaml", settings), EXAMPLES, "bpf")
    assert slow.iterations_s == pytest.approx(40 * exposed_s, rel=0.01), "control times differ"
    assert re.search("about [0-9]+ min", run_estimate(PROTOTYPE, slow))


def test_duration_is_expected_without_a_fabric_where_one_is_possible() -> None:
    estimate = run_estimate(PROTOTYPE, experiment_scale(PROTOTYPE, EXAMPLES, "bpf"))
    assert estimate.endswith(f", {expected_duration(PROTOTYPE, EXAMPLES)}")
    assert expected_duration(load_experiment(EXAMPLES / "growth.yaml"), EXAMPLES) == ""


def test_gating_that_a_training_leaves_out_is_said() -> None:
    spec = load_experiment(EXAMPLES / "train/prototype.yaml", ["gating={generator: uniform}"])
    [note] = set(run_notes(spec, trains=True)) - set(spec.notes())
    assert note == "gating: isn't used while the program trains, as its own gates choose"
    assert [*run_notes(spec, trains=False)] == [*spec.notes()]


@pytest.mark.parametrize("has_torch", [False, True])
def test_training_without_pytorch_is_refused_before_its_fabric(
    monkeypatch: pytest.MonkeyPatch, *, has_torch: bool
) -> None:
    def stop() -> None:
        raise UnsupportedError("its fabric")

    monkeypatch.setattr("moefabric.execution.run.find_spec", lambda _name: has_torch or None)
    monkeypatch.setattr("moefabric.emulator.fabric.lifecycle.require_root", stop)
    spec = load_experiment(EXAMPLES / "train/prototype.yaml")
    expected = "its fabric" if has_torch else f"^{sys.executable} has no PyTorch: install PyTorch"
    with pytest.raises(UnsupportedError, match=expected):
        run(spec, EXAMPLES, PlainProgressReporter(), trains=True)
