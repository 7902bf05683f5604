"""Jobs that lose servers, GPUs and controllers, in memory: substitution and its cost."""

from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np
import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix, Placement
from moefabric.core.eps import Eps
from moefabric.core.errors import AgentError, ControlError
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.failures import (
    ControllerFailureMode,
    Failure,
    FailureEvent,
    FailurePhase,
    PlannedFailure,
    failure_records,
)
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region
from moefabric.core.units import Scale
from moefabric.execution.executor import ControlSettings, Executor, RunSettings
from moefabric.execution.failure_monitor import FailureInjector
from moefabric.execution.observer import Observers
from moefabric.execution.recovery import Recovery
from moefabric.planner.horizon import Horizon
from moefabric.planner.mixnet import MIXNET
from moefabric.planner.policy import EpsOnly
from moefabric.prediction.jobs import Jobs
from moefabric.results.parts import Json
from moefabric.results.records.records import CircuitChange, IterationRun, RunFailures
from moefabric.results.verdict.fabric_result import fabric_result
from moefabric.workload.gating.job_gating import JobGating
from moefabric.workload.iterations.iteration import DispatchLight
from moefabric.workload.iterations.job import JobShape
from moefabric.workload.iterations.substitution import Substitutions
from moefabric.workload.iterations.tasks import Task
from moefabric.workload.models.model import GroupedAttention, Model, Training
from moefabric.workload.workload import Workload
from tests.support.memory_testbed import (
    ImmediateExecutor,
    MemoryAgents,
    MemoryController,
    VirtualClock,
    instruments_in_memory,
)
from tests.support.observers import observer

MODEL = Model(
    "tiny", layers=1, hidden=4096, ffn=64, experts=4, top_k=1, attention=GroupedAttention(64, 1, 64)
)
MS = 1_000_000


def standing_by(backups: int = 1, dilation: float = 1.0) -> Fabric:
    """Four servers of two GPUs, one optical and one electrical NIC each, and backup servers."""
    ocs = Ocs("ocs0", 4, round(25 * MS * dilation))
    regions = [Region("r0", 0, ("s0", "s1", "s2", "s3"), ocs)]
    if backups:
        waiting = tuple(f"s{4 + i}" for i in range(backups))
        regions.append(Region("backup", 1, waiting, None, backup=True))
    return Fabric("lab", tuple(regions), 2, 1, 1, 100e9, Eps(4 + backups), Scale(1, dilation))


class Bench:
    """A job of four ranks of two GPUs, one a server, that all send each other the same."""

    def __init__(
        self,
        failures: Sequence[PlannedFailure] = (),
        backups: int = 1,
        restore_s: float = 0.0,
        *,
        lockstep: bool = True,
        controller: type[MemoryController] = MemoryController,
        dispatch_light: DispatchLight = "block",
        on_iteration_end: Callable[[], object] = lambda: None,
        dilation: float = 1.0,
        agents: type[MemoryAgents] = MemoryAgents,
    ) -> None:
        self.fabric, self.clock = standing_by(backups, dilation), VirtualClock()
        own = VirtualClock()
        self.controller = controller(self.fabric, MIXNET, self.clock)
        self.agents = agents(self.fabric, lambda: self.controller.lit, self.clock)
        self.events: list[FailureEvent] = []
        self.work = Workload(
            MODEL,
            Training(4, 2, 4096, 8, 1e15, 0.5),
            (Placement(("s0", "s1", "s2", "s3"), 4, 4),),
            JobGating(np.ones((1, 1, 4, 4), dtype=np.int64), "even"),
            4,
        ).with_first_all_to_alls(dispatch_light)
        schedule = FailureInjector(
            failures,
            lambda failure: self.clock.at(
                max(own.now_ns(), self.clock.now_ns()), lambda: self._inject(failure)
            ),
            self._clear,
            own,
            self.fabric.scale,
            ImmediateExecutor(),
        )
        self.jobs = Jobs(self.fabric, self.work, JobShape(), lockstep=lockstep)
        self.executor = Executor(
            self.fabric,
            MIXNET,
            self.agents,
            {"r0": self.controller},
            CircuitSet(),
            settings=RunSettings(
                arming_ns=6 * MS, restore_s=restore_s, control=ControlSettings(control_s=0.0)
            ),
            instruments=instruments_in_memory(self.clock),
            observer=Observers(
                schedule, observer(failure_logged=self._log, iteration_ended=on_iteration_end)
            ),
        )

    def run(self, iterations: int) -> list[IterationRun]:
        """So many iterations."""
        return self.executor.run(self.jobs.programmes, iterations)

    def result(self, runs: Sequence[IterationRun]) -> Json:
        """The run's JSON."""
        clock = self.executor.clock
        failures = RunFailures(
            tuple(failure_records(self.events)),
            tuple(self.executor.iteration_windows),
            clock.past_wall_ns,
            clock.past_run_ns,
        )
        return fabric_result(
            self.fabric, "mixnet", "mixnet", runs, cpu_idle=[0.5], remarks=[], failures=failures
        ).to_json()

    def _inject(self, failure: Failure) -> None:
        self.agents.die(*failure.what)
        self.events.append(FailureEvent(self.clock.now_ns(), "inject", failure.kind, failure.what))

    def _clear(self, failure: Failure) -> None:
        self.agents.live(*failure.what)
        self.events.append(FailureEvent(self.clock.now_ns(), "clear", failure.kind, failure.what))

    def _log(self, phase: FailurePhase, kind: str, what: Sequence[str], why: str) -> None:
        self.events.append(
            FailureEvent(self.clock.now_ns(), phase, FailureKind(kind), tuple(what), why)
        )


