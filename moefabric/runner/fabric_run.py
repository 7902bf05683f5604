"""One fabric of an experiment: its replay or training, and the result of it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from moefabric.agents.fleet.fleet import Fleet
from moefabric.config.experiment import ExperimentSpec, FabricChoice
from moefabric.config.guarded_policy import guarded_policy, policy_faults
from moefabric.config.policies import policy_named
from moefabric.config.run_directory import FabricWiring, RunDirectory
from moefabric.core.circuits import CircuitSet
from moefabric.core.topology import Fabric
from moefabric.core.units import NS_PER_S
from moefabric.emulator.fabric import lifecycle
from moefabric.planner.policy import Policy
from moefabric.runner import result_model
from moefabric.runner.controller_retry import RegionController
from moefabric.runner.cpu_monitor import CpuSampler
from moefabric.runner.executor import Executor
from moefabric.runner.fabric_recorder import FabricRecorder
from moefabric.runner.failure_monitor import (
    CircuitReports,
    FailureMonitor,
    scheduled_failures,
    watched_circuits,
)
from moefabric.runner.first_all_to_all import measured_first_all_to_alls
from moefabric.runner.hybrid_jobs import HybridJobs
from moefabric.runner.hybrid_result import with_hybrid
from moefabric.runner.iteration_outcome import IterationOutcome
from moefabric.runner.jobs import Jobs, ListedJobs
from moefabric.runner.journal import Journal, JournalReader
from moefabric.runner.link_lateness import lateness_remarks, link_lateness
from moefabric.runner.placed_fabric import other_cpu_ticks
from moefabric.runner.progress import ProgressReporter
from moefabric.runner.queue_drops import Counts, queue_drops, queue_readings
from moefabric.runner.rank_places import RankPlace
from moefabric.runner.real_hosts import RealHosts, in_turn
from moefabric.runner.result_parts import LinkLateness
from moefabric.runner.results import control_time_remarks, empty_result, invalidated, summed_result
from moefabric.runner.run_records import IterationRun, RunFailures
from moefabric.runner.spine_traffic import spine_traffic, uplink_payload
from moefabric.runner.status_writer import RunStatusWriter
from moefabric.runner.testbed import Controllers, port_counters
from moefabric.runner.training import Training
from moefabric.runner.workload_loader import training_workload, workload_of
from moefabric.workload.recorded_gating import RecordedGating
from moefabric.workload.workload import Workload

_LEARNT_ITERATIONS = 10
"""Iterations from whose control times a run that goes on knows what to expect."""
_MOST_DEVIATIONS = 3
"""Links and processes that a verdict names."""


@dataclass(frozen=True)
class RunContext:
    """A fabric of an experiment, up and connected; `controllers` is None on real servers.

    `earlier` is the journal of a run that goes on; None for a new run. `training` is the program
    whose all-to-alls run; None if gating is replayed. `hybrid` is the job of a hybrid run.
    """

    spec: ExperimentSpec
    choice: FabricChoice
    fabric: Fabric
    work: Workload
    fleet: Fleet
    controllers: Controllers | None
    remarks: tuple[str, ...]
    reporter: ProgressReporter
    hosts: RealHosts
    journal: Journal
    run_id: str
    flows: bool = False
    earlier: JournalReader | None = None
    training: Training | None = None
    hybrid: HybridJobs | None = None

    @property
    def run_dir(self) -> RunDirectory | None:
        """The fabric's run directory; None on real servers."""
        emulated = self.controllers is not None
        return RunDirectory.of_fabric(self.fabric.name) if emulated else None

    @property
    def jobs(self) -> ListedJobs:
        """The jobs on the fabric."""
        return self.hybrid or Jobs.of(self.spec, self.fabric, self.work)

    @cached_property
    def policy(self) -> Policy:
        """The policy, guarded if it is another package's."""
        return guarded_policy(self.choice.policy)

    def executor(self, ended: Sequence[IterationOutcome] = (), **hooks: Any) -> Executor:
        """Return an executor that starts without circuits, or with those of the whole job.

        Args:
            ended: The iterations after which it goes on, with their circuits.
            **hooks: Arguments of the executor.
        """
        spec, policy = self.spec, self.policy
        controllers, circuits = self._control()
        if ended and self.controllers is not None and controllers:
            circuits = self.controllers.restore(
                self.fabric, CircuitSet.of(map("~".join, ended[-1].circuits))
            )
            hooks["control_times"] = [
                (change.region, change.circuits_before != change.circuits_after, change.control_s)
                for outcome in ended[-_LEARNT_ITERATIONS:]
                for change in outcome.reconfigurations
                if not change.error and change.control_s is not None
            ]
        return Executor(
            self.fabric,
            policy,
            self.fleet,
            controllers,
            circuits,
            paced=self.paced,
            timeout_s=spec.controller_timeout / NS_PER_S,
            control_s=spec.control_s,
            **hooks,
        )

    def _control(self) -> tuple[Mapping[str, RegionController], CircuitSet]:
        """Return the controllers of the circuits that change, and the circuits lit at first."""
        policy, controllers = self.choice.policy, self.controllers
        if controllers is None or policy == "eps":
            return {}, CircuitSet()
        if not self.fabric.patch_panel:
            controllers.clear_circuits()
            if policy_named(policy).reconfigures:
                return controllers.under_policy(policy), CircuitSet()
        return {}, light_for_job(policy, self.work, self.fabric, controllers)

    @property
    def paced(self) -> bool:
        """Whether flows are paced."""
        return self.spec.transport_of(self.choice).paced

    def recorder(self, status: RunStatusWriter | None) -> FabricRecorder:
        """Return what records the replay."""
        choice = self.choice
        predicts = choice.dispatch_light == "predict"
        recorder = FabricRecorder(
            self.fabric,
            choice.name,
            choice.policy,
            self.journal,
            status,
            self.flows,
            self.paced,
            self.work.predictions if predicts else None,
        )
        recorder.resume(self.ended)
        return recorder

    @property
    def ended(self) -> list[IterationOutcome]:
        """The iterations that a stopped run has left, which aren't run again.

        Failures and programs have a state that no journal holds: such a fabric begins anew.
        """
        if self.earlier is None or self.training is not None or self.spec.failures:
            return []
        jobs = len(self.jobs.all)
        outcomes = list(self.earlier.outcomes(self.choice.name))
        by_number = Counter(outcome.result.iteration for outcome in outcomes)
        numbers = range(self.work.iterations)
        first = next((n for n in numbers if by_number[n] < jobs), len(numbers))
        return [outcome for outcome in outcomes if outcome.result.iteration < first]

    def status_writer(self) -> AbstractContextManager[RunStatusWriter | None]:
        """Return the context in which the state of the run is written; None on real servers."""
        if self.run_dir is None:
            return nullcontext()
        return RunStatusWriter(
            self.run_dir.run_status_file,
            self.run_id,
            self.spec.experiment,
            self.choice.name,
            self.choice.policy,
            self.work.iterations,
            self.journal.path,
        )

    def result(self, replay: "Replay") -> result_model.FabricResult:
        """Return the fabric's result, from the outcomes in the journal."""
        fabric, choice, work = self.fabric, self.choice, self.work
        outcomes = list(self.journal.read().outcomes(choice.name))
        collectives = [one for outcome in outcomes for one in outcome.collectives]
        changes = [one for outcome in outcomes for one in outcome.reconfigurations]
        dispatches = [one for outcome in outcomes for one in outcome.first_dispatches]
        dilated_ns = NS_PER_S * fabric.scale.dilation
        result = summed_result(
            fabric,
            choice.name,
            choice.policy,
            outcomes,
            cpu_idle=replay.idle,
            remarks=(
                *self.remarks,
                *policy_faults(self.policy),
                *(self.controllers.faults.get(choice.policy, ()) if self.controllers else ()),
                *(lateness_remarks(fabric, replay.links) if replay.links else ()),
                *control_time_remarks(
                    [one.control_s or 0.0 for one in changes], self.spec.control_s
                ),
                *self.hosts.remarks(
                    [one.measured_s * dilated_ns for one in collectives], len(outcomes)
                ),
            ),
            failures=replay.failures,
            failed=replay.failed,
            paced=self.paced,
        )
        first = measured_first_all_to_alls(choice.dispatch_light, dispatches)
        # The circuits at the end are those of layer 0, where the backward pass ends. One region
        # stands for all.
        region = next(region for region in fabric.regions if not region.modelled)
        place = f" in {region.name}" if len(fabric.regions) > 1 else ""
        demand = work.layers(work.iterations - 1)[0].demand.submatrix(region.servers)
        label = f"dispatch of layer 0{place}, bytes from row's server to column's ({work.label})"
        shape = result_model.PipelineShape(**asdict(self.spec.training.shape))
        training = None if self.training is None else self.training.result(result)
        update: dict[str, Any] = {}
        if self.flows:
            update["flows"] = [flow for outcome in outcomes for flow in outcome.flows]
        return result.model_copy(
            update={
                **update,
                "split_demand": choice.split_demand,
                "demand_error": choice.demand_error,
                "place": choice.place,
                "transform": choice.transform,
                "collective": choice.collective,
                "copies": choice.copies,
                "copy_limit": choice.copy_limit,
                "experts": choice.experts,
                "transport": choice.transport,
                "first_all_to_all": first,
                "demand": demand.array.tolist(),
                "demand_label": label,
                "circuits": [(str(c.a), str(c.b)) for c in replay.circuits],
                **({"shape": shape} if self.spec.training.independent else {}),
                **({"training": training} if training is not None else {}),
            }
        )


