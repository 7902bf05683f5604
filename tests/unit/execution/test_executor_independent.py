"""Independent regions in memory: tasks start as their own dependencies allow."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import AgentError, ControlError
from moefabric.core.topology import Region
from moefabric.core.transition import ReconfigurationPhases
from moefabric.execution.executor import ControlSettings, Executor, Instruments, RunSettings
from moefabric.execution.reconfiguration import UNDER_WAY
from moefabric.planner.horizon import Horizon
from moefabric.planner.mixnet import MIXNET
from moefabric.planner.sending.flow_pacing import merge_circuits
from moefabric.results.records.records import CircuitChange, IterationRun
from moefabric.workload.iterations.iteration import Collective, Compute, Operation, Reconfigure
from moefabric.workload.iterations.job import JobShape, jobs
from moefabric.workload.iterations.pipeline import Passes, PipelineTraffic, iteration_tasks
from tests.support.fabrics import fabric
from tests.support.memory_testbed import (
    MemoryAgents,
    MemoryController,
    VirtualClock,
    VirtualTimeExecutor,
)

MS = 1_000_000
NEAR = 2000
TENTH = 0.1 * 100e9 / 8 * 1448 / 1514
"""Bytes that a NIC of 100 Gb/s carries in 100 ms."""


def demand(region: Region, size: float = TENTH) -> DemandMatrix:
    """A tenth of a second of bytes from each region's first server to its second."""
    return DemandMatrix(region.servers, [[0.0, size], [0.0, 0.0]])


class Bench:
    """Regions of two servers, each of one optical and one electrical NIC, in memory."""

    def __init__(self, regions: int, shape: JobShape | None = None, *, light: bool = True) -> None:
        self.fabric, self.clock = fabric(1, 1, regions=(2,) * regions), VirtualClock()
        own = {region.name: VirtualClock() for region in self.fabric.regions}
        self.controllers = {
            region.name: SlowController(
                MemoryController(self.fabric, MIXNET, own[region.name], region), own[region.name]
            )
            for region in self.fabric.regions
        }
        self.agents = MemoryAgents(
            self.fabric,
            lambda: merge_circuits(each.controller.lit for each in self.controllers.values()),
            self.clock,
        )
        self.shape = shape or JobShape()
        self.executor = Executor(
            self.fabric,
            MIXNET,
            self.agents,
            self.controllers if light else {},
            CircuitSet(),
            settings=RunSettings(
                arming_ns=6 * MS, control=ControlSettings(control_s=0.0, timeout_s=0.5)
            ),
            instruments=Instruments(
                clock=self.clock,
                background=OwnClocks(self.clock, VirtualClock()),
                cpu_steal=lambda: (0, 0),
            ),
        )

    def run(
        self,
        iterations: int = 1,
        volumes: PipelineTraffic | None = None,
        work: Passes | None = None,
    ) -> list[IterationRun]:
        job_list = jobs(self.shape, self.fabric.regions)
        sizes = volumes or PipelineTraffic(TENTH / 10, TENTH / 5)
        programmes = {
            job: lambda _number, _substitutions, job=job: iteration_tasks(
                job, work or passes, sizes
            )
            for job in job_list
        }
        return self.executor.run(programmes, iterations)


class SlowController:
    """A region's controller that may be late, or gone once."""

    def __init__(self, controller: MemoryController, clock: VirtualClock) -> None:
        self.controller, self.clock = controller, clock
        self.answers: list[float | ControlError] = []
        """How many seconds late each reply is, or the error instead.

        Without an entry it is in time.
        """
        self.horizons: list[Horizon] = []
        self.requests, self.gone = 0, False

    def reconfigure(self, demand: DemandMatrix, horizon: Horizon) -> CircuitChange:
        self.requests += 1
        self.horizons.append(horizon)
        answer = self.answers.pop(0) if self.answers else 0.0
        if isinstance(answer, ControlError):
            self.gone = True
            raise answer
        change = self.controller.reconfigure(demand, horizon)
        self.clock.sleep_until(self.clock.now_ns() + round(answer * 1e9))
        return change

    def ready(self, _deadline_s: float) -> bool:
        was_gone, self.gone = self.gone, False
        return not was_gone

    def relied_on(self) -> CircuitSet:
        return self.controller.lit


