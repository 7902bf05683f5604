"""Lags in the places of modelled tasks, against a walk through all tasks."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from moefabric.workload.iterations.tasks import START, Lag, TaskPart, task_lags


def part(*after: int, executed: bool = False, modelled_s: float | None = None) -> TaskPart:
    return TaskPart(after, executed, modelled_s)


def test_modelled_tasks_between_executed_ones_become_a_lag() -> None:
    tasks = [
        part(executed=True),
        part(0, modelled_s=2.0),
        part(1, modelled_s=3.0),
        part(2, executed=True),
    ]
    starts, end = task_lags(tasks)
    assert starts[3] == {0: Lag(5.0)}
    assert end == {0: Lag(5.0), 3: Lag()}


def test_task_waits_for_the_longest_path_from_each_executed_task() -> None:
    tasks = [
        part(executed=True),
        part(executed=True),
        part(0, 1, modelled_s=1.0),
        part(0, modelled_s=4.0),
        part(2, 3, executed=True),
    ]
    starts, _ = task_lags(tasks)
    assert starts[4] == {0: Lag(4.0), 1: Lag(1.0)}


def test_task_of_both_kinds_ends_with_its_later_part() -> None:
    starts, _ = task_lags([part(modelled_s=1.0), part(0, executed=True, modelled_s=2.0), part(1)])
    assert starts[1] == {START: Lag(1.0)}
    assert starts[2] == {START: Lag(3.0), 1: Lag()}


@st.composite
def graphs(draw: st.DrawFn) -> list[TaskPart]:
    tasks: list[TaskPart] = []
    for number in range(draw(st.integers(1, 12))):
        before = st.integers(0, number - 1)
        after = draw(st.sets(before, max_size=3)) if number else set[int]()
        kind = draw(st.sampled_from(["executed", "modelled", "both"]))
        seconds = None if kind == "executed" else float(draw(st.integers(0, 9)))
        tasks.append(TaskPart(tuple(sorted(after)), kind != "modelled", seconds))
    return tasks


def ends_of_all(
    tasks: Sequence[TaskPart], durations_s: Sequence[float]
) -> list[tuple[float, float]]:
    """Return the end of the executed part and of the whole of each task, walking through all."""
    ends: list[tuple[float, float]] = []
    for number, task in enumerate(tasks):
        start_s = max((ends[before][1] for before in task.after), default=0.0)
        executed_s = start_s + durations_s[number] if task.executed else 0.0
        ends.append((executed_s, max(executed_s, start_s + (task.modelled_s or 0.0))))
    return ends


@given(graphs(), st.lists(st.integers(0, 9).map(float), min_size=12, max_size=12))
def test_lags_give_the_starts_of_the_full_schedule(
    tasks: list[TaskPart], durations_s: list[float]
) -> None:
    """However long the executed tasks take."""
    expected = ends_of_all(tasks, durations_s)
    starts, end = task_lags(tasks)
    ends_s = {START: 0.0}
    for number, task in enumerate(tasks):
        if task.executed:
            start_s = max(ends_s[before] + lag.seconds for before, lag in starts[number].items())
            ends_s[number] = start_s + durations_s[number]
            assert ends_s[number] == expected[number][0]
    assert max(ends_s[n] + lag.seconds for n, lag in end.items()) == max(
        whole_s for _, whole_s in expected
    )