def training_context(context: RunContext, folder: Path, wiring: FabricWiring | None) -> RunContext:
    """Return the context of a program that trains; `wiring` is None on real servers."""
    spec, work = context.spec, context.work
    gating = RecordedGating(work.training.ep, work.model.experts)
    work = workload_of(context.choice, training_workload(work, gating))
    jobs = Jobs.of(spec, context.fabric, work)
    show = context.reporter.show_message
    place = context.hosts.place
    if wiring is not None:
        servers = work.placements[0].servers
        place = RankPlace.on_fabric(wiring, servers, by_agents=True, over_management=True)
    assert place is not None
    training = Training(spec, folder, jobs, gating, place, context.fleet, show)
    return replace(context, work=work, training=training)


@dataclass(frozen=True)
class Replay:
    """Records of a replay on one fabric.

    Attributes:
        iterations: Number of iterations that ended.
        lost: The flow whose bytes did not arrive, which ended the replay; empty if none.
        idle: Idle shares of the machine while packets were under way.
        circuits: The circuits that are lit at the end.
        queues: Counters of the queues before and after, if they were read.
        failed: Records of the iterations since the first failure.
        links: How late programmed links were; None without any.
    """

    iterations: int
    lost: str
    idle: Sequence[float]
    failures: RunFailures
    circuits: CircuitSet
    queues: Sequence[Counts]
    failed: Sequence[IterationRun] = ()
    links: LinkLateness | None = None