class OwnClocks(VirtualTimeExecutor):
    """Every region's light on a clock of its own."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        reconfigure: Any = fn
        self.own = reconfigure.__self__.controller.clock
        return super().submit(fn, *args, **kwargs)


def passes(region: Region, micro_batch: int, direction: str) -> Sequence[Operation]:
    """One layer: 10 ms of attention, light, 100 ms each way, 20 ms of experts.

    Twice the computing on the way back.
    """
    owed = demand(region)
    if direction == "forward":
        return (
            Compute("attention", "forward", 0, (0.010, 0.010)),
            Reconfigure("forward", 0, owed),
            Collective("dispatch", "forward", 0, owed),
            Compute("expert", "forward", 0, (0.020, 0.005)),
            Collective("combine", "forward", 0, owed.combine()),
        )
    return (
        Collective("combine", "backward", 0, owed),
        Compute("expert", "backward", 0, (0.040, 0.010)),
        Collective("dispatch", "backward", 0, owed.combine()),
        Compute("attention", "backward", 0, (0.020, 0.020)),
    )


def test_region_runs_its_operations_in_order() -> None:
    bench = Bench(1)
    [run] = bench.run()
    [light] = run.reconfigurations
    assert (light.start_ns, light.end_ns) == (10 * MS, 35 * MS)
    starts = [c.start_ns for c in run.collectives]
    assert starts == pytest.approx([35 * MS, 155 * MS, 255 * MS, 395 * MS], abs=NEAR)
    assert run.end_ns == pytest.approx(515 * MS, abs=NEAR)
    assert run.predicted_s == pytest.approx(0.515)
    assert [c.harness_ns for c in run.collectives] == pytest.approx(
        [6 * MS, 0, 6 * MS, 0], abs=NEAR
    ), "the time to order agents, which computation hides, is not the cluster's"
    assert run.compute_ns == pytest.approx(90 * MS, abs=NEAR)
    assert [c.predicted_s for c in run.collectives] == pytest.approx([0.1] * 4)
    assert [c.dark_ns for c in run.collectives] == [25 * MS, 0, 0, 0]
    assert [c.waited_ns for c in run.collectives] == pytest.approx([25 * MS, 0, 0, 0], abs=NEAR)
    assert [c.predicted_wait_s for c in run.collectives] == pytest.approx([0.025, 0, 0, 0])
    assert bench.clock.now_ns() == run.end_ns - run.skipped_ns


def test_requests_say_how_many_all_to_alls_are_left() -> None:
    bench = Bench(2, JobShape(micro_batches=2))
    bench.run(iterations=3)
    lefts = [[known.left for known in each.horizons] for each in bench.controllers.values()]
    assert lefts == [[24, 20, 16, 12, 8, 4]] * 2
    assert all(o.alike == o.left for each in bench.controllers.values() for o in each.horizons)


def test_slow_settling_is_not_predicted() -> None:
    bench = Bench(1)
    slow = fabric(1, 1, regions=(2,), settle_ns=60 * MS)
    bench.controllers["r0"].controller = MemoryController(
        slow, MIXNET, bench.controllers["r0"].clock
    )
    [run] = bench.run()
    assert run.reconfigurations[0].change.settled_s == 0.060
    assert run.predicted_s == pytest.approx(0.515), "as with light that is in time"
    assert run.collectives[0].predicted_wait_s == pytest.approx(0.025)


def test_pipeline_sends_activations_forward_and_gradients_back() -> None:
    bench = Bench(2, JobShape(pp=2, micro_batches=2), light=False)
    [run] = bench.run()
    moved = [(t.operation.direction, t.micro_batch, t.region) for t in run.transfers]
    assert moved == [
        ("forward", 0, "r0"),
        ("forward", 1, "r0"),
        ("backward", 0, "r1"),
        ("backward", 1, "r1"),
    ]
    begun = {
        (s.server, s.direction, s.micro_batch): s.start_ns
        for s in reversed(run.spans)
        if s.kind == "attention"
    }
    for transfer in run.transfers[:2]:
        assert begun["s2", "forward", transfer.micro_batch] >= transfer.end_ns
    assert {(r.src, r.dst, r.path) for r in run.transfers[0].records} == {
        ("s0", "s2", "e0"),
        ("s1", "s3", "e0"),
    }
    assert {(r.src, r.dst, r.path) for r in run.transfers[2].records} == {
        ("s2", "s0", "e0"),
        ("s3", "s1", "e0"),
    }


def test_replicas_reduce_gradients_once_both_have_them() -> None:
    [run] = Bench(2, JobShape(dp=2, micro_batches=2), light=False).run()
    [reduced] = run.transfers
    assert (reduced.operation.kind, reduced.operation.layer, reduced.micro_batch) == (
        "all-reduce",
        0,
        1,
    )
    assert {(r.src, r.dst) for r in reduced.records} == {
        ("s0", "s2"),
        ("s2", "s0"),
        ("s1", "s3"),
        ("s3", "s1"),
    }
    last = max(s.end_ns for s in run.spans if s.kind == "attention" and s.direction == "backward")
    assert reduced.start_ns == last
    assert run.end_ns == reduced.end_ns


def test_jobs_side_by_side_are_independent() -> None:
    alone = Bench(1).run(2)
    bench = Bench(2)
    bench.controllers["r0"].answers = [0.2, ControlError("connection refused")]
    runs = bench.run(2)
    assert [(run.job, run.number) for run in runs] == [(0, 0), (1, 0), (1, 1), (0, 1)]
    other = [run for run in runs if run.job == 1]
    assert [(run.start_ns, run.end_ns) for run in other] == [
        (run.start_ns, run.end_ns) for run in alone
    ]


def test_region_of_a_lost_controller_is_on_the_eps_until_it_is_back() -> None:
    bench = Bench(1)
    bench.controllers["r0"].answers = [0.0, ControlError("connection refused"), 0.0]
    before, without, after = bench.run(3)
    assert [paths(run) for run in (before, without, after)] == [{"o0"}, {"e0"}, {"o0"}]
    assert without.reconfigurations[0].change.error == "connection refused"
    assert without.reconfigurations[0].end_ns == without.reconfigurations[0].start_ns


def test_silent_controller_times_out_and_its_late_reply_counts() -> None:
    bench = Bench(1)
    bench.controllers["r0"].answers = [1.2]
    first, second, third = bench.run(3)
    assert paths(first) == {"e0"}
    assert len(first.reconfigurations) == 1
    assert first.reconfigurations[0].change.error == "its controller didn't answer within 0.6 s"
    assert first.reconfigurations[0].end_ns - first.reconfigurations[0].start_ns == 550 * MS
    assert second.reconfigurations[0].change.error == UNDER_WAY
    assert [c.records[0].path for c in second.collectives] == ["e0", "e0", "o0", "o0"], (
        "answered in between"
    )
    assert paths(third) == {"o0"}
    assert bench.controllers["r0"].requests == 2


def test_lost_transfer_ends_the_run_in_one_line() -> None:
    bench = Bench(1)
    bench.agents.broken = {("s0", "s1"): "7 of 1000 bytes arrived"}
    with pytest.raises(AgentError) as told:
        bench.run()
    assert (
        str(told.value)
        == "r0: forward dispatch of layer 0, micro-batch 0: s0 to s1 by o0: 7 of 1000 bytes arrived"
    )


def test_long_wait_is_skipped_only_while_nothing_is_under_way() -> None:
    bench = Bench(1, light=False)
    long = Compute("attention", "forward", 0, (10.0, 10.0))
    [job] = jobs(JobShape(), bench.fabric.regions)
    owed = demand(bench.fabric.regions[0])
    work: dict[str, list[Operation]] = {
        "forward": [long, Collective("dispatch", "forward", 0, owed), long],
        "backward": [],
    }
    tasks = iteration_tasks(job, lambda _r, _m, direction: work[direction], PipelineTraffic(0, 0))
    [run] = bench.executor.run({job: lambda _number, _substitutions: tasks}, 1)
    assert run.end_ns == pytest.approx(20_100 * MS, abs=NEAR)
    assert run.skipped_ns > 19_000 * MS
    assert bench.clock.now_ns() < 1_100 * MS


def paths(run: IterationRun) -> set[str]:
    return {record.path for c in run.collectives for record in c.records}


def test_phases_of_a_silent_controller_are_its_timeout() -> None:
    bench = Bench(1)
    bench.controllers["r0"].answers = [9.0]
    [run] = bench.run()
    assert run.reconfigurations[0].change.phases == ReconfigurationPhases(total_s=0.55)


def diverting(region: Region, _micro_batch: int, direction: str) -> Sequence[Operation]:
    """As `passes`, with a dispatch that doesn't wait for its light."""
    return diverting_of(TENTH, region, direction)


