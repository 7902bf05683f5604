"""Engines of sweeps: one suite for that in memory and for Ray, and what Ray alone can show."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from moefabric.api.sweeps.engine import Engine, RunEnded, RunStarted
from moefabric.api.sweeps.ray_engine import CarryOut, RayEngine
from moefabric.core.errors import UnsupportedError
from moefabric.core.resource_needs import ResourceNeeds
from moefabric.testbed.cluster.ray_client import local_cluster
from tests.support import sweep_runs
from tests.support.memory_engine import MemoryEngine
from tests.support.sweep_runs import GB, task

ARCHIVES = {"d1": b"first", "d2": b"second"}
Start = Callable[[CarryOut], Engine]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A cluster of two cores on this machine."""
    pytest.importorskip("ray", reason="nightly: needs Ray: packaging/setup all")
    with local_cluster(2) as started:
        yield started


@pytest.fixture(params=["memory", pytest.param("ray", marks=pytest.mark.nightly)])
def start(request: pytest.FixtureRequest) -> Start:
    """Starts an engine whose runs a function carries out."""
    if request.param == "memory":
        return in_memory
    cluster = request.getfixturevalue("ray")
    return lambda carry_out: RayEngine(cluster, ARCHIVES, carry_out)


def in_memory(carry_out: CarryOut) -> MemoryEngine:
    return MemoryEngine(
        lambda run, _: carry_out(run, {digest: ARCHIVES[digest] for digest in run.inputs})
    )


def ends(engine: Engine, count: int) -> dict[str, RunEnded]:
    """Return how so many attempts end, each of which starts first unless its process was killed."""
    ended, started = dict[str, RunEnded](), set[str]()
    while len(ended) < count:
        match engine.next_event():
            case RunStarted() as event:
                assert event.node
                started.add(event.id)
            case RunEnded() as event:
                assert event.id in started
                ended[event.id] = event
    return ended


def test_each_task_starts_and_ends_with_its_result(start: Start) -> None:
    engine = start(sweep_runs.contents)
    engine.submit(replace(task("a"), inputs=("d2", "d1")))
    engine.submit(replace(task("b"), inputs=("d1",)), avoid={"elsewhere"})
    results = {id_: ended.result for id_, ended in ends(engine, 2).items()}
    assert results == {"a": "second first", "b": "first"}


def test_needs_beyond_each_machine_are_refused(start: Start) -> None:
    engine = start(sweep_runs.contents)
    engine.check(ResourceNeeds(2, GB // 10))
    with pytest.raises(UnsupportedError, match="needs 3 cores"):
        engine.check(ResourceNeeds(3, GB // 10))


def intervals(results: dict[str, RunEnded]) -> list[tuple[int, int]]:
    times = [ended.result.split() for ended in results.values()]
    return sorted((int(begin), int(end)) for begin, end in times)


def test_tasks_that_need_both_cores_never_overlap(start: Start) -> None:
    engine = start(sweep_runs.interval)
    for name in "abcd":
        engine.submit(task(name, cores=2))
    times = intervals(ends(engine, 4))
    assert all(end <= begin for (_, end), (begin, _) in pairwise(times))


@pytest.mark.nightly
def test_tasks_that_need_one_core_run_at_once(ray: Any, tmp_path: Path) -> None:
    engine = RayEngine(ray, {}, sweep_runs.meeting)
    for name in "ab":
        engine.submit(task(name, folder=tmp_path, runs=2))
    assert {ended.result for ended in ends(engine, 2).values()} == {"met"}


@pytest.mark.nightly
def test_task_whose_process_is_killed_ends_with_the_reason(ray: Any, tmp_path: Path) -> None:
    engine = RayEngine(ray, {}, sweep_runs.killed_once)
    engine.submit(task("a", folder=tmp_path))
    (killed,) = ends(engine, 1).values()
    assert (killed.result, "WorkerCrashedError" in killed.error) == ("", True)
    engine.submit(task("a", folder=tmp_path))
    assert ends(engine, 1)["a"].result == "2"


@pytest.mark.nightly
def test_defect_ends_a_task_with_its_message(ray: Any) -> None:
    engine = RayEngine(ray, {}, sweep_runs.failing)
    engine.submit(task("a"))
    assert ends(engine, 1)["a"].error.endswith("RuntimeError: a defect")


@pytest.mark.nightly
def test_closed_engine_has_no_task_under_way(ray: Any, tmp_path: Path) -> None:
    engine = RayEngine(ray, {}, sweep_runs.meeting)
    for name in "abc":  # the third one waits for a core, so that nobody is met
        engine.submit(task(name, folder=tmp_path, runs=3))
    while not isinstance(engine.next_event(), RunStarted):
        pass
    engine.close()
    after = RayEngine(ray, {}, sweep_runs.interval)
    after.submit(task("d", cores=2))
    assert ends(after, 1)["d"].result