def replay_on(context: RunContext) -> Replay:
    """Replay all iterations on one fabric, after one that isn't measured."""
    spec, choice, fabric, jobs = context.spec, context.choice, context.fabric, context.jobs
    lost, failures = "", RunFailures()
    hosts = context.hosts
    try:
        with closing(context.executor(log_failure=hosts.log)) as warm_up:
            warm_up.run(jobs.warm_up, 1)
    except hosts.fatal_errors as error:
        return Replay(0, hosts.cause(error), (), failures, CircuitSet(), ())
    reports = CircuitReports(context.fleet.wake)
    with ExitStack() as undo:
        hooks: dict[str, Any] = {
            "reported_circuits": reports.take,
            "log_failure": hosts.log,
            "on_iteration_end": hosts.measure_clocks,
        }
        monitor = None
        if context.run_dir is not None:
            schedule = scheduled_failures(spec, choice, fabric, context.run_dir, context.fleet)
            monitor = undo.enter_context(FailureMonitor(context.run_dir))
            hooks |= {
                "counters": undo.enter_context(port_counters(fabric)),
                "faults": undo.enter_context(schedule),
                "log_failure": in_turn(hosts.log, monitor.log),
                "on_iteration_end": in_turn(hosts.measure_clocks, monitor.start_collecting),
            }
        if context.training is not None:
            hooks |= {"calls": context.training.calls, "check_ranks": context.training.check}
        restore_s = spec.training.checkpoint_load / NS_PER_S
        status = undo.enter_context(context.status_writer())
        recorder = context.recorder(status)
        hooks |= {"keep": recorder.take, "progress": _progress(context)}
        if status is not None:
            hooks |= {
                "on_launch": status.operation_began,
                "on_iteration_begin": status.iteration_began,
            }
        ended = context.ended
        executor = undo.enter_context(
            closing(context.executor(ended, restore_s=restore_s, **hooks))
        )
        keeps_circuits = choice.policy != "eps" and not policy_named(choice.policy).reconfigures
        if context.run_dir is not None and keeps_circuits:
            undo.enter_context(watched_circuits(fabric, context.run_dir, reports))
        emulated = context.run_dir is not None
        enabled = emulated and bool(fabric.drops_packets or fabric.spines)
        lateness = undo.enter_context(link_lateness(fabric, enabled=emulated))
        readings = undo.enter_context(queue_readings(fabric.name, enabled=enabled))
        with CpuSampler(other_ticks=partial(other_cpu_ticks, context.run_dir)) as cpu:
            recorder.connect(executor, cpu, monitor)
            try:
                runs = _run_iterations(context, executor, ended)
            except hosts.fatal_errors as error:
                lost, runs = hosts.cause(error), executor.finished_runs()
        if monitor is not None:
            failures = monitor.failures_during(executor.iteration_windows, executor.clock)
            replanned_ns = map(failures.wall_ns, executor.replanned_ns)
            failures = replace(failures, planned_ns=tuple(replanned_ns))
        idle = recorder.finish(failures)
    circuits = executor.circuits
    if ended:  # the counters of queues were not read before
        readings = []
    iterations = len(ended) + len(runs)
    return Replay(
        iterations,
        lost,
        idle,
        failures,
        circuits,
        readings,
        [*recorder.shown, *recorder.failed],
        lateness[0] if lateness else None,
    )


