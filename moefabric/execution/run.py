"""A run: every fabric of an experiment is brought up, executed, judged and taken down."""

import os
import platform
import secrets
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Final

from moefabric.config.experiment import ExperimentSpec, FabricChoice
from moefabric.config.plugins import transport_named
from moefabric.config.training_program import NO_PROGRAM
from moefabric.core.errors import TORCH_REMEDY, SpecError, UnsupportedError
from moefabric.core.units import NS_PER_S
from moefabric.emulator.crossbar import bpf_crossbar
from moefabric.emulator.fabric import datapath, lifecycle
from moefabric.execution.fabric_run import RunContext, RunSetup, judged, replay_on, training_context
from moefabric.execution.real_hosts import RealHosts, host_fleet
from moefabric.prediction.experiment import (
    ExperimentScale,
    changed_inputs,
    experiment_inputs,
    experiment_scale,
)
from moefabric.prediction.hybrid_jobs import AnyJobs, HybridJobs
from moefabric.prediction.jobs import Jobs
from moefabric.prediction.scaling import ProposedScale
from moefabric.prediction.workload_loader import gating_notes, workload_of, workload_on
from moefabric.results import model as result_model
from moefabric.results.circuit_use import measured_use, with_circuit_use
from moefabric.results.comparison import with_cost_ratios, with_ratios
from moefabric.results.journal import (
    FabricLine,
    HeaderLine,
    Journal,
    JournalReader,
    ResultLine,
    SegmentLine,
    resumable,
    without_rows,
)
from moefabric.results.progress import ProgressReporter
from moefabric.results.verdict import reasons
from moefabric.results.verdict.fabric_result import summed_outcomes, wiring_summary, with_findings
from moefabric.results.verdict.reasons import RunFinding
from moefabric.results.verdict.verdict import worst_verdict
from moefabric.runtime.cpu_monitor import usable_cores
from moefabric.runtime.run_directory import FabricWiring
from moefabric.runtime.structured_log import log_context
from moefabric.testbed.placed_fabric import Placer, fitted_fabric, placed_elsewhere
from moefabric.testbed.testbed import Controllers, running_testbed

_NO_SWITCHES: Final = "none"
"""Datapath and crossbar of a run without emulated fabrics."""
_GROUP_S: Final = 8.0
"""Wall seconds in which fabrics of one wiring come up and are removed, on an idle machine."""


def run(
    spec: ExperimentSpec,
    folder: Path,
    reporter: ProgressReporter,
    external: frozenset[str] = frozenset(),
    *,
    flows: bool = False,
    trains: bool = False,
    journal: Path | None = None,
    resume: bool = False,
    place: Placer | None = None,
    file: Path | None = None,
) -> result_model.RunResult:
    """Run an experiment.

    Args:
        spec: The experiment.
        folder: Folder of the experiment's file; relative paths start there.
        reporter: Shows progress.
        external: The roles, `ocs` and `controller`, whose processes are started by others.
        flows: Whether the result keeps the record of every flow.
        trains: Whether all-to-alls are those of the experiment's program instead of its gating.
        journal: File to which results are appended while they arise; None for a temporary one.
        resume: Whether to go on where the run of this journal was stopped.
        place: Returns the machines that carry an emulated fabric together, and keeps them in its
            context. Default: this machine alone.
        file: The experiment's file, which errors name.

    Raises:
        MoefabricError: The experiment can't run.
    """
    _check_workload(spec, file, trains=trains)
    if trains and place is None:
        _check_torch(spec)
    if spec.hybrid is None:  # what is emulated of a cluster is known once it is simulated
        spec.check_emulated_size()
    if place is None and not all(choice.hosts for choice in spec.fabrics):
        lifecycle.require_root()
    started = datetime.now(UTC)
    switches = datapath.choose_datapath(spec.wiring.switch)[0].value
    scale = experiment_scale(spec, folder, switches)
    inputs = experiment_inputs(spec, folder)
    is_emulated = not all(choice.hosts for choice in spec.fabrics)
    planned = switches if is_emulated else _NO_SWITCHES
    header = HeaderLine(
        run_id=secrets.token_hex(8),
        experiment=spec.experiment,
        version=version("moefabric"),
        manifest=_manifest(spec, inputs, scale.slowest, planned, started, []),
        spec=spec.model_dump(mode="json"),
        fabrics=[choice.name for choice in spec.fabrics],
        flows=flows,
        trains=trains,
    )
    earlier = resumable(journal, header) if resume and journal is not None else None
    for remark in dict.fromkeys(chain.from_iterable(scale.remarks.values())):
        reporter.show_message(f"warning: {remark}")
    notes = [*run_notes(spec, trains=trains), *([] if trains else gating_notes(spec, folder))]
    for note in notes:
        reporter.show_message(f"note: {note}")
    reporter.show_message(run_estimate(spec, scale, trains=trains))
    with ExitStack() as undo:
        undo.enter_context(log_context(run=header.run_id))
        lines = undo.enter_context(_journal(journal, earlier))
        segment = SegmentLine(started=header.manifest.started or "", host=platform.node())
        lines.append(header if earlier is None else segment)
        setup = RunSetup(spec, folder, scale, reporter, external, lines, header, earlier, place)
        finished = _run_groups(setup)
    changed = [*reasons.WRONG_TESTBED.judge_each(changed_inputs(spec, folder, inputs))]
    finished.results = [with_findings(result, changed) for result in finished.results]
    used = finished.wiring.switch if finished.wiring else _NO_SWITCHES
    manifest = _manifest(spec, inputs, scale.slowest, used, started, finished.hosts)
    return _run_result(spec, earlier.resumed_manifest(manifest) if earlier else manifest, finished)