@pytest.fixture(params=[True, False], ids=["lockstep", "independent"])
def lockstep(request: pytest.FixtureRequest) -> bool:
    """Both schedules: one job of one region does the same under either."""
    return bool(request.param)


def breaks(kind: FailureKind, *what: str, clear: int | None = 2) -> PlannedFailure:
    """5 ms into the second collective of iteration 1."""
    return PlannedFailure(Failure(kind, what), 1, 1, 5 * MS, clear)


def servers_of(run: IterationRun) -> set[str]:
    return {name for c in run.collectives for r in c.records for name in (r.src, r.dst)}


def test_lost_server_is_replaced_over_the_eps_and_returns(lockstep: bool) -> None:
    bench = Bench([breaks(FailureKind.SERVER, "s3")], lockstep=lockstep)
    healthy, broken, mended = bench.run(3)
    assert servers_of(healthy) == servers_of(mended) == {"s0", "s1", "s2", "s3"}
    assert servers_of(broken) == {"s0", "s1", "s2", "s4"}
    by = {r.path for c in broken.collectives for r in c.records if "s4" in (r.src, r.dst)}
    assert by == {"e0"}, "a backup server has no light"
    assert all("s3" not in c.pair for r in broken.reconfigurations for c in r.change.after), (
        "nor has the lost"
    )
    assert (broken.retried, healthy.retried) == (12, 0), (
        "all pairs of the collective in which it died"
    )


def test_lost_server_costs_the_attempt_and_the_silence(lockstep: bool) -> None:
    bench = Bench([breaks(FailureKind.SERVER, "s3")], lockstep=lockstep)
    healthy, broken, mended = bench.run(3)
    assert broken.lost_ns > 2_000_000_000
    assert broken.end_ns - broken.start_ns > healthy.end_ns - healthy.start_ns + 2_000_000_000
    assert mended.lost_ns == 0
    [failure] = bench.result([healthy, broken, mended])["failures"]
    assert (failure["kind"], failure["what"], failure["iteration"], failure["ok"]) == (
        "server",
        ["s3"],
        1,
        True,
    )
    assert failure["detected_s"] == pytest.approx(2.0)
    assert failure["recovered_s"] == pytest.approx(2.0)
    assert failure["action"] == "s3 by s4; the iteration starts anew"
    assert {lane["server"] for lane in failure["lanes"]} == {"s3", "s4"}


def test_lost_gpu_is_detected_at_once_and_partial_sums_cross_servers(lockstep: bool) -> None:
    bench = Bench([breaks(FailureKind.GPU, "s1/1")], lockstep=lockstep)
    healthy, broken, mended = bench.run(3)
    kinds = [c.operation.kind for c in broken.collectives]
    assert kinds.count("tensor") == 4
    tensor = next(c for c in broken.collectives if c.operation.kind == "tensor")
    assert {(r.src, r.dst) for r in tensor.records} == {("s1", "s4"), ("s4", "s1")}
    assert "tensor" not in [c.operation.kind for c in (*healthy.collectives, *mended.collectives)]
    [failure] = bench.result([healthy, broken, mended])["failures"]
    assert failure["detected_s"] == failure["recovered_s"] == 0.0
    assert bench.agents.reconnected == 1, "connections in mid-transfer go with what is abandoned"
    assert broken.retried == 12


