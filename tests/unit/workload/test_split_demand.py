"""The demands for which splits of first all-to-alls are computed."""

from dataclasses import replace

import numpy as np
import pytest

from moefabric.config.model import preset
from moefabric.core.demand import DemandMatrix, Placement
from moefabric.workload.gating.job_gating import JobGating
from moefabric.workload.iterations.iteration import Collective, Layer, merge_layers
from moefabric.workload.iterations.split_demand import (
    KNOWN,
    RECENT_ITERATIONS,
    SplitDemand,
    SplitDemandSource,
)
from moefabric.workload.models.model import Training
from moefabric.workload.workload import Workload

TRAINING = Training(ep=4, tp=1, sequence=1000, micro_batch=1, gpu_flops=1e15, utilisation=0.5)
ITERATIONS, LAYERS, REGIONS = 12, 2, 2
MODEL = replace(preset("mixtral-8x7b"), layers=LAYERS)
TOKENS = np.random.default_rng(1).integers(1, 1000, (ITERATIONS, LAYERS, 4, 8))
PLACEMENTS = tuple(
    Placement(tuple(f"s{4 * region + n}" for n in range(4)), 4, 8) for region in range(REGIONS)
)
OWED = DemandMatrix(("s0", "s1", "s2"), [[5.0, 10.0, 0.0], [20.0, 0.0, 40.0], [80.0, 1.0, 2.0]])


def workload(source: SplitDemandSource = "known", error: float = 0.0) -> Workload:
    work = Workload(MODEL, TRAINING, PLACEMENTS, JobGating(TOKENS, "drawn", 0.3), ITERATIONS)
    return work.with_first_all_to_alls(split_demand=SplitDemand(source, error))


def assumed(work: Workload, iteration: int, layer: int = 1) -> tuple[DemandMatrix, ...]:
    return work.layers(iteration)[layer].split_demands


def demands(iteration: int, layer: int = 1) -> DemandMatrix:
    return workload().layers(iteration)[layer].demand


UNIFORM = ("none", "last", "recent", "predicted")


@pytest.mark.parametrize("source", UNIFORM)
def test_nothing_is_known_before_the_first_iteration(source: SplitDemandSource) -> None:
    [uniform] = assumed(workload(source), 0)
    for placement in PLACEMENTS:
        assert np.ptp(uniform.submatrix(placement.servers).array) == pytest.approx(0.0, abs=1e-3)
    assert uniform.array.sum() == pytest.approx(demands(0).array.sum())
    assert uniform.array[:4, 4:].sum() == 0, "regions owe each other nothing"


def test_last_demand_is_that_of_the_same_layer_an_iteration_ago() -> None:
    assert assumed(workload("last"), 5) == (demands(4),)


@pytest.mark.parametrize("iteration", [1, 3, RECENT_ITERATIONS, ITERATIONS - 1])
def test_recent_demands_are_those_of_up_to_eight_iterations(iteration: int) -> None:
    first = max(0, iteration - 8)
    expected = tuple(demands(before) for before in range(first, iteration))
    assert assumed(workload("recent"), iteration) == expected


def test_predicted_demand_is_copilots() -> None:
    work = workload("predicted")
    for iteration in range(1, 4):
        assert None not in work.predicted_demands(iteration)
        assert [layer.split_demands for layer in work.layers(iteration)] == [
            (predicted,) for predicted in work.predicted_demands(iteration)
        ]


@pytest.mark.parametrize("source", UNIFORM)
def test_gate_of_the_layer_itself_is_not_used(source: SplitDemandSource) -> None:
    before = assumed(workload(source), 5)
    other = TOKENS.copy()
    other[5, 1] = other[5, 1, :, ::-1]
    gating = JobGating(other, "drawn", 0.3)
    changed = replace(workload(), gating=gating).with_first_all_to_alls(
        split_demand=SplitDemand(source)
    )
    assert changed.layers(5)[1].demand != demands(5)
    for after, demand in zip(assumed(changed, 5), before, strict=True):
        # A rank's tokens are known; noise rounds their number.
        assert after.array == pytest.approx(demand.array, rel=1e-2)


def test_known_demand_needs_no_other() -> None:
    work = workload()
    assert work.split_demand == KNOWN
    assert assumed(work, 3) == ()
    assert work.predictions(3) == ()


def test_demand_without_error_is_unchanged() -> None:
    assert SplitDemand().with_error(OWED, 1, (0, 0)) is OWED
    assert assumed(workload("last", 0.0), 5) == assumed(workload("last"), 5)


@pytest.mark.parametrize("error", [0.1, 0.5, 1.0])
def test_each_pair_is_wrong_by_the_error(error: float) -> None:
    [wrong] = assumed(workload("known", error), 2)
    right = demands(2).array
    ratios = wrong.array[right > 0] / right[right > 0]
    assert np.abs(ratios - 1) == pytest.approx(error)
    assert 0.2 < np.mean(ratios > 1) < 0.8, "some pairs are too high and some too low"


def test_errors_are_seeded_and_differ_from_place_to_place() -> None:
    wrong = SplitDemand(error=0.5)
    first = wrong.with_error(OWED, 1, (0, 0))
    assert first == wrong.with_error(OWED, 1, (0, 0))
    matrix = DemandMatrix([f"s{n}" for n in range(20)], np.ones((20, 20)))
    drawn = {wrong.with_error(matrix, seed, (place,)) for seed in (1, 2) for place in (0, 1)}
    assert len(drawn) == 4
    recent = assumed(workload("recent", 0.5), 3)
    assert len({tuple((d.array > demands(n).array).ravel()) for n, d in enumerate(recent)}) == 3


@pytest.mark.parametrize("source", UNIFORM)
def test_history_is_what_iterations_before_the_first_were(source: SplitDemandSource) -> None:
    exact = replace(workload(), gating=JobGating(TOKENS, "drawn"))
    later = replace(exact, gating=JobGating(TOKENS[3:], "drawn", history=TOKENS[:3]))
    after, whole = (
        work.with_first_all_to_alls(split_demand=SplitDemand(source)) for work in (later, exact)
    )
    for iteration in (0, 1):
        assert assumed(after, iteration) == assumed(whole, 3 + iteration)


def test_history_has_noise_of_its_own() -> None:
    constant = np.repeat(TOKENS[:1], 4, axis=0)
    gating = JobGating(constant, "drawn", 0.3, history=constant)
    later = replace(workload("recent"), gating=gating)
    drawn = {*assumed(later, 0), *(later.layers(n)[1].demand for n in range(4))}
    assert len(drawn) == 8


def test_only_first_all_to_alls_have_another_demand() -> None:
    work = workload("last")
    collectives = [o for o in work.operations(2) if isinstance(o, Collective)]
    other = {(c.direction, c.kind) for c in collectives if c.split_demands}
    assert other == {("forward", "dispatch")}
    assert [c.demand for c in collectives] == [
        o.demand for o in workload().operations(2) if isinstance(o, Collective)
    ]


def test_circuits_for_the_whole_job_do_not_depend_on_what_is_known() -> None:
    assert workload("predicted", 0.5).total_demand() == workload().total_demand()


def test_layers_of_regions_are_joined_demand_by_demand() -> None:
    def layer(server: str, *owed: float) -> Layer:
        own, *others = (DemandMatrix((server,), [[size]]) for size in owed)
        return Layer(own, (1.0,), tuple(others))

    both = merge_layers([layer("s0", 1, 2, 3), layer("s1", 1, 4, 5)]).split_demands
    assert [demand.array.tolist() for demand in both] == [[[2, 0], [0, 4]], [[3, 0], [0, 5]]]
