"""Two independent regions on real packets: one's controller doesn't affect the other."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median

import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region
from moefabric.core.units import Scale
from moefabric.execution.executor import ControlSettings, Executor, Instruments, RunSettings
from moefabric.planner.mixnet import MIXNET
from moefabric.results.records.records import CollectiveRun, IterationRun
from moefabric.runtime.run_directory import RunDirectory
from moefabric.testbed.testbed import running_testbed
from moefabric.workload.iterations.iteration import Collective, Compute, Operation, Reconfigure
from moefabric.workload.iterations.job import Job, JobShape, jobs
from moefabric.workload.iterations.pipeline import PipelineTraffic, iteration_tasks
from moefabric.workload.iterations.substitution import Substitutions
from moefabric.workload.iterations.tasks import Task
from tests.support.attempts import measurements
from tests.support.observers import observer

pytestmark = pytest.mark.ovs

SECOND = 100e9 / 8 * 1448 / 1514
"""Bytes that a NIC carries in one."""
ITERATIONS = 30
EXPECTED_S = 0.083
"""An all-to-all over EPS and new circuits; either alone needs 0.1 s and more."""
WARM, COLD = 0.15, 0.3
"""Bounds of errors, once it is known what controllers take and before."""
KILLED, STOPPED, CONTINUED = 8, 15, 21
"""In which iteration of the other region that happens to a controller."""


def wired() -> Fabric:
    regions = tuple(
        Region(f"r{n}", n, tuple(f"s{4 * n + i}" for i in range(4)), Ocs(f"ocs{n}", 4, 25_000_000))
        for n in range(2)
    )
    return Fabric(f"apart-{os.getpid()}", regions, 1, 1, 1, 100e9, Eps(8), Scale(1000))


def passes(
    region: Region, _micro_batch: int, direction: str, diverts: bool = False
) -> Sequence[Operation]:
    """Return two layers whose pairs differ, so that circuits change twice an iteration."""
    if direction == "backward":
        return ()
    done: list[Operation] = []
    for layer, pairs in enumerate([((0, 1), (2, 3)), ((0, 2), (1, 3))]):
        owed = [[0.0] * 4 for _ in range(4)]
        for a, b in pairs:
            owed[a][b] = owed[b][a] = 0.1 * SECOND
        demand = DemandMatrix(region.servers, owed)
        light = Reconfigure("forward", layer, demand)
        done += [
            Compute("attention", "forward", layer, (0.03,) * 4),
            *(() if diverts else (light,)),
            Collective("dispatch", "forward", layer, demand, light if diverts else None),
        ]
    return done


def programme(
    job: Job, _number: int, _substitutions: Substitutions, *, diverts: bool = False
) -> tuple[Task, ...]:
    return iteration_tasks(job, partial(passes, diverts=diverts), PipelineTraffic(0, 0))


def signalled(fabric: Fabric, number: signal.Signals) -> int:
    """Send the controller of r0, which this test's fabric started, a signal; its process id."""
    pid = int(
        RunDirectory.of_fabric(fabric.name).controller_pid_file(fabric.regions[0]).read_text()
    )
    os.kill(pid, number)
    return pid


class ControllerFaults:
    """Signals to the controller of r0, by the all-to-alls that r1 has completed."""

    def __init__(self, fabric: Fabric) -> None:
        self.done, self.stopped = 0, 0
        self.at: dict[int, Callable[[], object]] = {
            2 * KILLED: lambda: signalled(fabric, signal.SIGKILL),
            2 * STOPPED: lambda: self._stop(fabric),
            2 * CONTINUED: self.release,
        }

    def _stop(self, fabric: Fabric) -> None:
        self.stopped = signalled(fabric, signal.SIGSTOP)

    def release(self) -> None:
        if self.stopped:
            os.kill(self.stopped, signal.SIGCONT)
            self.stopped = 0

    def progress(self, what: str) -> None:
        if what.startswith("r1"):
            self.done += 1
            self.at.pop(self.done, lambda: None)()


@pytest.fixture
def runs() -> Iterator[dict[int, list[IterationRun]]]:
    """Both regions' iterations."""
    fabric = wired()
    with running_testbed(fabric) as (_, fleet, controllers):
        faults = ControllerFaults(fabric)
        executor = Executor(
            fabric,
            MIXNET,
            fleet,
            controllers.under_policy("mixnet"),
            CircuitSet(),
            settings=RunSettings(control=ControlSettings(timeout_s=0.3)),
            observer=observer(collective_ended=faults.progress),
        )
        try:
            both = jobs(JobShape(), fabric.regions)
            made = executor.run({job: partial(programme, job) for job in both}, ITERATIONS)
        finally:
            faults.release()
            executor.close()
        yield {number: [run for run in made if run.job == number] for number in range(2)}


def seconds(runs: Sequence[IterationRun]) -> float:
    return median((run.end_ns - run.start_ns) / 1e9 for run in runs)


def test_lost_controller_puts_its_region_on_the_eps_and_does_not_affect_another(
    runs: dict[int, list[IterationRun]],
) -> None:
    hit, other = runs[0], runs[1]
    alone = seconds([*other[2:KILLED], *other[CONTINUED + 2 :]])
    killed, stopped = seconds(other[KILLED:STOPPED]), seconds(other[STOPPED:CONTINUED])
    print(
        f"other: {alone:.4f} s, killed {killed / alone - 1:+.1%}, "
        f"stopped {stopped / alone - 1:+.1%}"
    )
    assert killed < 1.15 * alone
    assert stopped < 1.15 * alone
    assert not [r.change.error for run in other for r in run.reconfigurations if r.change.error]
    assert all(paths(run) == {"o0"} for run in other)

    while_stopped = [run for run in hit if any(r.change.error for r in run.reconfigurations)]
    print(
        f"without circuits: {[run.number for run in while_stopped]}, "
        f"{sent_s(while_stopped):.4f} s an all-to-all"
    )
    assert len(while_stopped) >= 2
    assert any(paths(run) == {"e0"} for run in while_stopped)
    assert paths(hit[-1]) == {"o0"}, "light is back"