class SlowlyReconnectedAgents(MemoryAgents):
    """Agents whose connections take 0.3 s to open again."""

    def reconnect(self) -> None:
        self.clock.sleep_until(self.clock.now_ns() + 300 * MS)
        super().reconnect()


@pytest.mark.parametrize("dilation", [1, 2, 10, 25])
def test_detection_and_substitution_cost_model_time_one_to_one(
    dilation: float, lockstep: bool
) -> None:
    """A silence of 2 s, 0.3 s of opening connections again, and a checkpoint of 1 s."""
    bench = Bench(
        [breaks(FailureKind.SERVER, "s3")],
        restore_s=1.0,
        lockstep=lockstep,
        dilation=dilation,
        agents=SlowlyReconnectedAgents,
    )
    healthy, broken, _ = bench.run(3)
    [failure] = bench.result([healthy, broken])["failures"]
    assert (failure["detected_s"], failure["recovered_s"]) == pytest.approx((2.0, 3.3))
    assert broken.lost_ns / dilation / 1e9 == pytest.approx(3.3 + failure["injected_s"], abs=0.02)


def test_checkpoint_load_takes_its_time(lockstep: bool) -> None:
    plain, loading = (
        Bench([breaks(FailureKind.GPU, "s1/1")], lockstep=lockstep),
        Bench([breaks(FailureKind.GPU, "s1/1")], restore_s=3.0, lockstep=lockstep),
    )
    took = [run.end_ns - run.start_ns for bench in (plain, loading) for run in bench.run(2)[1:]]
    assert took[1] - took[0] == 3_000_000_000
    assert loading.events[-1].why.endswith("starts anew after 3 s of loading a checkpoint")


def test_cut_off_transfers_are_retried_not_lost(lockstep: bool) -> None:
    bench = Bench([breaks(FailureKind.SERVER, "s3")], lockstep=lockstep)
    outcome = bench.result(bench.run(3))
    assert outcome["integrity"]["lost_transfers"] == 0
    assert outcome["integrity"]["bytes_sent"] == outcome["integrity"]["bytes_received"]
    assert outcome["integrity"]["retried_transfers"] == 12
    assert outcome["fidelity"]["reasons"][-1].endswith("a 95th percentile needs 20")


def test_loss_without_backup_ends_the_run_in_one_line(lockstep: bool) -> None:
    with pytest.raises(
        AgentError, match="server s3 is lost and the fabric has no backup server: give it some"
    ):
        Bench([breaks(FailureKind.SERVER, "s3")], backups=0, lockstep=lockstep).run(2)


def test_lost_backup_is_replaced_by_another(lockstep: bool) -> None:
    bench = Bench(
        [
            breaks(FailureKind.SERVER, "s3", clear=None),
            PlannedFailure(Failure(FailureKind.SERVER, ("s4",)), 2, 0, MS),
        ],
        backups=2,
    )
    runs = bench.run(3)
    assert [servers_of(run) - {"s0", "s1", "s2"} for run in runs] == [{"s3"}, {"s4"}, {"s5"}]


def test_second_loss_during_detection_is_replaced_too(lockstep: bool) -> None:
    """The loss names the first; the second is missed when connections are to be opened again."""
    second = PlannedFailure(Failure(FailureKind.SERVER, ("s2",)), 1, 1, 1000 * MS)
    bench = Bench(
        [breaks(FailureKind.SERVER, "s3", clear=None), second], backups=2, lockstep=lockstep
    )
    assert servers_of(bench.run(2)[1]) == {"s0", "s1", "s4", "s5"}
    assert [(note.phase, note.what) for note in bench.events if note.phase != "inject"] == [
        ("detected", ("s3",)),
        ("detected", ("s2",)),
        ("recovered", ("s2", "s3")),
    ]


