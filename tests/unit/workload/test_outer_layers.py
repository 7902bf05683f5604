"""Head, layers without experts and optimiser around the MoE layers of an iteration."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.config.model import preset
from moefabric.core.demand import DemandMatrix
from moefabric.core.topology import Region
from moefabric.workload.iterations.iteration import (
    AllReduce,
    Collective,
    Compute,
    Layer,
    Operation,
    iteration_operations,
)
from moefabric.workload.iterations.job import JobShape, jobs, outer_gradient_bytes
from moefabric.workload.iterations.outer_layers import OuterLayers
from moefabric.workload.iterations.pipeline import (
    PipelineTraffic,
    iteration_tasks,
    lockstep_tasks,
    with_gradient_sums,
)
from moefabric.workload.models.model import DIRECTIONS, Model, Training
from tests.support.fabrics import fabric

MIXTRAL, DEEPSEEK = preset("mixtral-8x7b"), preset("deepseek-r1")
TRAINING = Training(8, 4, 4096, 8, 312e12, 0.4)
SERVERS = ("s0", "s1")
PARTS = OuterLayers((1.0, 2.0), 3.0, 4.0)
shapes = st.builds(JobShape, st.integers(1, 3), st.integers(1, 3), st.integers(1, 4))


def operations(layers: int = 2) -> list[Operation]:
    layer = Layer(DemandMatrix(SERVERS, [[0.0, 1.0], [1.0, 0.0]]), (1.0, 1.0))
    return list(iteration_operations(MIXTRAL, TRAINING, [layer] * layers))


def kinds(listed: Sequence[Operation]) -> list[str]:
    """The kind of each operation, `moe` for those of MoE layers."""
    found = [getattr(one, "kind", "") for one in listed]
    return [kind if kind in ("dense", "head", "optimiser") else "moe" for kind in found]


def test_parts_are_around_the_moe_layers_and_between_the_passes() -> None:
    plain, whole = operations(), list(PARTS.around(operations(), 2))
    assert [one for one, kind in zip(whole, kinds(whole), strict=True) if kind == "moe"] == plain
    assert kinds(whole)[0] == "dense"
    assert kinds(whole)[-2:] == ["dense", "optimiser"]
    head = kinds(whole).index("head")
    assert {one.direction for one in whole[:head]} == {"forward"}
    assert {one.direction for one in whole[head:]} == {"backward"}
    added = [one for one in whole if isinstance(one, Compute) and kinds([one]) != ["moe"]]
    assert [one.seconds for one in added] == [(s, s) for s in (1.0, 3.0, 2.0, 4.0)]


@pytest.mark.parametrize("model", [MIXTRAL, DEEPSEEK], ids=lambda model: model.name)
def test_half_of_the_layers_have_half_of_the_other_parts(model: Model) -> None:
    half = replace(model, layers=model.layers // 2, whole_layers=model.layers)
    all_s, half_s = (
        OuterLayers.of(one, TRAINING, one.layers, first=True, last=True) for one in (model, half)
    )
    assert half_s.head_s == pytest.approx(all_s.head_s / 2)
    assert half_s.dense_s == pytest.approx([seconds / 2 for seconds in all_s.dense_s])
    assert half_s.optimiser_s == pytest.approx(all_s.optimiser_s / 2)
    sizes = [sum(outer_gradient_bytes(one, 8, 1).values()) for one in (model, half)]
    assert sizes[1] == pytest.approx(sizes[0] / 2)


def test_parts_are_those_of_the_paper_and_each_has_one_stage() -> None:
    first, last = (
        OuterLayers.of(DEEPSEEK, TRAINING, 29, first=not stage, last=bool(stage))
        for stage in range(2)
    )
    dense_s = [3 * TRAINING.dense_layer_s(DEEPSEEK, direction) for direction in DIRECTIONS]
    assert (*first.dense_s, first.head_s) == pytest.approx((*dense_s, 0.0))
    head_s = sum(TRAINING.head_s(DEEPSEEK, direction) for direction in DIRECTIONS)
    assert (*last.dense_s, last.head_s) == pytest.approx((0.0, 0.0, head_s))
    both = OuterLayers.of(DEEPSEEK, TRAINING, 58, first=True, last=True)
    assert both.optimiser_s == pytest.approx(first.optimiser_s + last.optimiser_s)


def test_optimiser_reads_and_writes_28_bytes_a_weight_of_a_gpu() -> None:
    """A GPU of Mixtral 8x7B has a fourth of an expert, attention and router of each layer."""
    weights = 32 * (MIXTRAL.replicated_weights + MIXTRAL.expert_weights) + 2 * 4096 * 32000
    parts = OuterLayers.of(MIXTRAL, TRAINING, 32, first=True, last=True)
    assert parts.optimiser_s == pytest.approx(28 * weights / 4 / 2039e9)


def test_head_and_embeddings_are_summed_with_the_layers_next_to_them() -> None:
    sizes = outer_gradient_bytes(MIXTRAL, 4, 2)
    assert sizes == pytest.approx(dict.fromkeys((0, 31), 2 * 4096 * 32000 * 2 * 7 / 8))
    tied = outer_gradient_bytes(replace(MIXTRAL, tied_embeddings=True), 4, 2)
    assert tied == {0: sizes[0], 31: 0.0}
    dense = outer_gradient_bytes(DEEPSEEK, 4, 2)
    assert dense[0] - dense[57] == pytest.approx(3 * DEEPSEEK.dense_layer_weights * 2 * 2 * 7 / 8)
    traffic = PipelineTraffic(0.0, 10.0, {0: 1.0, 1: 2.0})
    summed = with_gradient_sums(PARTS.around(operations(), 2), [SERVERS], traffic)
    found = {}
    for one in summed:
        work = one.transfer if isinstance(one, Compute) else one
        if isinstance(work, AllReduce):
            found[work.layer] = work.bytes
    assert found == {1: 12.0, 0: 11.0}


@pytest.mark.parametrize("parts", [PARTS, replace(PARTS, dense_s=(0.0, 0.0))], ids=["all", "head"])
def test_optimiser_waits_for_all_sums_of_one_replica(parts: OuterLayers) -> None:
    traffic = PipelineTraffic(0.0, 10.0)
    listed = tuple(with_gradient_sums(parts.around(operations(), 2), [SERVERS], traffic))
    tasks = lockstep_tasks(listed, ["r0"])
    sums = {n for n, task in enumerate(tasks) if isinstance(task.work, AllReduce)}
    assert len(sums) == 2
    assert isinstance(tasks[-1].work, Compute)
    assert tasks[-1].work.kind == "optimiser"
    waits, waiting = set[int](), list(tasks[-1].after)
    while waiting:
        waits.add(number := waiting.pop())
        waiting += tasks[number].after
    assert waits == set(range(len(tasks) - 1)), "all else"


@given(shapes)
def test_each_stage_updates_once_after_the_sums_over_its_replicas(shape: JobShape) -> None:
    def passes(region: Region, micro_batch: int, way: str) -> list[Operation]:
        owed = DemandMatrix(region.servers, [[0.0, 1.0], [0.0, 0.0]])
        stage = int(region.name[1:]) % shape.pp
        layer: list[Operation] = [
            Compute("attention", way, stage, (1.0, 1.0)),
            Collective("dispatch", way, stage, owed),
        ]
        return list(PARTS.around(layer, 2, updates=micro_batch == shape.micro_batches - 1))

    [job] = jobs(shape, fabric(regions=(2,) * shape.regions).regions)
    tasks = iteration_tasks(job, passes, PipelineTraffic(1.0, 1.0, {0: 1.0}))
    works = [(n, task, task.work) for n, task in enumerate(tasks)]
    updates = [(n, t) for n, t, w in works if isinstance(w, Compute) and w.kind == "optimiser"]
    assert sorted(task.region for _, task in updates) == sorted(r.name for r in job.regions)
    sums = [(n, task) for n, task, work in works if isinstance(work, AllReduce)]
    assert len(sums) == (shape.pp if shape.dp > 1 else 0)
    for number, task in sums:
        assert all(number in update.after for _, update in updates if update.region in task.regions)
        assert isinstance(task.work, AllReduce)
        assert task.work.bytes == (2.0 if task.work.layer == 0 else 1.0)
