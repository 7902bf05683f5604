"""Experiments take generated gating (presets, overrides and fits), and refuse empty traces."""

from pathlib import Path

import numpy as np
import pytest

from moefabric.config.loader import load_experiment
from moefabric.core.errors import SpecError
from moefabric.core.units import Scale
from moefabric.prediction.experiment import predict_fabrics
from moefabric.prediction.workload_loader import workload_on
from moefabric.workload.gating.generator import GatingGenerator
from moefabric.workload.gating.presets import preset
from moefabric.workload.workload import Workload
from tests.support.paths import EXAMPLES


def work(gating: str, *settings: str) -> Workload:
    path = EXAMPLES / "independent-regions.yaml"
    spec = load_experiment(path, [f"gating={gating}", *settings])
    fabric = spec.build_fabric(spec.fabrics[0], "lab", Scale())
    return workload_on(spec, fabric, path.parent)


def generator(job: Workload) -> GatingGenerator:
    assert isinstance(job.gating.source, GatingGenerator)
    return job.gating.source


def test_a_preset_takes_the_sizes_of_the_model_and_the_overrides_of_the_file() -> None:
    job = work("{generator: olmoe-web, skew: 0.7, sources: 2}", "seed=7")
    found = generator(job)
    training = job.training
    assert found.seed == 7
    assert found.ranks == training.ep
    assert found.parameters == preset(
        "olmoe-web",
        experts=job.model.experts,
        top_k=job.model.top_k,
        tokens=training.rank_tokens,
        skew=0.7,
        sources=2,
    )
    assert job.gating.label == "generator olmoe-web"


def test_iterations_layers_regions_and_micro_batches_have_draws_of_their_own() -> None:
    job = work("{generator: mixtral-domains}")
    places = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    demands = [job.layer_of(*place).demand.array for place in places]
    assert len({demand.tobytes() for demand in demands}) == len(places)
    again = work("{generator: mixtral-domains}").layer_of(0, 0, 0).demand.array
    np.testing.assert_array_equal(again, demands[0])


def test_a_generated_history_comes_before_the_first_iteration() -> None:
    plain = work("{generator: toy-training-aux}")
    late = work("{generator: toy-training-aux, history: 2}")
    later = [late.layer_of(n, 0, 0).demand.array for n in (-2, -1, 0)]
    first = [plain.layer_of(n, 0, 0).demand.array for n in (0, 1, 2)]
    np.testing.assert_array_equal(later, first)


def test_statistics_are_fitted_to_a_file_from_its_first_step_on() -> None:
    fitted = generator(work("{fit: data/training-1200-steps.npz, first_step: 600}")).parameters
    known = preset("toy-training-aux")
    assert fitted.experts == 8
    assert fitted.concentration == pytest.approx(known.concentration, rel=0.01)
    early = generator(work("{fit: data/training-1200-steps.npz}")).parameters
    assert early.concentration != pytest.approx(known.concentration, rel=0.01)


@pytest.mark.parametrize(
    ("gating", "fault"),
    [
        ("{}", "gating: matrix, trace, generator or fit is missing"),
        (
            "{generator: uniform, fit: a.npz}",
            "gating: generator and fit are both given, one of them",
        ),
        ("{generator: mixtral}", "gating.generator: 'mixtral' is not one of mixtral-web, "),
        ("{generator: uniform, noise: 0.1}", "gating.noise: only a matrix or trace has it"),
        ("{generator: uniform, repeat: true}", "gating.repeat: only a matrix or trace has it"),
        ("{generator: uniform, first_step: 2}", "gating.first_step: a preset has no steps"),
        ("{matrix: data/gating-8x8.json, skew: 1.0}", "gating.skew: only a generator has it"),
        ("{fit: data/none.npz}", "none.npz: there is no such file"),
        (
            "{fit: data/training-1200-steps.npz, first_step: 1200}",
            "gating.first_step: there is no step 1200 in the 1200 of training-1200-steps.npz",
        ),
        ("{fit: data/deepseek-r1-prefill-4096.json.gz, group_share: 2}", "gating.group_share: "),
    ],
)
def test_contradictions_are_named(gating: str, fault: str) -> None:
    with pytest.raises(SpecError) as error:
        work(gating)
    assert fault in str(error.value)


@pytest.mark.parametrize(
    ("empty", "fault"),
    [
        ((1, slice(None)), "no rank has tokens in layer 0 of step 1"),
        ((2, slice(None), 3), "rank 3 has no tokens in layer 0 of step 2"),
    ],
)
def test_ranks_without_tokens_are_named(
    tmp_path: Path, empty: tuple[int | slice, ...], fault: str
) -> None:
    counts = np.ones((3, 1, 8, 8), np.int64)
    counts[empty] = 0
    np.savez(tmp_path / "gating.npz", counts=counts)
    trace = f"{{trace: {tmp_path / 'gating.npz'}, first_step: 1, repeat: true}}"
    with pytest.raises(SpecError, match=rf"gating.trace: .*gating.npz: {fault}"):
        work(trace, "training.iterations=2", "failures=[]")


def test_repeated_trace_loses_no_experts(tmp_path: Path) -> None:
    counts = np.ones((1, 1, 8, 16), np.int64)
    np.savez(tmp_path / "gating.npz", counts=counts)
    with pytest.raises(SpecError, match=r"gating.repeat: the trace has 16 experts, and the model"):
        work(f"{{trace: {tmp_path / 'gating.npz'}, repeat: true}}", "failures=[]")


@pytest.mark.parametrize(
    ("choice", "iterations", "note"),
    [
        ("first_step: 1", 2, ""),
        ("first_step: 2", 2, "1 step from gating.first_step 2 on, which 2 iterations replay"),
        ("step_stride: 2", 4, "2 steps from gating.first_step 0 on, which 4 iterations replay"),
    ],
)
def test_iterations_past_the_end_of_a_trace_are_noted(
    tmp_path: Path, choice: str, iterations: int, note: str
) -> None:
    file = tmp_path / "gating.npz"
    np.savez(file, counts=np.ones((3, 1, 8, 8), np.int64))
    settings = [f"gating={{trace: {file}, {choice}}}", f"training.iterations={iterations}"]
    spec = load_experiment(EXAMPLES / "prototype.yaml", [*settings, "failures=[]"])
    notes = [one for one in predict_fabrics(spec, EXAMPLES).notes if one.startswith(file.name)]
    assert [one.partition(" has ")[2] for one in notes] == [f"{note} repeatedly"] * bool(note)
