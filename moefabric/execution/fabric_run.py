"""Run of one fabric of an experiment: replay or training, and the result."""

import gc
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

from moefabric.agents.fleet.fleet import Fleet
from moefabric.config.experiment import ExperimentSpec, FabricChoice
from moefabric.config.guarded_policy import guarded_policy, policy_faults
from moefabric.config.policies import policy_named
from moefabric.core.circuits import CircuitSet
from moefabric.core.failure_kinds import FailureKind
from moefabric.core.port_counts import QueueCounts
from moefabric.core.topology import Fabric, drops_packets, queue_room
from moefabric.core.units import NS_PER_S, Scale
from moefabric.emulator.fabric import lifecycle
from moefabric.execution.executor import ControlSettings, Executor, Instruments, RunSettings
from moefabric.execution.fabric_recorder import FabricRecorder, RunStatusWriter
from moefabric.execution.failure_monitor import FailureMonitor, failure_watch, scheduled_failures
from moefabric.execution.hybrid_result import with_hybrid
from moefabric.execution.observer import Observers, RunObserver
from moefabric.execution.programs.rank_jobs import RankPlace
from moefabric.execution.programs.training import TrainingRun
from moefabric.execution.real_hosts import RealHosts
from moefabric.execution.region_controllers import RegionController
from moefabric.planner.policy import Policy, known_demand
from moefabric.prediction.experiment import ExperimentScale
from moefabric.prediction.hybrid_jobs import AnyJobs, HybridJobs
from moefabric.prediction.jobs import Jobs
from moefabric.prediction.workload_loader import training_workload, workload_of
from moefabric.report.summary import FabricSummary
from moefabric.results import model as result_model
from moefabric.results.journal import HeaderLine, Journal, JournalReader
from moefabric.results.parts import LinkLateness
from moefabric.results.progress import ProgressReporter
from moefabric.results.records.queue_readings import queue_drops, spine_traffic, uplink_payload
from moefabric.results.records.records import IterationRun, RunFailures
from moefabric.results.verdict import fabric_result, reasons
from moefabric.results.verdict.first_all_to_all import measured_first_all_to_alls
from moefabric.results.verdict.iteration_outcome import IterationOutcome
from moefabric.runtime.cpu_monitor import CpuSampler
from moefabric.runtime.run_directory import FabricWiring, RunDirectory
from moefabric.runtime.run_status import RunStatus
from moefabric.testbed.placed_fabric import Placer, other_cpu_ticks
from moefabric.testbed.testbed import Controllers, port_counters
from moefabric.workload.gating.job_gating import RecordedGating
from moefabric.workload.workload import Workload

_LEARNT_ITERATIONS = 10
"""Iterations from whose control times a run that goes on knows what to expect."""
_MOST_DEVIATIONS = 3
"""Links and processes that a verdict names."""


@dataclass(frozen=True)
class RunSetup:
    """Settings that all fabrics of an experiment share.

    `earlier` is the journal of a run that goes on; None for a new run.
    """

    spec: ExperimentSpec
    folder: Path
    scale: ExperimentScale
    reporter: ProgressReporter
    external: frozenset[str]
    journal: Journal
    header: HeaderLine
    earlier: JournalReader | None
    place: Placer | None

    def scale_of(self, choice: FabricChoice) -> Scale:
        """Return the scale of a fabric."""
        return self.scale.by_fabric[choice.name].scale