def run_notes(spec: ExperimentSpec, *, trains: bool) -> Iterator[str]:
    """Yield the notes of an experiment, and the section that a training doesn't use."""
    yield from spec.notes()
    if trains and spec.gating.is_given:
        yield "gating: isn't used while the program trains, as its own gates choose"


def run_estimate(spec: ExperimentSpec, scale: ExperimentScale, *, trains: bool = False) -> str:
    """Return what a run will do, and how long that takes: about so long on an idle machine."""
    fabrics, iterations = len(spec.fabrics), spec.training.iterations
    counts = [(fabrics, "fabric"), (iterations, "iteration")]
    words = [f"{count} {what}{'s' * (count != 1)}" for count, what in counts]
    words.append(f"scale {_scale_words(scale.by_fabric)}")
    if not trains:  # how long a program computes is its own affair
        words.append(_run_duration(spec, scale))
    return ", ".join(words)


def expected_duration(spec: ExperimentSpec, folder: Path) -> str:
    """Return how long a run takes on this machine, such as `about 20 s`, without trying its kernel.

    It is empty for a cluster of which no fabric has the size.
    """
    if spec.hybrid is None and any(spec.wiring.size_errors("wiring.")):
        return ""
    ovs, bpf = datapath.DatapathKind.KERNEL, datapath.DatapathKind.BPF
    switches = ovs if spec.wiring.switch == "ovs" else bpf
    return _run_duration(spec, experiment_scale(spec, folder, switches.value))


def _run_duration(spec: ExperimentSpec, scale: ExperimentScale) -> str:
    iterations_s = spec.training.iterations * scale.iterations_s
    return f"about {_rounded(len(spec.wiring_groups()) * _GROUP_S + iterations_s)}"


def _scale_words(scales: Mapping[str, ProposedScale]) -> str:
    """Return the scales of fabrics: one for all, or each with the names of its fabrics."""
    named = defaultdict[str, list[str]](list)
    for fabric, proposed in scales.items():
        named[f"{proposed.scale.bytes:g} x {proposed.scale.dilation:g}"].append(fabric)
    if len(named) == 1:
        return next(iter(named))
    return " and ".join(f"{scale} ({'/'.join(names)})" for scale, names in named.items())


def _rounded(wall_s: float) -> str:
    """Return a duration in one unit, without digits that an estimate lacks."""
    if wall_s < 90:
        return f"{5 * ceil(wall_s / 5)} s"
    if wall_s < 300:
        return f"{ceil(wall_s / 30) / 2:g} min"
    return f"{ceil(wall_s / 60)} min" if wall_s < 5400 else f"{wall_s / 3600:.1f} h"


def _run_result(
    spec: ExperimentSpec, manifest: result_model.Manifest, finished: "_Finished"
) -> result_model.RunResult:
    """Return the results of all fabrics in the order of the experiment."""
    order = [choice.name for choice in spec.fabrics]
    results = sorted(finished.results, key=lambda result: order.index(result.fabric))
    return result_model.RunResult(
        experiment=spec.experiment,
        version=version("moefabric"),
        manifest=manifest,
        results=with_circuit_use(
            with_cost_ratios(with_ratios(results)), [measured_use(result) for result in results]
        ),
        verdict=worst_verdict(result.fidelity.verdict for result in results),
    )