def diverting_of(size: float, region: Region, direction: str) -> Sequence[Operation]:
    if direction == "backward":
        return ()
    owed = demand(region, size)
    return (
        Compute("attention", "forward", 0, (0.010, 0.010)),
        Collective("dispatch", "forward", 0, owed, Reconfigure("forward", 0, owed)),
        Compute("expert", "forward", 0, (0.020, 0.005)),
        Collective("combine", "forward", 0, owed.combine()),
    )


def test_offloaded_all_to_all_starts_on_the_eps_and_adds_its_circuits() -> None:
    """Circuits carry bytes after 31 ms: the EPS takes 65.5 ms of 100, circuits the rest."""
    bench = Bench(1)
    [run] = bench.run(work=diverting)
    dispatch, combine = run.collectives
    assert {r.path: (r.first_sent_ns, r.last_received_ns) for r in dispatch.records} == {
        "e0": pytest.approx((10 * MS, 75.5 * MS), abs=NEAR),
        "o0": pytest.approx((41 * MS, 75.5 * MS), abs=NEAR),
    }
    assert sum(flow.bytes for flow in dispatch.planned) == pytest.approx(TENTH)
    assert (dispatch.reconfigured_meanwhile, dispatch.waited_ns, dispatch.dark_ns) == (
        True,
        0,
        25 * MS,
    )
    assert dispatch.predicted_s == pytest.approx(0.0655)
    [light] = run.reconfigurations
    assert (light.start_ns, light.end_ns) == (10 * MS, 35 * MS)
    assert combine.start_ns == pytest.approx(95.5 * MS, abs=NEAR)
    assert {record.path for record in combine.records} == {"o0"}
    assert run.predicted_s == pytest.approx(0.1955)
    assert run.end_ns == pytest.approx(195.5 * MS, abs=NEAR)