@dataclass(frozen=True)
class RunContext:
    """A fabric of an experiment, up and connected.

    `controllers` and `wiring` are None on real servers. `training` is the program whose all-to-alls
    run; None if gating is replayed. `hybrid` is the job of a hybrid run.
    """

    setup: RunSetup
    choice: FabricChoice
    fabric: Fabric
    work: Workload
    hybrid: HybridJobs | None
    fleet: Fleet
    hosts: RealHosts
    controllers: Controllers | None = None
    wiring: FabricWiring | None = None
    training: TrainingRun | None = None

    @property
    def spec(self) -> ExperimentSpec:
        """The experiment."""
        return self.setup.spec

    @property
    def run_dir(self) -> RunDirectory | None:
        """The fabric's run directory; None on real servers."""
        emulated = self.controllers is not None
        return RunDirectory.of_fabric(self.fabric.name) if emulated else None

    @property
    def jobs(self) -> AnyJobs:
        """The jobs on the fabric."""
        return self.hybrid or Jobs.of(self.spec, self.fabric, self.work)

    @cached_property
    def policy(self) -> Policy:
        """The policy, guarded if it is another package's."""
        return guarded_policy(self.choice.policy)

    def executor(
        self,
        ended: Sequence[IterationOutcome] = (),
        *,
        observer: RunObserver,
        instruments: Instruments | None = None,
        measured: bool = True,
    ) -> Executor:
        """Return an executor that starts without circuits, or with those of the whole job.

        Args:
            ended: The iterations after which it goes on, with their circuits.
            observer: Receives the events of the run.
            instruments: The counters of the run.
            measured: Whether the iterations are part of the result: they have the job's calls and
                its times, and observers keep their records.
        """
        spec = self.spec
        controllers, circuits = self._control()
        earlier: list[tuple[str, bool, float]] = []
        if ended and self.controllers is not None and controllers:
            circuits = self.controllers.restore(
                self.fabric, CircuitSet.of(map("~".join, ended[-1].circuits))
            )
            earlier = [
                (change.region, change.circuits_before != change.circuits_after, change.control_s)
                for outcome in ended[-_LEARNT_ITERATIONS:]
                for change in outcome.reconfigurations
                if not change.error and change.control_s is not None
            ]
        return Executor(
            self.fabric,
            self.policy,
            self.fleet,
            controllers,
            circuits,
            settings=RunSettings(
                paced=self.paced,
                restore_s=spec.training.checkpoint_load / NS_PER_S if measured else 0.0,
                keep_records=not measured,
                control=ControlSettings(
                    spec.controller_timeout / NS_PER_S, spec.control_s, earlier
                ),
            ),
            instruments=instruments,
            observer=observer,
            calls=self.training.calls if measured and self.training is not None else None,
        )

    def _control(self) -> tuple[Mapping[str, RegionController], CircuitSet]:
        """Return the controllers of the circuits that change, and the circuits lit at first."""
        policy, controllers = self.choice.policy, self.controllers
        if controllers is None or policy == "eps":
            return {}, CircuitSet()
        if not self.fabric.patch_panel:
            controllers.clear_circuits()
            if policy_named(policy).reconfigures:
                lit, start = CircuitSet(), self.choice.start
                if start is not None:
                    lit = controllers.light_for(start, self.work.total_demand(), self.fabric)
                return controllers.under_policy(policy), lit
        return {}, controllers.light_for(policy, self.work.total_demand(), self.fabric)

    @property
    def paced(self) -> bool:
        """Whether flows are paced."""
        return self.spec.transport_of(self.choice).paced

    def recorder(
        self, status: RunStatusWriter | None, ended: Sequence[IterationOutcome]
    ) -> FabricRecorder:
        """Return the recorder of the replay."""
        choice, setup = self.choice, self.setup
        recorder = FabricRecorder(
            self.fabric,
            choice.name,
            choice.policy,
            setup.journal,
            status,
            flows=setup.header.flows,
            paced=self.paced,
            predictions=self.work.predictions if choice.dispatch_light == "predict" else None,
        )
        for outcome in ended:
            recorder.add(outcome)
        return recorder

    @property
    def ended(self) -> list[IterationOutcome]:
        """The iterations that a stopped run has left, which aren't run again.

        Failures and programs have a state that no journal holds: such a fabric begins anew.
        """
        earlier = self.setup.earlier
        if earlier is None or self.training is not None or self.spec.failures:
            return []
        jobs = len(self.jobs.all)
        outcomes = list(earlier.outcomes(self.choice.name))
        by_number = Counter(outcome.result.iteration for outcome in outcomes)
        numbers = range(self.work.iterations)
        first = next((n for n in numbers if by_number[n] < jobs), len(numbers))
        return [outcome for outcome in outcomes if outcome.result.iteration < first]

    def status_writer(self, run_dir: RunDirectory) -> RunStatusWriter:
        """Return the context in which the state of the run is written."""
        status = RunStatus(
            run_id=self.setup.header.run_id,
            experiment=self.spec.experiment,
            fabric=self.choice.name,
            policy=self.choice.policy,
            pid=os.getpid(),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            journal=str(self.setup.journal.path),
            iterations=self.work.iterations,
        )
        return RunStatusWriter(run_dir.run_status_file, status)

    def result(self, replay: "Replay") -> result_model.FabricResult:
        """Return the fabric's result, from the outcomes in the journal."""
        fabric, choice = self.fabric, self.choice
        outcomes = list(JournalReader(self.setup.journal.path).outcomes(choice.name))
        result = fabric_result.summed_outcomes(
            fabric_result.wiring_summary(fabric),
            choice.name,
            choice.policy,
            outcomes,
            list(self._findings(replay, outcomes)),
            paced=self.paced,
            cpu_idle=replay.idle,
            measured_control=self.spec.control_s is None,
        )
        faults = list(policy_faults(self.policy))
        if self.controllers is not None:
            faults += self.controllers.faults.get(choice.policy, ())
        result = fabric_result.with_findings(result, reasons.CIRCUMSTANCE.judge_each(faults))
        result = fabric_result.with_cost_and_failures(
            result, fabric, replay.failures, replay.failed
        )
        dispatches = [one for outcome in outcomes for one in outcome.first_dispatches]
        update = result.choices(choice) | {
            "knows": known_demand(self.policy, choice.dispatch_light),
            "first_all_to_all": measured_first_all_to_alls(choice.dispatch_light, dispatches),
            **self._demand(),
            "circuits": [(str(c.a), str(c.b)) for c in replay.circuits],
        }
        if self.setup.header.flows:
            update["flows"] = [flow for outcome in outcomes for flow in outcome.flows]
        if self.spec.training.independent:
            update["shape"] = result_model.PipelineShape(**asdict(self.spec.training.shape))
        if self.training is not None:
            update["training"] = self.training.result(result)
        return result.model_copy(update=update)

    def _findings(
        self, replay: "Replay", outcomes: Sequence[IterationOutcome]
    ) -> Iterator[reasons.RunFinding]:
        """Yield the findings on the machine and the testbed during a replay."""
        if self.wiring is not None:
            remarks = [*self.wiring.remarks, *self.setup.scale.remarks[self.choice.name]]
            yield from reasons.CIRCUMSTANCE.judge_each(remarks)
        losses = (f for f in replay.failures.failures if f.kind is FailureKind.LIGHT)
        lost = [name for failure in losses for name in failure.what]
        yield from reasons.LOST_LIGHT.judge(len(lost), place=", ".join(lost[: reasons.MOST_NAMES]))
        if replay.links is not None:
            yield from fabric_result.lateness_findings(self.fabric, replay.links)
        changes = chain.from_iterable(outcome.reconfigurations for outcome in outcomes)
        control_s = [change.control_s or 0.0 for change in changes]
        yield from fabric_result.control_time_findings(control_s, self.spec.control_s)
        collectives = [one for outcome in outcomes for one in outcome.collectives]
        yield from fabric_result.uncounted_findings(collectives)
        dilated_ns = NS_PER_S * self.fabric.scale.dilation
        times_ns = [one.measured_s * dilated_ns for one in collectives]
        yield from self.hosts.findings(times_ns, len(outcomes))

    def _demand(self) -> dict[str, Any]:
        """Return the last demand of layer 0 in one region, which stands for all, and its label.

        The circuits at the end are those of that layer, where the backward pass ends.
        """
        region = next(region for region in self.fabric.regions if not region.modelled)
        place = f" in {region.name}" if len(self.fabric.regions) > 1 else ""
        words = f"dispatch of layer 0{place}, bytes from row's server to column's"
        demand = self.work.layers(self.work.iterations - 1)[0].demand.submatrix(region.servers)
        label = f"{words} ({self.work.gating.label})"
        return {"demand": demand.array.tolist(), "demand_label": label}