@contextmanager
def _journal(path: Path | None, earlier: JournalReader | None) -> Iterator[Journal]:
    """Open a new journal, one without a name, or that of a run that goes on.

    A file without a name is gone with the process, also if the process is killed.
    """
    with ExitStack() as undo:
        shown = path
        if path is None:
            file = undo.enter_context(tempfile.TemporaryFile())
            path, shown = Path(f"/proc/self/fd/{file.fileno()}"), Path(tempfile.gettempdir())
        size = earlier.size if earlier is not None else 0
        yield undo.enter_context(Journal(path, size, shown))


def _check_workload(spec: ExperimentSpec, file: Path | None, *, trains: bool) -> None:
    """Raise SpecError unless the experiment has a program to train, or gating to replay."""
    where = f"{file}: " if file is not None else ""
    if trains and spec.train is None:
        raise SpecError([(f"{where}train", NO_PROGRAM)])
    if not trains and not spec.gating.is_given:
        message = "is missing; `moefabric train` runs the program of this experiment"
        raise SpecError([(f"{where}gating", message)])


def _check_torch(spec: ExperimentSpec) -> None:
    """Raise UnsupportedError if this interpreter, by which emulated servers train, lacks PyTorch.

    Containers and real hosts have interpreters of their own.
    """
    wiring = spec.wiring
    with_own = len(wiring.containers) + len(wiring.real_hosts)
    if all(choice.hosts for choice in spec.fabrics) or with_own >= spec.servers_per_region:
        return
    if find_spec("torch") is None:
        raise UnsupportedError(f"{sys.executable} has no PyTorch: {TORCH_REMEDY}")


@dataclass
class _Finished:
    """Results of fabrics, the real servers, and the wiring of an emulated testbed."""

    results: list[result_model.FabricResult] = field(default_factory=list)
    hosts: list[result_model.HostRecord] = field(default_factory=list)
    wiring: FabricWiring | None = None

    def remaining(self, choices: Iterable[FabricChoice]) -> list[FabricChoice]:
        """Return the fabrics that have no result."""
        names = {result.fabric for result in self.results}
        return [choice for choice in choices if choice.name not in names]


def _run_groups(setup: RunSetup) -> _Finished:
    """Run all fabrics of an experiment that no earlier segment of the run has finished."""
    earlier, finished = setup.earlier, _Finished()
    for choices in setup.spec.wiring_groups():
        finished.results += [r for c in choices if earlier and (r := earlier.result(c.name))]
        while remaining := finished.remaining(choices):
            lost = [one for one in finished.hosts if one.lost]
            words = [f"{one.server} ({one.host}) was lost before" for one in lost]
            if findings := list(reasons.WRONG_TESTBED.judge_each(words)):
                finished.results += [_without_hosts(setup, one, findings) for one in remaining]
            else:  # after a loss of bytes the others get a testbed of their own
                _run_group(setup, remaining, finished)
    return finished


def _run_group(setup: RunSetup, choices: Sequence[FabricChoice], finished: _Finished) -> None:
    """Run fabrics of the same wiring on one testbed, until bytes are lost on one of them."""
    before = len(finished.results)
    with _group_testbed(setup, choices) as group:
        for choice in choices:
            result, is_lost = _run_fabric(setup, replace(group, choice=choice))
            finished.results.append(result)
            if is_lost:
                break
        group.hosts.iteration_ended()
        names = "/".join(result.fabric for result in finished.results[before:])
        finished.hosts += group.hosts.records(names)
    finished.wiring = group.wiring or finished.wiring