def sent_s(runs: Sequence[IterationRun]) -> float:
    return median((c.end_ns - c.start_ns) / 1e9 for run in runs for c in run.collectives)


def paths(run: IterationRun) -> set[str]:
    return {record.path for c in run.collectives for record in c.records}


@dataclass(frozen=True)
class OffloadedRuns:
    """Iterations while controllers answer, and each job's while that of r0 is stopped."""

    answered: list[IterationRun]
    stopped: dict[int, IterationRun]

    @property
    def late_s(self) -> float:
        """When the rest of the first all-to-all of r0 left by the EPS."""
        late = self.stopped[0].collectives[0]
        return (max(record.first_sent_ns for record in late.records) - late.start_ns) / 1e9

    def is_in_time(self) -> bool:
        """Return whether all circuits came in time; a busy controller lights them later."""
        return (
            all(c.reconfigured_meanwhile for c in all_to_alls([*self.answered, self.stopped[1]]))
            and shortest_s(self.answered) < EXPECTED_S * (1 + WARM)
            and shortest_s([self.stopped[1]]) < EXPECTED_S * (1 + COLD)
            and max(least_error(self.answered) - WARM, least_error([self.stopped[1]]) - COLD) < 0
            and self.late_s < 0.6
        )


def offloaded_runs() -> OffloadedRuns:
    fabric = wired()
    both = {job: partial(programme, job, diverts=True) for job in jobs(JobShape(), fabric.regions)}
    with running_testbed(fabric) as (_, fleet, controllers), ThreadPoolExecutor(2) as background:
        answering = Executor(
            fabric, MIXNET, fleet, controllers.under_policy("mixnet"), CircuitSet()
        )
        try:
            warm = [run for run in answering.run(both, 5) if run.number]
        finally:
            answering.close()
        lit, under = answering.circuits, controllers.under_policy("mixnet")
        silent = Executor(
            fabric,
            MIXNET,
            fleet,
            under,
            lit,
            settings=RunSettings(control=ControlSettings(timeout_s=0.3)),
            instruments=Instruments(background=background),
        )
        signalled(fabric, signal.SIGSTOP)
        try:
            runs = {run.job: run for run in silent.run(both, 1)}
        finally:
            signalled(fabric, signal.SIGCONT)
            silent.close()
    return OffloadedRuns(warm, runs)


def test_offloaded_all_to_all_uses_new_circuits_or_else_the_eps() -> None:
    """Each ends before EPS or circuits alone could carry it, until a controller stops."""
    runs = measurements(offloaded_runs, OffloadedRuns.is_in_time, 4)[-1]
    lit_in_time(runs.answered, WARM)
    lit_in_time([runs.stopped[1]], COLD)
    late, after = runs.stopped[0].collectives
    print(f"rest without light after {runs.late_s:.3f} s")
    for sent in (late, after):
        assert {record.path for record in sent.records} == {"e0"}
        assert all(record.ok for record in sent.records)
        assert sum(flow.bytes for flow in sent.planned) == pytest.approx(0.4 * SECOND)
    assert 0.35 < runs.late_s < 0.6
    assert after.end_ns - after.start_ns < 0.15e9
    assert all(each.change.error for each in runs.stopped[0].reconfigurations)


def all_to_alls(runs: Sequence[IterationRun]) -> list[CollectiveRun]:
    return [c for run in runs for c in run.collectives]


def shortest_s(runs: Sequence[IterationRun]) -> float:
    return min((c.end_ns - c.start_ns) / 1e9 for c in all_to_alls(runs))


def least_error(runs: Sequence[IterationRun]) -> float:
    """Return the error against the simulation of the all-to-all that lost the least time."""
    return min((c.end_ns - c.start_ns) / 1e9 / c.predicted_s - 1 for c in all_to_alls(runs))


def lit_in_time(runs: Sequence[IterationRun], within: float) -> None:
    """All of it at once by the EPS, and over light once that was there."""
    sent = all_to_alls(runs)
    print(f"an all-to-all: {shortest_s(runs):.4f} s, {least_error(runs):+.1%} of the simulation")
    assert len(sent) == 2 * len(runs)
    assert all(c.reconfigured_meanwhile for c in sent)
    assert {record.path for c in sent for record in c.records} == {"e0", "o0"}
    assert all(record.ok for c in sent for record in c.records)
    assert shortest_s(runs) < EXPECTED_S * (1 + within)
    assert abs(least_error(runs)) < within
    lit = {
        (r.iteration, r.region, r.operation.layer): r for run in runs for r in run.reconfigurations
    }
    assert len(lit) == len(sent)
    for c in sent:
        light = lit[c.iteration, c.region, c.operation.layer or 0]
        assert c.start_ns < light.end_ns
        # Records are without the harness's time, by which the first byte left late.
        first_ns = min(r.first_sent_ns for r in c.records if r.path == "o0") + c.harness_ns
        assert first_ns >= light.end_ns
