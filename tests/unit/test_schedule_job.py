"""A job's iteration as tasks: what waits for what, from stage to stage and from replica to replica."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.demand import DemandMatrix
from moefabric.iteration import Collective, Compute, Operation, Reconfigure
from moefabric.model import MODELS, Training
from moefabric.schedule.job import Volumes, iteration
from moefabric.schedule.pipeline import bubble
from moefabric.schedule.shape import Job, Shape, activation_bytes, gradient_bytes, jobs
from moefabric.schedule.simulate import Step, side_by_side, simulate
from moefabric.schedule.tasks import AllReduce, Task, Transfer, hides_in
from moefabric.topology import Region
from tests.fabrics import fabric

shapes = st.builds(Shape, st.integers(1, 4), st.integers(1, 3), st.integers(1, 6))
SIZES = Volumes(100.0, 200.0)


def job(shape: Shape) -> Job:
    [made] = jobs(shape, fabric(regions=(2,) * shape.regions).regions)
    return made


def one_layer(region: Region, micro_batch: int, direction: str) -> list[Operation]:
    """A second of attention each way, with light and an all-to-all."""
    owed = DemandMatrix(region.servers, [[0.0, 1.0], [0.0, 0.0]])
    if direction == "forward":
        return [
            Compute("attention", "forward", 0, (1.0, 1.0)),
            Reconfigure("forward", 0, owed),
            Collective("dispatch", "forward", 0, owed),
        ]
    return [Collective("combine", "backward", 0, owed), Compute("attention", "backward", 0, (2.0, 2.0))]


def made(shape: Shape) -> tuple[Task, ...]:
    return iteration(job(shape), one_layer, SIZES)


def before(tasks: tuple[Task, ...], number: int) -> set[int]:
    """All that a task waits for, and that this waits for, and so on."""
    found: set[int] = set()
    waiting = list(tasks[number].after)
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += tasks[each].after
    return found


@given(shapes)
def test_there_is_an_order_in_which_all_can_be_done(shape: Shape) -> None:
    tasks = made(shape)
    assert all(earlier < number for number, task in enumerate(tasks) for earlier in task.after)


@given(shapes)
def test_each_stage_and_replica_does_each_micro_batch_once_each_way(shape: Shape) -> None:
    seen = [
        (task.region, task.work.direction, task.micro_batch)
        for task in made(shape)
        if isinstance(task.work, Compute)
    ]
    assert sorted(seen) == sorted(
        (f"r{region}", way, number)
        for region in range(shape.regions)
        for way in ("forward", "backward")
        for number in range(shape.micro_batches)
    )


@given(shapes)
def test_a_micro_batch_goes_back_through_a_stage_once_it_has_been_through_all(shape: Shape) -> None:
    tasks = made(shape)
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
def test_neighbouring_stages_and_no_others_hand_over_each_micro_batch(shape: Shape) -> None:
    moved = [task for task in made(shape) if isinstance(task.work, Transfer)]
    assert len(moved) == 2 * shape.dp * (shape.pp - 1) * shape.micro_batches
    for task in moved:
        here, there = (int(name[1:]) for name in task.regions)
        assert there - here == (1 if task.work.direction == "forward" else -1)
        assert here // shape.pp == there // shape.pp


@given(shapes)
def test_gradients_are_summed_once_every_replica_has_done_its_last_backward_pass(shape: Shape) -> None:
    tasks = made(shape)
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
def test_nobody_waits_for_an_all_reduce(shape: Shape) -> None:
    tasks = made(shape)
    reduced = {n for n, task in enumerate(tasks) if isinstance(task.work, AllReduce)}
    for task in tasks:
        if not isinstance(task.work, AllReduce):
            assert not reduced & {*task.after}


@given(shapes)
def test_no_light_moves_in_a_region_while_its_all_to_all_is_under_way(shape: Shape) -> None:
    """Of the light and the all-to-alls of a region, each waits for the one before."""
    tasks = made(shape)
    last: dict[str, int] = {}
    for number, task in enumerate(tasks):
        if isinstance(task.work, Reconfigure | Collective):
            if task.region in last:
                assert last[task.region] in before(tasks, number)
            last[task.region] = number


@given(shapes)
def test_without_communication_an_iteration_is_its_computing_and_the_bubble(shape: Shape) -> None:
    tasks = made(shape)
    steps = [
        Step(task.after, task.work.slowest_s if isinstance(task.work, Compute) else 0.0) for task in tasks
    ]
    lasts = max(each.end_s for each in simulate(steps, {}))
    busy = 3.0 * shape.micro_batches
    assert lasts == pytest.approx(3.0 * (shape.micro_batches + shape.pp - 1))
    assert 1 - busy / lasts == pytest.approx(bubble(shape.pp, shape.micro_batches))


def test_light_for_another_micro_batch_moves_while_its_gradients_are_awaited() -> None:
    tasks = made(Shape(pp=2, micro_batches=2))
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
        n for n, t in enumerate(tasks) if isinstance(t.work, Reconfigure) and t.work.direction == "backward"
    )
    assert not any(isinstance(tasks[n].work, Transfer) for n in before(tasks, light)), (
        "no gradients are awaited"
    )


def test_light_that_hides_behind_computing_is_waited_for_by_what_is_sent_and_by_the_next_light_alone() -> (
    None
):
    owed = DemandMatrix(("s0", "s1"), [[0.0, 1.0], [0.0, 0.0]])
    hidden = [
        Compute("attention", "forward", n, (1.0, 1.0), Reconfigure("forward", n, owed)) for n in range(2)
    ]
    work: list[Operation] = [*hidden, Collective("dispatch", "forward", 1, owed)]
    tasks = iteration(job(Shape()), lambda _r, _m, way: {"forward": work}.get(way, ()), SIZES)
    assert [type(task.work) for task in tasks] == [Compute, Reconfigure, Compute, Reconfigure, Collective]
    assert [task.after for task in tasks] == [(), (), (0,), (0, 1), (2, 3)]


def test_light_of_an_all_to_all_that_diverts_has_moved_before_the_next_one_starts() -> None:
    owed = DemandMatrix(("s0", "s1"), [[0.0, 1.0], [0.0, 0.0]])
    work: list[Operation] = [
        Collective("dispatch", "forward", 0, owed, Reconfigure("forward", 0, owed)),
        Compute("expert", "forward", 0, (1.0, 1.0)),
        Collective("combine", "forward", 0, owed.combine()),
    ]
    tasks = iteration(job(Shape()), lambda _r, _m, way: {"forward": work}.get(way, ()), SIZES)
    assert [task.after for task in tasks] == [(), (0,), (0,), (1, 2)]
    assert hides_in(tasks[1], tasks[0]), "unless it has moved meanwhile"
    assert not hides_in(tasks[1], tasks[3])


def test_jobs_take_their_regions_in_turn() -> None:
    made = jobs(Shape(pp=2, dp=2), fabric(regions=(2,) * 8).regions)
    assert [[region.name for region in each.regions] for each in made] == [
        ["r0", "r1", "r2", "r3"],
        ["r4", "r5", "r6", "r7"],
    ]
    assert made[1].at(1, 0).name == "r6"
    with pytest.raises(ValueError, match="3 regions don't make whole jobs of 2"):
        jobs(Shape(pp=2), fabric(regions=(2,) * 3).regions)


def test_iterations_of_a_course_follow_each_other_and_courses_do_not() -> None:
    first, second = side_by_side([[[Step(seconds=1.0)], [Step(seconds=2.0)]], [[Step(seconds=5.0)]]], {})
    assert [each.end_s for iteration in first for each in iteration] == [1.0, 3.0]
    assert [each.end_s for iteration in second for each in iteration] == [5.0]


MIXTRAL, TRAINING = MODELS["mixtral-8x7b"], Training(8, 4, 4096, 8, 312e12, 0.4)


def test_a_server_hands_on_its_ranks_activations() -> None:
    assert activation_bytes(MIXTRAL, TRAINING, 4) == 2 * 4096 * 8 * 4096 * 2


def test_a_server_sends_its_experts_gradients_once_around_two_replicas_and_attention_around_all_servers() -> (
    None
):
    expert, attention = 2 * 3 * 4096 * 14336, 2 * 4096 * (4096 + 1024)
    assert gradient_bytes(MIXTRAL, 4, 2) == pytest.approx(2 * (expert * 1 + attention * 2 * 7 / 8))


def test_without_replicas_only_attention_is_shared() -> None:
    assert gradient_bytes(MIXTRAL, 4, 1) == pytest.approx(2 * 2 * 4096 * (4096 + 1024) * 2 * 3 / 4)