@contextmanager
def _group_testbed(setup: RunSetup, choices: Sequence[FabricChoice]) -> Iterator[RunContext]:
    """Bring up the testbed of fabrics with the same wiring, or connect to their real servers.

    Yields:
        The context of the first of them.
    """
    spec, reporter = setup.spec, setup.reporter
    name, hybrid, scale = _name(spec, choices[0]), None, setup.scale_of(choices[0])
    if spec.hybrid is not None:
        reporter.show_message(f"{choices[0].name}: simulating the whole cluster")
        hybrid = HybridJobs.of(spec, choices[0], name, scale, setup.folder)
    fabric = hybrid.fabric if hybrid else spec.build_fabric(choices[0], name, scale)
    transport = spec.transport_of(choices[0])
    with ExitStack() as undo:
        placement = None
        if setup.place is not None and not choices[0].hosts:
            placement = undo.enter_context(setup.place(fabric))
            fabric = fitted_fabric(fabric, placement, reporter)
        work = hybrid.whole.work if hybrid else workload_on(spec, fabric, setup.folder)
        jobs: AnyJobs = hybrid or Jobs.of(spec, fabric, work)
        pairs = jobs.server_pairs_between_regions
        context = partial(RunContext, setup, choices[0], fabric, work, hybrid)
        if choices[0].hosts:
            fleet, hosts = undo.enter_context(host_fleet(spec, fabric, transport, pairs))
            yield context(fleet, hosts)
            return
        names = "/".join(choice.name for choice in choices)
        reporter.show_message(f"{names}: bringing {fabric.name} up")

        def light_for_job(controllers: Controllers) -> None:
            controllers.light_for(choices[0].policy, work.total_demand(), fabric)

        testbed = running_testbed(
            fabric,
            spec.wiring,
            placement,
            setup.external,
            transport=transport,
            prepare=light_for_job if fabric.patch_panel else None,
            timeout_s=spec.controller_timeout / NS_PER_S,
            pairs_between_regions=pairs,
        )
        wiring, fleet, controllers = undo.enter_context(testbed)
        real = {server: one.login.host for server, one in spec.wiring.real_hosts.items()}
        hosts = RealHosts(fleet, real, machines=placed_elsewhere(fabric, placement))
        yield context(fleet, hosts, controllers, wiring)


def _run_fabric(setup: RunSetup, context: RunContext) -> tuple[result_model.FabricResult, bool]:
    """Replay or train on one fabric; return its result, and whether bytes were lost."""
    choice = context.choice
    if setup.header.trains:
        context = training_context(context)
    elif context.hybrid is None:
        context = replace(context, work=workload_of(choice, context.work))
    setup.journal.append(
        FabricLine(
            fabric=choice.name,
            policy=choice.policy,
            iterations=context.work.iterations,
            wiring=wiring_summary(context.fabric),
            paced=context.paced,
        )
    )
    replay = replay_on(context)
    result = judged(context, replay)
    setup.journal.append(ResultLine(result=without_rows(result)))
    return result, bool(replay.lost)


def _without_hosts(
    setup: RunSetup, choice: FabricChoice, findings: Sequence[RunFinding]
) -> result_model.FabricResult:
    """Return the invalid result of a fabric that can't be tried, as its hosts are lost."""
    fabric = setup.spec.build_fabric(choice, _name(setup.spec, choice), setup.scale_of(choice))
    empty = summed_outcomes(wiring_summary(fabric), choice.name, choice.policy, ())
    return with_findings(empty, findings)


def _name(spec: ExperimentSpec, choice: FabricChoice) -> str:
    """Return a name that no other run of the experiment has."""
    circuits = f"{choice.patch_panel_nics}p" if choice.patch_panel_nics else f"{choice.optical}o"
    nics = f"{circuits}{choice.electrical}e"
    return f"{spec.experiment[:14]}-{nics}-{os.getpid()}"


def _manifest(
    spec: ExperimentSpec,
    inputs: list[result_model.InputDigest],
    proposed: ProposedScale,
    switches: str,
    started: datetime,
    hosts: list[result_model.HostRecord],
) -> result_model.Manifest:
    scale = proposed.scale
    return result_model.Manifest(
        kernel=platform.release(),
        datapath=switches,
        crossbar=_NO_SWITCHES if switches == _NO_SWITCHES else bpf_crossbar.KIND,
        scale=result_model.ScaleFactors(
            bytes=scale.bytes, dilation=scale.dilation, frame_s=scale.frame_s, bound=proposed.bound
        ),
        seed=spec.seed,
        noise=spec.gating.noise,
        transport=spec.transport,
        congestion_control=transport_named(spec.transport).congestion_control,
        cores=usable_cores(),
        started=started.isoformat(timespec="seconds"),
        host=platform.node(),
        hosts=hosts or None,
        inputs=inputs,
        emulated_regions=list(spec.hybrid.emulated) if spec.hybrid is not None else None,
    )


def operations_total(spec: ExperimentSpec) -> int:
    """Return the number of steps whose progress a run shows: its collectives."""
    training = spec.training
    steps = len(spec.fabrics) * training.iterations * spec.model.build().layers * 4
    if not training.independent:
        return steps
    regions = len(spec.hybrid.emulated if spec.hybrid else spec.wiring.expanded_regions)
    return steps * training.micro_batches * regions // training.pp