def test_reconfiguration_follows_an_all_to_all_that_ends_before_it() -> None:
    bench = Bench(1)
    tenth: Passes = lambda region, _, direction: diverting_of(TENTH / 10, region, direction)  # noqa: E731
    [run] = bench.run(work=tenth)
    dispatch, combine = run.collectives
    assert {record.path for record in dispatch.records} == {"e0"}
    assert not dispatch.reconfigured_meanwhile
    [light] = run.reconfigurations
    assert light.start_ns == pytest.approx(20 * MS, abs=NEAR)
    assert combine.start_ns == pytest.approx((20 + 25) * MS, abs=NEAR)
    assert {record.path for record in combine.records} == {"o0"}


@pytest.mark.parametrize(
    ("answer", "known_ms", "whys"),
    [
        pytest.param(
            9.0, 560, ["its controller didn't answer within 0.6 s", UNDER_WAY], id="silent"
        ),
        pytest.param(ControlError("connection refused"), 10, ["connection refused", ""], id="gone"),
    ],
)
def test_late_flows_use_the_eps_if_circuits_do_not_come(
    answer: float | ControlError, known_ms: int, whys: list[str]
) -> None:
    """What the EPS had not been given at first takes it 34.5 ms, from when it is known.

    Where the controller is there, it is asked again.
    """
    bench = Bench(1)
    bench.controllers["r0"].answers = [answer]
    [run] = bench.run(work=diverting)
    dispatch = run.collectives[0]
    assert [record.path for record in dispatch.records] == ["e0", "e0"]
    assert sum(flow.bytes for flow in dispatch.planned) == pytest.approx(TENTH)
    late = max(dispatch.records, key=lambda record: record.first_sent_ns)
    assert late.first_sent_ns == pytest.approx((known_ms + 6) * MS, abs=NEAR)
    assert [each.change.error for each in run.reconfigurations] == whys


def test_offloading_region_does_not_affect_another() -> None:
    [alone] = Bench(1).run(work=diverting)
    bench = Bench(2)
    bench.controllers["r0"].answers = [9.0]
    other = next(run for run in bench.run(work=diverting) if run.job == 1)
    assert (other.start_ns, other.end_ns) == (alone.start_ns, alone.end_ns)