def training_context(context: RunContext) -> RunContext:
    """Return the context of a program that trains."""
    setup, work = context.setup, context.work
    gating = RecordedGating(work.training.ep, work.model.experts)
    work = workload_of(context.choice, training_workload(work, gating))
    jobs = Jobs.of(setup.spec, context.fabric, work)
    show = setup.reporter.show_message
    place = context.hosts.place
    if context.wiring is not None:
        servers = work.placements[0].servers
        place = RankPlace.on_fabric(context.wiring, servers, by_agents=True, over_management=True)
    assert place is not None
    training = TrainingRun(setup.spec, setup.folder, jobs, gating, place, context.fleet, show)
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

    iterations: int = 0
    lost: str = ""
    idle: Sequence[float] = ()
    failures: RunFailures = field(default_factory=RunFailures)
    circuits: CircuitSet = field(default_factory=CircuitSet)
    queues: Sequence[QueueCounts] = ()
    failed: Sequence[IterationRun] = ()
    links: LinkLateness | None = None


def replay_on(context: RunContext) -> Replay:
    """Replay all iterations on one fabric, after one that isn't measured."""
    choice, fabric, hosts, run_dir = context.choice, context.fabric, context.hosts, context.run_dir
    emulated, lost, ended = run_dir is not None, "", context.ended
    try:
        with closing(context.executor(observer=hosts, measured=False)) as warm_up:
            warm_up.run(context.jobs.warm_up, 1)
    except hosts.fatal_errors as error:
        return Replay(lost=hosts.cause(error))
    with ExitStack() as undo:
        undo.enter_context(_short_collections())
        status = counters = watch = None
        if run_dir is not None:
            status = undo.enter_context(context.status_writer(run_dir))
        recorder = context.recorder(status, ended)
        observers: list[RunObserver] = [hosts, recorder, _ProgressLine(context)]
        observers += [status] if status is not None else []
        if run_dir is not None:
            schedule = scheduled_failures(context.spec, choice, fabric, run_dir, context.fleet)
            recorder.monitor = undo.enter_context(closing(FailureMonitor(run_dir)))
            counters = undo.enter_context(port_counters(fabric))
            observers += [recorder.monitor, undo.enter_context(schedule)]
            if choice.policy != "eps" and not policy_named(choice.policy).reconfigures:
                watch = failure_watch(run_dir, context.fleet.wake)
        reported = watch.take_circuits if watch is not None else dict
        instruments = Instruments(counters=counters, reported_circuits=reported)
        recorder.executor = executor = undo.enter_context(
            closing(
                context.executor(ended, observer=Observers(*observers), instruments=instruments)
            )
        )
        if watch is not None:  # now that the executor has lit its circuits
            undo.enter_context(watch)
        has_queues = emulated and bool(drops_packets(fabric) or fabric.spines)
        is_programmed = emulated and fabric.eps_link is not None
        readings = [lifecycle.queues(fabric.name)] if has_queues else []
        if is_programmed:  # each call tells the lateness since the last one
            lifecycle.link_lateness(fabric.name)
        with CpuSampler(other_ticks=partial(other_cpu_ticks, run_dir)) as recorder.cpu:
            try:
                runs = _run_iterations(context, executor, ended)
            except hosts.fatal_errors as error:
                lost, runs = hosts.cause(error), executor.finished_runs()
        if has_queues:
            readings.append(lifecycle.queues(fabric.name))
        lateness = LinkLateness(**lifecycle.link_lateness(fabric.name)) if is_programmed else None
        failures = recorder.failures()
        idle = recorder.finish(failures)
    return Replay(
        len(ended) + len(runs),
        lost,
        idle,
        failures,
        executor.circuits,
        [] if ended else readings,  # the counters of queues were not read before
        [*recorder.shown, *recorder.failed],
        lateness,
    )


