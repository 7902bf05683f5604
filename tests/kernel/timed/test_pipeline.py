"""A pipeline of two stages and two replicas on real packets, against the simulation."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count, pairwise
from statistics import median

import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps
from moefabric.core.topology import Fabric, Region
from moefabric.core.units import Scale
from moefabric.execution.executor import Executor
from moefabric.planner.policy import EpsOnly
from moefabric.results.records.records import CollectiveRun, IterationRun
from moefabric.testbed.testbed import running_testbed
from moefabric.workload.iterations.iteration import Collective, Compute, Operation
from moefabric.workload.iterations.job import Job, JobShape, jobs
from moefabric.workload.iterations.pipeline import PipelineTraffic, counterparts, iteration_tasks
from moefabric.workload.iterations.substitution import Substitutions
from moefabric.workload.iterations.tasks import Task
from tests.support.attempts import measurements

pytestmark = pytest.mark.ovs

SECOND = 100e9 / 8 * 1448 / 1514
"""Bytes that a NIC carries in one."""
SHAPE = JobShape(pp=2, dp=2, micro_batches=3)
VOLUMES = PipelineTraffic(0.1 * SECOND, 0.3 * SECOND)


def wired() -> Fabric:
    regions = tuple(
        Region(f"r{n}", n, (f"s{2 * n}", f"s{2 * n + 1}"), None) for n in range(SHAPE.regions)
    )
    return Fabric(f"pipeline-{os.getpid()}", regions, 1, 0, 1, 100e9, Eps(8), Scale(1000))


def passes(region: Region, _micro_batch: int, direction: str) -> Sequence[Operation]:
    demand = DemandMatrix(region.servers, [[0.0, 0.2 * SECOND], [0.2 * SECOND, 0.0]])
    if direction == "forward":
        return (
            Compute("attention", "forward", 0, (0.05, 0.05)),
            Collective("dispatch", "forward", 0, demand),
            Compute("expert", "forward", 0, (0.05, 0.05)),
        )
    return (
        Collective("combine", "backward", 0, demand),
        Compute("expert", "backward", 0, (0.10, 0.10)),
        Compute("attention", "backward", 0, (0.10, 0.10)),
    )


def programme(job: Job, _number: int, _substitutions: Substitutions) -> tuple[Task, ...]:
    return iteration_tasks(job, passes, VOLUMES)


@pytest.fixture(scope="module")
def run() -> Iterator[IterationRun]:
    """An iteration on warm connections that other work did not disturb, if there was one."""
    fabric = wired()
    [job] = jobs(SHAPE, fabric.regions)
    pairs = [
        pair
        for a, b in [("r0", "r1"), ("r2", "r3"), ("r0", "r2"), ("r1", "r3")]
        for here, there in [(job.regions[int(a[1])], job.regions[int(b[1])])]
        for pair in (*counterparts(here, there), *counterparts(there, here))
    ]
    with running_testbed(fabric, pairs_between_regions=pairs) as (_, fleet, _lights):
        executor = Executor(fabric, EpsOnly(), fleet, {}, CircuitSet())
        try:
            executor.run({job: partial(programme, job)}, 1)
            numbers = count(1)

            def iteration() -> IterationRun:
                return executor.run({job: partial(programme, job)}, 1, first=next(numbers))[0]

            yield measurements(iteration, is_undisturbed, 3)[-1]
        finally:
            executor.close()


def errors(sent: Sequence[CollectiveRun]) -> list[float]:
    return [(run.end_ns - run.start_ns) / 1e9 / run.predicted_s - 1 for run in sent]


def error_by_kind(run: IterationRun) -> dict[str, float]:
    """Return the median error of the transfers of each kind."""
    sent = (*run.collectives, *run.transfers)
    kinds = dict.fromkeys(one.operation.kind for one in sent)
    return {kind: median(errors([t for t in sent if t.operation.kind == kind])) for kind in kinds}


def is_undisturbed(run: IterationRun) -> bool:
    assert run.predicted_s is not None
    iteration_error = (run.end_ns - run.start_ns) / 1e9 / run.predicted_s - 1
    return max(iteration_error, *error_by_kind(run).values()) < 0.1


def test_iteration_lasts_as_long_as_the_simulation_of_its_tasks(run: IterationRun) -> None:
    measured_s = (run.end_ns - run.start_ns) / 1e9
    assert run.predicted_s is not None
    print(
        f"iteration {measured_s:.3f} s, predicted {run.predicted_s:.3f} s: "
        f"{measured_s / run.predicted_s - 1:+.1%}"
    )
    assert 0.95 < measured_s / run.predicted_s < 1.25


def test_transfers_last_as_long_as_predicted(run: IterationRun) -> None:
    count_by_kind = Counter(t.operation.kind for t in (*run.collectives, *run.transfers))
    assert count_by_kind == {"dispatch": 12, "combine": 12, "pipeline": 12, "all-reduce": 2}
    for kind, error in error_by_kind(run).items():
        print(f"{kind}: median {error:+.1%}")
        assert abs(error) < 0.15
    assert all(record.ok for sent in (*run.collectives, *run.transfers) for record in sent.records)


def test_stage_runs_its_passes_in_turn(run: IterationRun) -> None:
    """One forward and one backward, on the clock that all share."""
    for server, order in (("s0", "f0 f1 b0 f2 b1 b2"), ("s2", "f0 b0 f1 b1 f2 b2")):
        done = sorted(
            (span.start_ns, f"{span.direction[0]}{span.micro_batch}")
            for span in run.spans
            if span.server == server and span.kind == "expert"
        )
        assert " ".join(name for _, name in done) == order
        starts = [start for start, _ in done]
        assert all(earlier < later for earlier, later in pairwise(starts))
