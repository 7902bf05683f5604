"""A run: every fabric of an experiment is brought up, executed, judged and taken down."""

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from moefabric.agents.fleet.fleet import Fleet
from moefabric.config.experiment import ExperimentSpec, FabricChoice
from moefabric.config.guarded_policy import guarded_policy, policy_faults
from moefabric.config.plugins import transport_named
from moefabric.config.policies import policy_named
from moefabric.config.run_directory import FabricWiring, RunDirectory
from moefabric.core.circuits import CircuitSet
from moefabric.core.errors import SpecError
from moefabric.core.topology import Fabric
from moefabric.core.units import NS_PER_S, Scale
from moefabric.emulator.fabric import datapath, lifecycle
from moefabric.planner.policy import Policy
from moefabric.runner import result_model
from moefabric.runner.comparison import with_cost_ratios, with_ratios
from moefabric.runner.controller_retry import RegionController
from moefabric.runner.cpu_monitor import CpuSampler, idle_shares
from moefabric.runner.executor import Executor
from moefabric.runner.failure_monitor import (
    CircuitReports,
    FailureMonitor,
    scheduled_failures,
    watched_circuits,
)
from moefabric.runner.fidelity import worst_verdict
from moefabric.runner.first_all_to_all import measured_first_all_to_alls
from moefabric.runner.jobs import Jobs
from moefabric.runner.prediction import proposed_scale
from moefabric.runner.progress import ProgressReporter
from moefabric.runner.queue_drops import Counts, queue_drops, queue_readings
from moefabric.runner.rank_places import RankPlace
from moefabric.runner.real_hosts import RealHosts, host_fleet, in_turn
from moefabric.runner.results import (
    control_time_remarks,
    empty_result,
    fabric_result,
    flow_results,
    invalidated,
)
from moefabric.runner.run_records import IterationRun, RunFailures
from moefabric.runner.spine_traffic import spine_traffic, uplink_payload
from moefabric.runner.testbed import Controllers, port_counters, running_testbed
from moefabric.runner.training import Training
from moefabric.runner.workload_loader import training_workload, workload_of, workload_on
from moefabric.workload.recorded_gating import RecordedGating
from moefabric.workload.workload import Workload

_MOST_DEVIATIONS = 3
"""Links and processes that a verdict names."""


def run(
    spec: ExperimentSpec,
    folder: Path,
    reporter: ProgressReporter,
    external: frozenset[str] = frozenset(),
    *,
    flows: bool = False,
    trains: bool = False,
) -> result_model.RunResult:
    """Run an experiment.

    Args:
        spec: The experiment.
        folder: Folder of the experiment's file; relative paths start there.
        reporter: Shows progress.
        external: The roles, `ocs` and `controller`, whose processes are started by others.
        flows: Whether the result keeps the record of every flow.
        trains: Whether all-to-alls are those of the experiment's program instead of its gating.

    Raises:
        MoefabricError: The experiment can't run.
    """
    _check_workload(spec, trains=trains)
    started = datetime.now(UTC)
    switches = datapath.choose_datapath(spec.wiring.switch).datapath.name
    scale, scale_faults = proposed_scale(spec, folder, switches)
    for fault in scale_faults:
        reporter.show_message(f"warning: {fault}")
    results: list[result_model.FabricResult] = []
    wiring: FabricWiring | None = None
    hosts: list[result_model.HostRecord] = []
    setup = _GroupSetup(spec, folder, scale, tuple(scale_faults), reporter, external, flows, trains)
    for choices in _groups(spec):
        remaining = choices
        while remaining:  # after a loss of bytes the others get a testbed of their own
            if lost := [f"{one.server} ({one.host}) was lost before" for one in hosts if one.lost]:
                results += [_result_without_hosts(setup, choice, lost) for choice in remaining]
                break
            finished, group_wiring, group_hosts = _run_group(setup, remaining)
            results += finished
            hosts += group_hosts
            wiring = group_wiring or wiring
            remaining = remaining[len(finished) :]
    order = [choice.name for choice in spec.fabrics]
    results.sort(key=lambda result: order.index(result.fabric))
    return result_model.RunResult(
        experiment=spec.experiment,
        version=version("moefabric"),
        manifest=_manifest(spec, scale, wiring, started, hosts),
        results=with_cost_ratios(with_ratios(results)),
        verdict=worst_verdict(result.fidelity.verdict for result in results),
    )