@contextmanager
def _short_collections() -> Iterator[None]:
    """Exclude existing objects from garbage collections, which delay requests by up to 80 ms."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


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
        outcome = f"iteration {FabricSummary(result).text('iteration_s')}"
    else:
        result = fabric_result.summed_outcomes(
            fabric_result.wiring_summary(fabric), choice.name, choice.policy, ()
        )
        outcome = "no iteration"
    wrong = [replay.lost] if replay.lost else []
    if context.run_dir is not None:
        wrong += lifecycle.deviations(fabric.name)[:_MOST_DEVIATIONS]
    result = fabric_result.with_findings(result, reasons.WRONG_TESTBED.judge_each(wrong))
    payload = uplink_payload(*replay.queues) if replay.queues else None
    sent = [*result.collectives, *result.transfers]
    update: dict[str, Any] = {"spines": spine_traffic(fabric, sent, payload), "links": replay.links}
    if replay.queues and drops_packets(fabric):
        update["queues"] = queue_drops(queue_room(fabric), *replay.queues)
    result = result.model_copy(update=update)
    if context.hybrid is not None:
        result = with_hybrid(result, context.spec, context.hybrid)
    verdict = result.fidelity.in_short
    context.setup.reporter.show_message(f"{choice.name}: {outcome}, verdict {verdict}")
    return result


class _ProgressLine(RunObserver):
    """Shows each collective that has ended."""

    def __init__(self, context: RunContext) -> None:
        self._context = context

    def collective_ended(self, description: str) -> None:
        self._context.setup.reporter.advance(f"{self._context.choice.name}: {description}")