def test_failure_between_collectives_is_detected_by_the_next(lockstep: bool) -> None:
    bench = Bench([PlannedFailure(Failure(FailureKind.SERVER, ("s2",)), 1)])
    assert servers_of(bench.run(2)[1]) == {"s0", "s1", "s3", "s4"}


def test_gpu_lost_between_iterations_is_replaced_before_the_next(lockstep: bool) -> None:
    bench = Bench(lockstep=lockstep, on_iteration_end=lambda: bench.agents.die("s1/1"))
    first, second = bench.run(2)
    kinds = [[c.operation.kind for c in run.collectives] for run in (first, second)]
    assert [each.count("tensor") for each in kinds] == [0, 4]
    assert (second.retried, second.lost_ns) == (0, 0)
    assert [(event.phase, event.what) for event in bench.events] == [
        ("detected", ("s1/1",)),
        ("recovered", ("s1/1",)),
    ]


def test_failure_is_injected_once_though_its_iteration_restarts(lockstep: bool) -> None:
    bench = Bench([breaks(FailureKind.GPU, "s1/1")], restore_s=10.0, lockstep=lockstep)
    bench.run(2)
    assert [note.phase for note in bench.events] == ["inject", "detected", "recovered"]
    assert bench.executor.clock.skipped_ns > 9_000_000_000, "long waits are skipped again"


def test_disturbed_collectives_are_reported_but_not_judged(lockstep: bool) -> None:
    bench = Bench(lockstep=lockstep)
    bench.run(1)
    bench.events.append(FailureEvent(bench.clock.now_ns(), "inject", FailureKind.NIC, ("s0/e0",)))
    outcome = bench.result(bench.run(2))
    assert {(c["iteration"], tuple(c["failures"])) for c in outcome["collectives"]} == {
        (0, (0,)),
        (1, (0,)),
    }
    assert outcome["fidelity"]["reasons"] == [
        "no collective was measured",
        "share of collectives not judged (failures, CPU steal) 100.0% is over 50%",
    ]


def test_warm_up_runs_without_lost_servers(lockstep: bool) -> None:
    bench = Bench(lockstep=lockstep)
    bench.agents.die("s3")
    bench.agents.drop(["s3"])
    bench.executor.run(bench.jobs.warm_up, 1)
    assert bench.agents.losses() == (frozenset(["s3"]), frozenset())
    assert servers_of(bench.run(1)[0]) == {"s0", "s1", "s2", "s4"}


class SilentController(MemoryController):
    """A controller that never answers."""

    def reconfigure(self, demand: DemandMatrix, horizon: Horizon) -> CircuitChange:
        raise ControlError("silent")

    def ready(self, _deadline_s: float) -> bool:
        return False


def test_region_of_a_silent_controller_is_on_the_eps_and_the_iteration_ends(lockstep: bool) -> None:
    bench = Bench(lockstep=lockstep, controller=SilentController)
    [run] = bench.run(1)
    assert {r.path for c in run.collectives for r in c.records} == {"e0"}
    assert run.reconfigurations[0].change.error == "silent"


def test_controller_failure_names_its_mode() -> None:
    assert (
        str(Failure(FailureKind.CONTROLLER, ("r0",), ControllerFailureMode.STOP))
        == "controller r0 (stopped)"
    )


@pytest.mark.parametrize("dispatch_light", get_args(DispatchLight))
def test_server_is_replaced_under_every_dispatch_light(
    dispatch_light: DispatchLight, lockstep: bool
) -> None:
    bench = Bench(
        [breaks(FailureKind.SERVER, "s3")], lockstep=lockstep, dispatch_light=dispatch_light
    )
    healthy, broken, mended = bench.run(3)
    assert servers_of(healthy) == servers_of(mended) == {"s0", "s1", "s2", "s3"}
    assert servers_of(broken) == {"s0", "s1", "s2", "s4"}
    assert [len(run.collectives) for run in (healthy, broken, mended)] == [4, 4, 4]
    assert all(record.ok for c in broken.collectives for record in c.records)


SMALL = Model(
    "tiny", layers=2, hidden=4096, ffn=64, experts=4, top_k=1, attention=GroupedAttention(64, 1, 64)
)