def _run_iterations(
    context: RunContext, executor: Executor, ended: Sequence[IterationOutcome]
) -> list[IterationRun]:
    """Run the iterations after those that have ended, or all of a program that trains."""
    if context.training is not None:
        return context.training.run(executor)
    first = ended[-1].result.iteration + 1 if ended else 0
    return executor.run(context.jobs.programmes, context.work.iterations - first, first=first)


def judged(context: RunContext, replay: Replay) -> result_model.FabricResult:
    """Return the result of a replay, with what its counters and the testbed's state show."""
    fabric, choice = context.fabric, context.choice
    if replay.iterations:
        result = context.result(replay)
        seconds = fmean(iteration.measured_s or 0.0 for iteration in result.iterations)
        outcome = f"{seconds:.3f} s an iteration"
    else:
        result, outcome = empty_result(fabric, choice.name, choice.policy), "no iteration"
    emulated = context.run_dir is not None
    deviations = lifecycle.deviations(fabric.name) if emulated else []
    lost = [replay.lost] if replay.lost else []
    result = invalidated(result, [*lost, *deviations[:_MOST_DEVIATIONS]])
    counted = uplink_payload(*replay.queues) if replay.queues else None
    sent = [*result.collectives, *result.transfers]
    update: dict[str, Any] = {"spines": spine_traffic(fabric, sent, counted)}
    if replay.queues and fabric.drops_packets:
        update["queues"] = queue_drops(fabric.room, *replay.queues)
    update["links"] = replay.links
    result = result.model_copy(update=update)
    if context.hybrid is not None:
        result = with_hybrid(result, context.spec, context.hybrid)
    verdict = result.fidelity.verdict
    context.reporter.show_message(f"{choice.name}: {outcome}, verdict {verdict}")
    return result


def _progress(context: RunContext) -> Callable[[str], None]:
    return lambda what: context.reporter.advance(f"{context.choice.name}: {what}")


def light_for_job(
    policy: str, work: Workload, fabric: Fabric, controllers: Controllers
) -> CircuitSet:
    """Light the circuits for the whole job, and return them; lit circuits stay."""
    return controllers.light_for(policy, work.total_demand(), fabric)