@dataclass(frozen=True)
class _GroupSetup:
    """What all fabrics of an experiment have in common."""

    spec: ExperimentSpec
    folder: Path
    scale: Scale
    scale_faults: tuple[str, ...]
    reporter: ProgressReporter
    external: frozenset[str]
    flows: bool
    trains: bool


def _check_workload(spec: ExperimentSpec, *, trains: bool) -> None:
    """Raise SpecError unless the experiment has a program to train, or gating to replay."""
    if trains and spec.train is None:
        raise SpecError([("train", "is missing: it names the program that trains")])
    if not trains and not spec.gating.is_given:
        message = "is missing; `moefabric train` runs the program of this experiment"
        raise SpecError([("gating", message)])


def _run_group(
    setup: _GroupSetup, choices: Sequence[FabricChoice]
) -> tuple[list[result_model.FabricResult], FabricWiring | None, list[result_model.HostRecord]]:
    """Run fabrics of the same wiring on one testbed, until bytes are lost on one of them.

    Returns:
        The results so far, of one fabric at least; the wiring of an emulated testbed; and the real
        servers.
    """
    spec, reporter = setup.spec, setup.reporter
    fabric = spec.build_fabric(choices[0], _name(spec, choices[0]), setup.scale)
    work = workload_on(spec, fabric, setup.folder)
    pairs = Jobs.of(spec, fabric, work).server_pairs_between_regions
    results: list[result_model.FabricResult] = []
    with ExitStack() as undo:
        wiring, controllers, remarks = None, None, tuple[str, ...]()
        if choices[0].hosts:
            fleet, hosts = undo.enter_context(host_fleet(spec, fabric, pairs))
        else:
            names = "/".join(choice.name for choice in choices)
            reporter.show_message(f"{names}: bringing {fabric.name} up")
            prepare = partial(_light_for_job, choices[0].policy, work, fabric)
            testbed = running_testbed(
                fabric,
                setup.external,
                transport_named(spec.transport),
                spec.wiring.switch,
                prepare if fabric.patch_panel else None,
                spec.controller_timeout / NS_PER_S,
                pairs,
                spec.wiring.containers,
                spec.wiring.real_hosts,
            )
            wiring, fleet, controllers = undo.enter_context(testbed)
            plugged = spec.wiring.real_hosts
            hosts = RealHosts(fleet, {server: one.login.host for server, one in plugged.items()})
            remarks = (*wiring.remarks, *setup.scale_faults)
        for choice in choices:
            context = RunContext(
                spec, choice, fabric, work, fleet, controllers, remarks, reporter, hosts
            )
            if setup.trains:
                context = _training_context(context, setup.folder, wiring)
            else:
                context = replace(context, work=workload_of(choice, work))
            replay = _replay(context)
            result = _judged(context, replay)
            if setup.flows:
                records = flow_results(fabric, replay.runs)
                result = result.model_copy(update={"flows": records})
            results.append(result)
            if replay.lost:
                break
        hosts.measure_clocks()
        host_records = hosts.records("/".join(choice.name for choice in choices[: len(results)]))
    return results, wiring, host_records


def _result_without_hosts(
    setup: _GroupSetup, choice: FabricChoice, reasons: Sequence[str]
) -> result_model.FabricResult:
    """Return the invalid result of a fabric that can't be tried, as its hosts are lost."""
    fabric = setup.spec.build_fabric(choice, _name(setup.spec, choice), setup.scale)
    return invalidated(empty_result(fabric, choice.name, choice.policy), reasons)


def _groups(spec: ExperimentSpec) -> Iterator[list[FabricChoice]]:
    """Group fabrics of the same wiring; a patch panel is wired anew for each policy."""

    def key(choice: FabricChoice) -> tuple[bool, int, int, int, str, float, str, str]:
        eps = (choice.eps or spec.wiring.eps).model_dump_json()
        policy = choice.policy if choice.patch_panel_nics else ""
        nics = choice.optical, choice.electrical, choice.patch_panel_nics
        who = choice.forwarding if choice.forwarding == "host" else str(choice.forwards)
        return choice.hosts, *nics, who, choice.forwarding_rate or 0.0, eps, policy

    for _, group in groupby(sorted(spec.fabrics, key=key), key=key):
        yield list(group)


