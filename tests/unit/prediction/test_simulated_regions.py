"""Regions that stand for all: equal to the plain simulation, or a sample with an honest error."""

import json
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import pytest

from moefabric.config.experiment import ExperimentSpec
from moefabric.config.loader import load_experiment
from moefabric.core.errors import SpecError
from moefabric.execution.run import run
from moefabric.prediction import experiment as prediction
from moefabric.prediction import simulated_regions
from moefabric.prediction.experiment import predict_fabrics
from moefabric.prediction.simulated_regions import SimulatedRegions, mean_greatest
from moefabric.results.parts import Json
from moefabric.results.progress import PlainProgressReporter
from tests.support.paths import EXAMPLES

COUNTED = "reconfigurations"
TIMES = ("iteration_s", "compute_s", "all_to_all_s", "light_share", "spine_share", COUNTED)


def pipeline(replicas: int, *settings: str, jobs: int = 1, stages: int = 2) -> ExperimentSpec:
    """Return replicas of two stages, each of them a region of 4 servers, with equal demands."""
    regions = [{"count": jobs * replicas * stages, "servers": 4, "ocs": {"settle": "25ms"}}]
    shape = [f"training.dp={replicas}", f"training.pp={stages}", "training.micro_batches=2"]
    wired = [f"wiring.regions={json.dumps(regions)}", "gating.noise=0"]
    return load_experiment(EXAMPLES / "pipeline.yaml", [*shape, *wired, *settings])


def predicted(spec: ExperimentSpec) -> list[Json]:
    fabrics: list[Json] = predict_fabrics(spec, EXAMPLES).to_json()["fabrics"]
    return fabrics


def times(fabrics: Sequence[Json]) -> list[dict[str, float]]:
    return [{key: fabric[key] for key in TIMES if fabric[key] is not None} for fabric in fabrics]


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Simulate every region until undone."""
    monkeypatch.setattr(
        prediction, "simulated_regions", lambda spec, _: SimulatedRegions(spec, spec)
    )
    return monkeypatch


@pytest.mark.parametrize(
    ("spec", "regions"),
    [
        pytest.param(pipeline(6), 4, id="one leaf"),
        pytest.param(pipeline(5), 4, id="odd ring"),
        pytest.param(pipeline(3, jobs=3), 4, id="jobs side by side"),
        pytest.param(
            pipeline(6, "wiring.eps={servers_per_leaf: 8, spines: 2}"), 4, id="leaf for a replica"
        ),
        pytest.param(
            pipeline(8, "wiring.eps={servers_per_leaf: 16, spines: 4, oversubscription: 2}"),
            8,
            id="leaf for two replicas",
        ),
        pytest.param(
            pipeline(6, "wiring.eps={servers_per_leaf: 12, spines: 4, oversubscription: 3}"),
            6,
            id="replicas across leaves",
        ),
        pytest.param(
            pipeline(4, "wiring.eps={kind: rail, servers_per_leaf: 4, spines: 2}"), 4, id="rails"
        ),
        pytest.param(
            pipeline(1, "training.micro_batches=1", "training.schedule=lockstep", jobs=6, stages=1),
            1,
            id="lockstep",
        ),
    ],
)
def test_equal_regions_give_the_times_of_all(
    spec: ExperimentSpec, regions: int, plain: pytest.MonkeyPatch
) -> None:
    every = predicted(spec)
    plain.undo()
    some = predicted(spec)
    assert [one["simulated"]["regions"] for one in some] == [regions] * len(some)
    assert not any(one["simulated"]["is_sample"] for one in some)
    assert times(some) == [pytest.approx(one, rel=1e-9) for one in times(every)]
    costs = [[one["cost"]["network_usd"] for one in fabrics] for fabrics in (some, every)]
    assert costs[0] == costs[1]


def test_65536_gpus_are_simulated_as_two_replicas() -> None:
    spec = load_experiment(EXAMPLES / "growth.yaml")
    assert spec.wiring.server_count * spec.wiring.gpus_per_server == 65_536
    for choice in spec.fabrics:
        some = simulated_regions.simulated_regions(spec, choice)
        assert (some.regions, some.all_regions, some.is_sample) == (8, 2048, False)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(["gating.noise=0.1"], id="noise"),
        pytest.param(['gating={"generator": "mixtral-web"}'], id="generator"),
    ],
)
def test_regions_that_differ_are_all_simulated_up_to_the_limit(settings: list[str]) -> None:
    spec = pipeline(6, *settings)
    some = simulated_regions.simulated_regions(spec, spec.fabrics[1])
    assert some.part is spec


def test_regions_beyond_the_limit_are_sampled() -> None:
    spec = load_experiment(
        EXAMPLES / "paper-scale.yaml",
        ["training.dp=256", 'wiring.regions=[{"count": 1024, "servers": 8}]'],
    )
    some = simulated_regions.simulated_regions(spec, spec.fabrics[1])
    assert some.is_sample
    assert some.regions == 60, "three replicas fill whole leaves"


@pytest.mark.parametrize(
    ("replicas", "jobs"), [pytest.param(16, 1, marks=pytest.mark.nightly), (1, 16)]
)
def test_sample_deviates_from_all_regions_within_its_error(
    replicas: int, jobs: int, plain: pytest.MonkeyPatch
) -> None:
    spec = pipeline(replicas, "gating.noise=0.3", jobs=jobs)
    every = predicted(spec)
    plain.setattr(
        prediction,
        "simulated_regions",
        lambda spec, choice: simulated_regions.simulated_regions(spec, choice, most=16),
    )
    for whole, some in zip(every, predicted(spec), strict=True):
        error_s = some["simulated"]["iteration_error_s"]
        assert some["simulated"]["is_sample"]
        assert 0 < error_s < 0.1 * whole["iteration_s"]
        assert abs(some["iteration_s"] - whole["iteration_s"]) < 3 * error_s


LOCKSTEP = ("training.micro_batches=1", "training.schedule=lockstep", "gating.noise=0.1")


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        pytest.param(LOCKSTEP, "training.schedule", id="lockstep"),
        pytest.param(["wiring.servers={s1: {nic_rate: 50Gb/s}}"], "wiring.regions", id="rates"),
    ],
)
def test_regions_that_stand_for_no_others_are_all_simulated_or_refused(
    settings: Sequence[str], place: str
) -> None:
    for jobs in (100, 300):
        spec = pipeline(1, *settings, jobs=jobs, stages=1)
        if jobs == 100:
            assert simulated_regions.simulated_regions(spec, spec.fabrics[1]).part is spec
            continue
        with pytest.raises(SpecError, match=rf"{place}: 300 regions differ, and at most 256"):
            simulated_regions.simulated_regions(spec, spec.fabrics[1])


def test_emulation_has_fewer_servers_than_a_prediction() -> None:
    spec = load_experiment(EXAMPLES / "growth.yaml")
    with pytest.raises(SpecError, match=r"8192 servers are more than the"):
        run(spec, EXAMPLES, PlainProgressReporter())


def test_mean_greatest_of_normal_numbers() -> None:
    random = np.random.default_rng(1)
    for count in (2, 16, 512):
        drawn = random.normal(size=(4000, count)).max(axis=1).mean()
        assert mean_greatest(count) == pytest.approx(drawn, abs=0.05)
    assert mean_greatest(1) == NormalDist().mean
