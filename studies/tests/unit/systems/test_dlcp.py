"""The parts of the study of DLCP that need no packets."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from moefabric_studies.systems.dlcp.incast import IncastTimes
from moefabric_studies.systems.dlcp.measurements import Incasts, Measurements
from moefabric_studies.systems.dlcp.model import Dataset, Momentum, Perceptron, planted_clusters
from moefabric_studies.systems.dlcp.setup import Setup
from moefabric_studies.systems.dlcp.study import completion_curves, outcome
from moefabric_studies.systems.dlcp.training import (
    Progress,
    TrainingJob,
    layer_tensor,
    with_previous,
)
from moefabric_studies.systems.dlcp.transports import (
    BBR,
    CUBIC,
    DCTCP,
    PRIORITY_TCP,
    SHORT_TIMEOUT,
    bounded_loss,
)
from moefabric_studies.systems.study import load_study
from moefabric_studies.tensors.packets import CHUNK_BYTES, by_magnitude
from moefabric_studies.tensors.receiver import Received

from moefabric.core.link import PathChoice, Scheduling
from moefabric.emulator.link.lateness import Lateness

JOB = TrainingJob((6, 5, 4, 3), 2, 8, 0.1, backward_s=0.2, forward_s=0.1)
CHUNK_VALUES = CHUNK_BYTES // 4
STUDY = Path(__file__).parents[4] / "examples" / "systems" / "dlcp.yaml"


def test_gradients_are_the_slopes_of_the_loss() -> None:
    random = np.random.default_rng(3)
    data = planted_clusters(6, 3, 20, random)
    model = Perceptron(JOB.sizes)

    def loss() -> float:
        output = model._activations(data.inputs.astype(np.float64))[-1]
        shares = np.exp(output) / np.exp(output).sum(axis=1, keepdims=True)
        return float(-np.log(shares[np.arange(20), data.classes]).mean())

    gradients = model.gradients(data)
    model.layers = [layer.astype(np.float64) for layer in model.layers]
    for layer, gradient in enumerate(gradients):
        for place in random.integers(0, len(gradient), 5):
            before = model.layers[layer][place]
            model.layers[layer][place] = before + 1e-5
            high = loss()
            model.layers[layer][place] = before - 1e-5
            slope = (high - loss()) / 2e-5
            model.layers[layer][place] = before
            assert gradient[place] == pytest.approx(slope, abs=1e-4)


def test_model_learns_the_planted_classes() -> None:
    random = np.random.default_rng(3)
    data = planted_clusters(16, 4, 1000, random)
    model = Perceptron((16, 64, 4))
    before, optimizer = model.accuracy(data), Momentum(model, 0.1)
    for _ in range(50):
        for layer, gradient in enumerate(model.gradients(data.batch(random, 100))):
            optimizer.step(layer, gradient)
    assert before < 0.5
    assert model.accuracy(data) > 0.8


def test_batches_keep_samples_with_their_classes() -> None:
    data = Dataset(np.arange(10, dtype=np.float32)[:, None], np.arange(10))
    batch = data.batch(np.random.default_rng(1), 30)
    assert (batch.inputs[:, 0] == batch.classes).all()


def test_back_layer_gets_its_gradient_first_and_front_layer_at_the_end() -> None:
    ends_s = JOB.backward_ends_s(Perceptron(JOB.sizes))
    assert ends_s[0] == pytest.approx(JOB.backward_s)
    assert ends_s == sorted(ends_s, reverse=True)


def test_forward_pass_waits_for_each_layer() -> None:
    model = Perceptron(JOB.sizes)
    assert JOB.forward_end_s(model, [0.0, 0.0, 0.0]) == pytest.approx(JOB.forward_s)
    late_front = JOB.forward_end_s(model, [1.0, 0.0, 0.0])
    assert late_front == pytest.approx(1.0 + JOB.forward_s)
    assert JOB.forward_end_s(model, [0.0, 0.0, 1.0]) < late_front, "front layers overlap"


def test_chunks_of_large_changes_come_first() -> None:
    changes = np.zeros(3 * CHUNK_VALUES + 1, np.float32)
    changes[CHUNK_VALUES] = -4.0
    changes[-1] = 1.0  # the last chunk has one value
    assert by_magnitude(changes) == [3, 1, 0, 2]


@pytest.mark.parametrize(("layer", "important"), [(0, 2), (2, 4)])
def test_all_of_the_back_layer_is_important_and_half_of_others(layer: int, important: int) -> None:
    values = np.arange(4 * CHUNK_VALUES, dtype=np.float32)
    tensor = layer_tensor(7, layer, 3, values, values, 10)
    assert tensor.order == [3, 2, 1, 0]
    assert tensor.important == set(range(4 - important, 4))
    assert (tensor.priority, tensor.loss_percent) == (layer, 10)


def test_lost_parameters_keep_their_previous_values() -> None:
    arrived = np.array([1, 2, 0, 0, 5], np.float32)
    received = Received(1, bytearray(arrived.tobytes()), ((8, 8),))
    assert received.lost_share == pytest.approx(0.4)
    previous = np.array([9, 9, 3, 4, 9], np.float32)
    assert with_previous(received, previous).tolist() == [1, 2, 3, 4, 5]


def test_each_idea_asks_more_of_the_switch() -> None:
    alone, priority, whole = (
        bounded_loss(10, ideas=ideas).port(1e8, 64_000, 0, 30_000, paths=2) for ideas in (1, 2, 3)
    )
    assert (alone.scheduling, alone.early_drop_bytes) == (Scheduling.FIFO, None)
    assert (priority.scheduling, priority.early_drop_bytes) == (Scheduling.PRIORITY, 30_000)
    assert (priority.path_choice, whole.path_choice) == (PathChoice.FLOW, PathChoice.PACKET)
    dctcp = DCTCP.port(1e8, 64_000, 0, 30_000)
    assert (dctcp.ecn_bytes, dctcp.early_drop_bytes) == (30_000, None)


def _measurements(late_ns: int = 0) -> Measurements:
    """Return measurements in which DCTCP takes twice as long as DLCP, and cubic three times."""
    lateness = Lateness(1, late_ns, late_ns, late_ns)

    def times(seconds: float) -> list[IncastTimes]:
        return [IncastTimes([seconds] * 4, [seconds] * 4, [0.0] * 4, 4, lateness)] * 2

    bounded, single, dlcp, lossless = (
        bounded_loss(percent, ideas=ideas).name
        for percent, ideas in ((10, 1), (10, 2), (10, 3), (0, 3))
    )
    seconds = {
        CUBIC.name: 3.0, DCTCP.name: 2.0, SHORT_TIMEOUT.name: 1.5, BBR.name: 4.0, lossless: 1.2,
        bounded: 1.1, dlcp: 1.0, single: 1.3,
    }  # fmt: skip
    incasts: Incasts = {name: times(value) for name, value in seconds.items()}

    def progress(iteration_s: float, accuracies: list[float]) -> Progress:
        return Progress([iteration_s] * 3, accuracies, [0.0], lateness)

    seconds[PRIORITY_TCP.name] = 1.8
    learnt = [0.5, 0.9, 0.95]
    server = {name: progress(value, learnt) for name, value in seconds.items()}
    accuracy = {
        0: [progress(1.2, learnt)], 10: [progress(1.0, [0.5, 0.9, 0.94])],
        30: [progress(0.9, [0.4, 0.6, 0.9])],
    }  # fmt: skip
    whole = (times(2.0)[0], times(1.0)[0])
    return Measurements(incasts, incasts, whole, incasts, server, server, accuracy)


def test_measures_follow_from_times_and_accuracies() -> None:
    measures = outcome(_measurements(), Setup()).measures
    wanted = {
        "tail_saved": 50, "deep_tail_saved": 50, "mean_saved": 50, "deep_round_tail_saved": 50,
        "bounded_loss_gain": 2 / 1.1, "short_timeout_tail_saved": 100 / 3, "compressed_tail": 0.5,
        "spraying_gain": 1.3, "loss_gain": 1.2, "server_speedup": 1.8, "server_gain": 80.0,
        "ring_speedup": 3.0, "server_over_ring": 0.6,
        "fastest_tcp_speedup": 1.5, "priority_gain": 1.1, "accuracy_change": -1.0,
        "iterations_at_most_loss": 1.5,
    }  # fmt: skip
    assert {name: measure.value for name, measure in measures.items()} == pytest.approx(wanted)
    assert len(measures["tail_saved"].samples) == 2
    assert "2000 ms for rounds with all bytes" in measures["compressed_tail"].note


def test_picture_shows_the_tail_and_leaves_out_points_that_coincide() -> None:
    measured = _measurements()
    flows = np.geomspace(0.01, 2.0, 10_000).tolist()
    measured.deep[CUBIC.name][0] = replace(measured.deep[CUBIC.name][0], flows_s=flows)
    picture = completion_curves([("8", measured.incast), ("32", measured.deep)])
    assert "0.1 %" in picture
    assert len(picture) < 40_000


def test_late_links_make_all_measures_invalid() -> None:
    measures = outcome(_measurements(late_ns=2_000_000), Setup()).measures
    assert {measure.value for measure in measures.values()} == {None}
    assert "2.0 ms" in measures["tail_saved"].note


def test_accuracy_that_is_never_reached_gives_no_ratio() -> None:
    measures = outcome(_measurements(), Setup(target_accuracy=0.94)).measures
    assert measures["iterations_at_most_loss"].value is None


def test_every_claim_of_the_file_has_its_measure() -> None:
    spec, _, setup = load_study(STUDY)
    measures = outcome(_measurements(), setup).measures
    named = {claim.measure for claim in spec.claims if claim.method != "untested"}
    assert named == set(measures)