def _name(spec: ExperimentSpec, choice: FabricChoice) -> str:
    """Return a name that no other run of the experiment has."""
    circuits = f"{choice.patch_panel_nics}p" if choice.patch_panel_nics else f"{choice.optical}o"
    nics = f"{circuits}{choice.electrical}e"
    return f"{spec.experiment[:14]}-{nics}-{os.getpid()}"


@dataclass(frozen=True)
class RunContext:
    """A fabric of an experiment, up and connected; `controllers` is None on real servers.

    `training` is the program whose all-to-alls run; None if gating is replayed.
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
    training: Training | None = None

    @property
    def run_dir(self) -> RunDirectory | None:
        """The fabric's run directory; None on real servers."""
        emulated = self.controllers is not None
        return RunDirectory.of_fabric(self.fabric.name) if emulated else None

    @property
    def jobs(self) -> Jobs:
        """The jobs on the fabric."""
        return Jobs.of(self.spec, self.fabric, self.work)

    @cached_property
    def policy(self) -> Policy:
        """The policy, guarded if it is another package's."""
        return guarded_policy(self.choice.policy)

    def executor(self, **hooks: Any) -> Executor:
        """Return an executor that starts without circuits, or with those of the whole job."""
        spec, policy = self.spec, self.policy
        controllers, circuits = self._control()
        return Executor(
            self.fabric,
            policy,
            self.fleet,
            controllers,
            circuits,
            paced=transport_named(spec.transport).paced,
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
        return {}, _light_for_job(policy, self.work, self.fabric, controllers)

    def result(
        self,
        runs: Sequence[IterationRun],
        idle: Sequence[float],
        failures: RunFailures,
        circuits: CircuitSet,
    ) -> result_model.FabricResult:
        """Return the fabric's result; `circuits` are lit at the end."""
        fabric, choice, work = self.fabric, self.choice, self.work
        result = fabric_result(
            fabric,
            choice.name,
            choice.policy,
            runs,
            cpu_idle=idle,
            remarks=(
                *self.remarks,
                *policy_faults(self.policy),
                *(self.controllers.faults.get(choice.policy, ()) if self.controllers else ()),
                *control_time_remarks(runs, self.spec.control_s),
                *self.hosts.remarks(runs),
            ),
            failures=failures,
            paced=transport_named(self.spec.transport).paced,
        )
        first = measured_first_all_to_alls(
            fabric,
            choice.policy,
            choice.dispatch_light,
            [run for run in runs if not run.substituted],
            {run.number: work.predictions(run.number) for run in runs},
        )
        # The circuits at the end are those of layer 0, where the backward pass ends. One region
        # stands for all.
        region = fabric.regions[0]
        place = f" in {region.name}" if len(fabric.regions) > 1 else ""
        demand = work.layers(work.iterations - 1)[0].demand.submatrix(region.servers)
        label = f"dispatch of layer 0{place}, bytes from row's server to column's ({work.label})"
        shape = result_model.PipelineShape(**asdict(self.spec.training.shape))
        training = None if self.training is None else self.training.result(result)
        return result.model_copy(
            update={
                "split_demand": choice.split_demand,
                "demand_error": choice.demand_error,
                "first_all_to_all": first,
                "demand": demand.array.tolist(),
                "demand_label": label,
                "circuits": [(str(c.a), str(c.b)) for c in circuits],
                **({"shape": shape} if self.spec.training.independent else {}),
                **({"training": training} if training is not None else {}),
            }
        )


def _training_context(context: RunContext, folder: Path, wiring: FabricWiring | None) -> RunContext:
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
class _Replay:
    """Records of a replay on one fabric.

    Attributes:
        runs: The iterations that ended.
        lost: The flow whose bytes did not arrive, which ended the replay; empty if none.
        idle: Idle shares of the machine while packets were under way.
        circuits: The circuits that are lit at the end.
        queues: Counters of the queues before and after, if they were read.
    """

    runs: Sequence[IterationRun]
    lost: str
    idle: Sequence[float]
    failures: RunFailures
    circuits: CircuitSet
    queues: Sequence[Counts]


def _replay(context: RunContext) -> _Replay:
    """Replay all iterations on one fabric, after one that isn't measured."""
    spec, choice, fabric, jobs = context.spec, context.choice, context.fabric, context.jobs
    lost, failures = "", RunFailures()
    hosts = context.hosts
    try:
        with closing(context.executor(log_failure=hosts.log)) as warm_up:
            warm_up.run(jobs.warm_up, 1)
    except hosts.fatal_errors as error:
        return _Replay((), hosts.cause(error), (), failures, CircuitSet(), ())
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
        executor = undo.enter_context(
            closing(context.executor(restore_s=restore_s, progress=_progress(context), **hooks))
        )
        keeps_circuits = choice.policy != "eps" and not policy_named(choice.policy).reconfigures
        if context.run_dir is not None and keeps_circuits:
            undo.enter_context(watched_circuits(fabric, context.run_dir, reports))
        enabled = context.run_dir is not None and bool(fabric.queue or fabric.spines)
        readings = undo.enter_context(queue_readings(fabric.name, enabled=enabled))
        with CpuSampler() as cpu:
            try:
                if context.training is not None:
                    runs = context.training.run(executor)
                else:
                    runs = executor.run(jobs.programmes, context.work.iterations)
            except hosts.fatal_errors as error:
                lost, runs = hosts.cause(error), executor.finished_runs()
        if monitor is not None:
            failures = monitor.failures_during(executor.iteration_windows, executor.clock)
            replanned_ns = map(failures.wall_ns, executor.replanned_ns)
            failures = replace(failures, planned_ns=tuple(replanned_ns))
    idle = idle_shares(cpu.samples, executor.windows)
    return _Replay(runs, lost, idle, failures, executor.circuits, readings)


def _judged(context: RunContext, replay: _Replay) -> result_model.FabricResult:
    """Return the result of a replay, with what its counters and the testbed's state show."""
    fabric, choice = context.fabric, context.choice
    if replay.runs:
        result = context.result(replay.runs, replay.idle, replay.failures, replay.circuits)
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
    if replay.queues and fabric.queue:
        update["queues"] = queue_drops(fabric.queue, *replay.queues)
    result = result.model_copy(update=update)
    verdict = result.fidelity.verdict
    context.reporter.show_message(f"{choice.name}: {outcome}, verdict {verdict}")
    return result


def _progress(context: RunContext) -> Callable[[str], None]:
    return lambda what: context.reporter.advance(f"{context.choice.name}: {what}")


def _light_for_job(
    policy: str, work: Workload, fabric: Fabric, controllers: Controllers
) -> CircuitSet:
    """Light the circuits for the whole job, and return them; lit circuits stay."""
    return controllers.light_for(policy, work.total_demand(), fabric)


def _manifest(
    spec: ExperimentSpec,
    scale: Scale,
    wiring: FabricWiring | None,
    started: datetime,
    hosts: list[result_model.HostRecord],
) -> result_model.Manifest:
    return result_model.Manifest(
        kernel=platform.release(),
        datapath=wiring.switch if wiring else "none",
        crossbar=wiring.crossbar if wiring else "none",
        scale=result_model.ScaleFactors(bytes=scale.bytes, dilation=scale.dilation),
        seed=spec.seed,
        noise=spec.gating.noise,
        transport=spec.transport,
        congestion_control=transport_named(spec.transport).congestion_control,
        cores=os.cpu_count(),
        started=started.isoformat(timespec="seconds"),
        host=platform.node(),
        hosts=hosts or None,
    )


def operations_total(spec: ExperimentSpec) -> int:
    """Return the number of steps whose progress a run shows: its collectives."""
    training = spec.training
    steps = len(spec.fabrics) * training.iterations * spec.model.build().layers * 4
    if not training.independent:
        return steps
    return steps * training.micro_batches * len(spec.wiring.expanded_regions) // training.pp