class EpsBench:
    """Two regions of two servers without controllers, as real hosts are, and a backup server."""

    def __init__(self, shape: JobShape, *, lockstep: bool) -> None:
        regions = (
            Region("r0", 0, ("s0", "s1"), None),
            Region("r1", 1, ("s2", "s3"), None),
            Region("backup", 2, ("s4",), None, backup=True),
        )
        self.fabric = Fabric("lab", regions, 2, 0, 1, 100e9, Eps(5), Scale())
        self.clock = VirtualClock()
        self.agents = MemoryAgents(self.fabric, CircuitSet, self.clock)
        placements = tuple(Placement(region.servers, 2, 4) for region in regions[:2])
        work = Workload(
            SMALL,
            Training(2, 2, 4096, 8, 1e15, 0.5),
            placements,
            JobGating(np.ones((1, 1, 2, 4), dtype=np.int64), "even"),
            2,
            stages=shape.pp,
        )
        self.jobs = Jobs(self.fabric, work, shape, lockstep=lockstep)
        self.executor = Executor(
            self.fabric,
            EpsOnly(),
            self.agents,
            {},
            CircuitSet(),
            settings=RunSettings(arming_ns=6 * MS, control=ControlSettings(control_s=0.0)),
            instruments=instruments_in_memory(self.clock),
        )

    def run(self) -> list[IterationRun]:
        return self.executor.run(self.jobs.programmes, 2)


def test_loss_restarts_the_iteration_of_its_job_alone() -> None:
    alone = [(run.start_ns, run.end_ns) for run in EpsBench(JobShape(), lockstep=False).run()]
    bench = EpsBench(JobShape(), lockstep=False)
    bench.clock.at(5 * MS, lambda: bench.agents.die("s1"))
    runs = bench.run()
    hit, other = ([run for run in runs if run.job == job] for job in (0, 1))
    assert servers_of(hit[0]) == servers_of(hit[1]) == {"s0", "s4"}
    assert [run.substituted for run in runs] == [run.job == 0 for run in runs]
    assert hit[0].lost_ns > 2_000_000_000
    assert [(run.start_ns, run.end_ns) for run in other] == alone[1::2]
    assert all(run.retried == 0 and run.lost_ns == 0 for run in other)


def test_loss_restarts_all_regions_in_lockstep() -> None:
    bench = EpsBench(JobShape(), lockstep=True)
    bench.clock.at(5 * MS, lambda: bench.agents.die("s1"))
    first, second = bench.run()
    assert servers_of(first) == servers_of(second) == {"s0", "s2", "s3", "s4"}
    assert first.lost_ns > 2_000_000_000


def test_backup_hands_activations_to_the_next_pipeline_stage() -> None:
    bench = EpsBench(JobShape(pp=2, micro_batches=2), lockstep=False)
    bench.clock.at(5 * MS, lambda: bench.agents.die("s1"))
    first, _ = bench.run()
    moved = [one for one in first.transfers if one.operation.kind == "pipeline"]
    pairs = {(r.src, r.dst) for transfer in moved for r in transfer.records}
    assert pairs == {("s0", "s2"), ("s4", "s3"), ("s2", "s0"), ("s3", "s4")}


def test_region_keeps_its_backup_until_its_iteration_ends() -> None:
    bench = EpsBench(JobShape(), lockstep=False)
    recovery = Recovery(bench.fabric, bench.agents)
    bench.agents.drop(["s1"])
    bench.agents.die("s1")
    recovery.update()
    assert recovery.groups["r0"] == ("s0", "s4")
    bench.agents.live("s1")
    recovery.update(busy=["r0"])
    assert (recovery.lost.servers, recovery.groups["r0"]) == (frozenset(), ("s0", "s4"))
    recovery.update(busy=["r1"])
    assert recovery.groups["r0"] == ("s0", "s1")


def test_lost_gpu_restarts_its_job_alone() -> None:
    bench = EpsBench(JobShape(), lockstep=False)
    executor, ends = bench.executor, list[int]()
    first, second = bench.jobs.all
    programmes = bench.jobs.programmes

    def count(number: int, substitutions: Substitutions) -> Sequence[Task]:
        ends.append(number)
        return programmes[second](number, substitutions)

    bench.clock.at(5 * MS, lambda: bench.agents.die("s3/1"))
    runs = executor.run({first: programmes[first], second: count}, 2)
    assert ends.count(0) == 2, "the second job starts its first iteration again"
    assert {run.job for run in runs if run.substituted} == {1}
