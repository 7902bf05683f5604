"""A job's iteration as tasks: dependencies between stages and between replicas."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.config.model import preset
from moefabric.core.demand import DemandMatrix
from moefabric.core.topology import Region
from moefabric.simulator.event_simulation import Step, simulate, simulate_iterations
from moefabric.workload.iterations.iteration import (
    AllReduce,
    Collective,
    Compute,
    Operation,
    Reconfigure,
    Transfer,
)
from moefabric.workload.iterations.job import (
    Job,
    JobShape,
    StageContents,
    activation_bytes,
    gradient_bytes,
    jobs,
    stage_contents,
    stage_layers,
)
from moefabric.workload.iterations.pipeline import PipelineTraffic, iteration_tasks
from moefabric.workload.iterations.tasks import Task
from moefabric.workload.models.model import Training
from moefabric.workload.models.payload import BigMac, Payloads
from tests.support.fabrics import fabric

shapes = st.builds(JobShape, st.integers(1, 4), st.integers(1, 3), st.integers(1, 6))
SIZES = PipelineTraffic(100.0, 200.0)


def job(shape: JobShape) -> Job:
    [only] = jobs(shape, fabric(regions=(2,) * shape.regions).regions)
    return only


def one_layer(region: Region, micro_batch: int, direction: str) -> list[Operation]:
    """A second of attention each way, with light and an all-to-all."""
    owed = DemandMatrix(region.servers, [[0.0, 1.0], [0.0, 0.0]])
    if direction == "forward":
        return [
            Compute("attention", "forward", 0, (1.0, 1.0)),
            Reconfigure("forward", 0, owed),
            Collective("dispatch", "forward", 0, owed),
        ]
    return [
        Collective("combine", "backward", 0, owed),
        Compute("attention", "backward", 0, (2.0, 2.0)),
    ]


def tasks_of(shape: JobShape) -> tuple[Task, ...]:
    return iteration_tasks(job(shape), one_layer, SIZES)


def before(tasks: tuple[Task, ...], number: int) -> set[int]:
    """All that a task waits for, and that this waits for, and so on."""
    ancestors: set[int] = set()
    waiting = list(tasks[number].after)
    while waiting:
        task = waiting.pop()
        if task not in ancestors:
            ancestors.add(task)
            waiting += tasks[task].after
    return ancestors


@given(shapes)
def test_tasks_wait_for_earlier_tasks_only(shape: JobShape) -> None:
    tasks = tasks_of(shape)
    assert all(earlier < number for number, task in enumerate(tasks) for earlier in task.after)


@given(shapes)
def test_each_stage_and_replica_passes_each_micro_batch_once_in_each_direction(
    shape: JobShape,
) -> None:
    passes = [
        (task.region, task.work.direction, task.micro_batch)
        for task in tasks_of(shape)
        if isinstance(task.work, Compute)
    ]
    assert sorted(passes) == sorted(
        (f"r{region}", way, number)
        for region in range(shape.regions)
        for way in ("forward", "backward")
        for number in range(shape.micro_batches)
    )


@given(shapes)
def test_micro_batch_goes_backward_after_all_stages_went_forward(shape: JobShape) -> None:
    tasks = tasks_of(shape)
    place = {
        (task.region, task.work.direction, task.micro_batch): number
        for number, task in enumerate(tasks)
        if isinstance(task.work, Compute)
    }
    for replica in range(shape.dp):
        names = [job(shape).at(replica, stage).name for stage in range(shape.pp)]
        for number in range(shape.micro_batches):
            first_back = before(tasks, place[names[0], "backward", number])
            for name in names:
                assert place[name, "forward", number] in first_back
            for name in names[1:]:
                assert place[name, "backward", number] in first_back


@given(shapes)
def test_only_neighbouring_stages_transfer_each_micro_batch(shape: JobShape) -> None:
    moved = [task for task in tasks_of(shape) if isinstance(task.work, Transfer)]
    assert len(moved) == 2 * shape.dp * (shape.pp - 1) * shape.micro_batches
    for task in moved:
        here, there = (int(name[1:]) for name in task.regions)
        assert there - here == (1 if task.work.direction == "forward" else -1)
        assert here // shape.pp == there // shape.pp


@given(shapes)
def test_all_reduce_follows_the_last_backward_pass_of_every_replica(shape: JobShape) -> None:
    tasks = tasks_of(shape)
    reduced = [(n, task) for n, task in enumerate(tasks) if isinstance(task.work, AllReduce)]
    assert len(reduced) == (shape.pp if shape.dp > 1 else 0)
    for number, task in reduced:
        waits = before(tasks, number)
        for earlier, other in enumerate(tasks):
            if other.region in task.regions and isinstance(other.work, Compute):
                assert earlier in waits
        assert isinstance(task.work, AllReduce)
        senders = [src for src, _ in task.work.pairs]
        assert sorted(senders) == sorted(dst for _, dst in task.work.pairs)
        assert len(senders) == len(set(senders)) == 2 * shape.dp


@given(shapes)
def test_only_all_reduces_wait_for_all_reduces(shape: JobShape) -> None:
    tasks = tasks_of(shape)
    reduced = {n for n, task in enumerate(tasks) if isinstance(task.work, AllReduce)}
    others = [task for n, task in enumerate(tasks) if n not in reduced]
    assert others
    assert not reduced & {n for task in others for n in task.after}


@given(shapes)
def test_no_reconfiguration_overlaps_an_all_to_all_of_its_region(shape: JobShape) -> None:
    """Of the light and the all-to-alls of a region, each waits for the one before."""
    tasks = tasks_of(shape)
    last: dict[str, int] = {}
    for number, task in enumerate(tasks):
        if isinstance(task.work, Reconfigure | Collective):
            if task.region in last:
                assert last[task.region] in before(tasks, number)
            last[task.region] = number
    assert last


@given(shapes)
def test_iteration_without_communication_is_computation_and_bubble(shape: JobShape) -> None:
    tasks = tasks_of(shape)
    steps = [
        Step(task.after, task.work.slowest_s if isinstance(task.work, Compute) else 0.0)
        for task in tasks
    ]
    lasts = max(step.end_s for step in simulate(steps, {}))
    busy = 3.0 * shape.micro_batches
    assert lasts == pytest.approx(3.0 * (shape.micro_batches + shape.pp - 1))
    assert 1 - busy / lasts == pytest.approx((shape.pp - 1) / (shape.micro_batches + shape.pp - 1))


def test_reconfiguration_for_a_micro_batch_does_not_wait_for_its_gradients() -> None:
    tasks = tasks_of(JobShape(pp=2, micro_batches=2))
    lights = [
        (task.region, task.work.direction, task.micro_batch)
        for task in tasks
        if isinstance(task.work, Reconfigure)
    ]
    assert lights == [
        ("r0", "forward", 0), ("r0", "forward", 1), ("r1", "forward", 0), ("r0", "backward", 0),
        ("r1", "forward", 1), ("r0", "backward", 1),
    ]  # fmt: skip
    light = next(
        n
        for n, t in enumerate(tasks)
        if isinstance(t.work, Reconfigure) and t.work.direction == "backward"
    )
    assert not any(isinstance(tasks[n].work, Transfer) for n in before(tasks, light)), (
        "no gradients are awaited"
    )


def test_overlapped_reconfiguration_delays_only_collectives_and_reconfigurations() -> None:
    owed = DemandMatrix(("s0", "s1"), [[0.0, 1.0], [0.0, 0.0]])
    hidden = [
        Compute("attention", "forward", n, (1.0, 1.0), Reconfigure("forward", n, owed))
        for n in range(2)
    ]
    work: list[Operation] = [*hidden, Collective("dispatch", "forward", 1, owed)]
    tasks = iteration_tasks(
        job(JobShape()), lambda _r, _m, way: {"forward": work}.get(way, ()), SIZES
    )
    assert [type(task.work) for task in tasks] == [
        Compute,
        Reconfigure,
        Compute,
        Reconfigure,
        Collective,
    ]
    assert [task.after for task in tasks] == [(), (), (0,), (0, 1), (2, 3)]


def test_collective_waits_for_the_reconfiguration_during_the_one_before() -> None:
    owed = DemandMatrix(("s0", "s1"), [[0.0, 1.0], [0.0, 0.0]])
    work: list[Operation] = [
        Collective("dispatch", "forward", 0, owed, Reconfigure("forward", 0, owed)),
        Compute("expert", "forward", 0, (1.0, 1.0)),
        Collective("combine", "forward", 0, owed.combine()),
    ]
    tasks = iteration_tasks(
        job(JobShape()), lambda _r, _m, way: {"forward": work}.get(way, ()), SIZES
    )
    assert [task.after for task in tasks] == [(), (0,), (0,), (1, 2)]
    assert [task.during for task in tasks] == [None, 0, None, None], "unless it has moved meanwhile"


def test_jobs_take_regions_in_turn() -> None:
    both = jobs(JobShape(pp=2, dp=2), fabric(regions=(2,) * 8).regions)
    assert [[region.name for region in one.regions] for one in both] == [
        ["r0", "r1", "r2", "r3"],
        ["r4", "r5", "r6", "r7"],
    ]
    assert both[1].at(1, 0).name == "r6"
    with pytest.raises(ValueError, match="3 regions don't make whole jobs of 2"):
        jobs(JobShape(pp=2), fabric(regions=(2,) * 3).regions)


def test_iterations_of_a_job_follow_each_other_and_jobs_run_side_by_side() -> None:
    first, second = simulate_iterations(
        [[[Step(seconds=1.0)], [Step(seconds=2.0)]], [[Step(seconds=5.0)]]], {}
    )
    assert [step.end_s for iteration in first for step in iteration] == [1.0, 3.0]
    assert [step.end_s for iteration in second for step in iteration] == [5.0]


MIXTRAL, TRAINING = preset("mixtral-8x7b"), Training(8, 4, 4096, 8, 312e12, 0.4)


def test_activation_bytes_are_those_of_a_servers_ranks() -> None:
    assert activation_bytes(MIXTRAL, TRAINING, 4) == 2 * 4096 * 8 * 4096 * 2


def test_gradient_bytes_of_experts_and_attention() -> None:
    expert, attention, router = 2 * 3 * 4096 * 14336, 2 * 4096 * (4096 + 1024), 4096 * 8
    assert gradient_bytes(MIXTRAL, 4, 2) == pytest.approx(
        2 * (expert * 1 + (attention + router) * 2 * 7 / 8)
    )


def test_gradient_bytes_without_replicas_are_those_that_all_ranks_hold() -> None:
    replicated = 2 * 4096 * (4096 + 1024) + 4096 * 8
    assert gradient_bytes(MIXTRAL, 4, 1) == pytest.approx(2 * replicated * 2 * 3 / 4)


def test_gradient_bytes_contain_the_projections_that_all_ranks_hold() -> None:
    narrow = Payloads(BigMac(0.25), BigMac(0.25))
    added = gradient_bytes(MIXTRAL, 4, 1, narrow) - gradient_bytes(MIXTRAL, 4, 1)
    assert added == pytest.approx(2 * 2 * 0.25 * 4096**2 * 2 * 3 / 4)


@pytest.mark.parametrize(("layers", "stages"), [(8, 4), (61, 16), (58, 16), (7, 3), (5, 5)])
def test_stages_have_all_layers_whole_and_differ_by_one_at_most(layers: int, stages: int) -> None:
    parts = stage_layers(layers, stages)
    assert [number for part in parts for number in part] == list(range(layers))
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="3 layers don't fill 4 pipeline stages"):
        stage_layers(3, 4)


def test_deepseek_fills_16_stages_with_at_most_4_layers() -> None:
    """61 layers: the first stage has the 3 without experts, the last one the head."""
    stages = stage_contents(preset("deepseek-r1"), 16)
    assert stages[0] == StageContents(moe_layers=1, dense_layers=3, head=False)
    assert [stage.moe_layers for stage in stages] == [1] + 12 * [4] + 3 * [3]
    assert [stage.head for stage in stages] == 15 * [False] + [True]


@pytest.mark.parametrize(
    "stage_s",
    [
        pytest.param((3.0,) * 4, id="equal"),
        pytest.param((3.0, 3.0, 3.0, 2.25), id="last-is-shorter"),
        pytest.param((3.0, 3.0, 3.0, 4.5), id="last-is-slowest"),
        pytest.param((6.0, 3.0, 3.0, 3.0), id="first-is-slowest"),
    ],
)
def test_pipeline_seconds_bound_the_simulation_of_stages(stage_s: tuple[float, ...]) -> None:
    """Exact for equal stages and a slow last one, else too long by less than the others."""
    shape = JobShape(pp=len(stage_s), micro_batches=8)

    def passes(region: Region, _micro_batch: int, way: str) -> list[Operation]:
        seconds = stage_s[int(region.name[1:])] * (1 / 3 if way == "forward" else 2 / 3)
        return [Compute("expert", way, 0, (seconds,))]

    tasks = iteration_tasks(job(shape), passes, PipelineTraffic(0.0, 0.0))
    steps = [
        Step(task.after, task.work.slowest_s if isinstance(task.work, Compute) else 0.0)
        for task in tasks
    ]
    simulated_s = max(times.end_s for times in simulate(steps, {}))
    # A micro-batch fills and drains all stages; the slowest stage has the time of each further one.
    bound_s = sum(stage_s) + 7 * max(stage_s)
    if stage_s[-1] == max(stage_s):
        assert bound_s == pytest.approx(simulated_s)
    assert simulated_s - 1e-9 <= bound_s <= simulated_s + sum(stage_s) - max(stage_s)
    assert simulated_s >= 8 * max(stage_s)
