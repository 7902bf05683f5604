"""A run: every fabric of an experiment brought up, replayed, judged and taken down, and what came of it as JSON."""

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from agents.fleet import Fleet
from controller.planner.plan import policy_named
from emulator import datapath
from moefabric.circuits import CircuitSet
from moefabric.console import Reporter
from moefabric.experiment.apart import Apart
from moefabric.experiment.costs import against_eps
from moefabric.experiment.cpu import CpuSampler, idle_while
from moefabric.experiment.enduring import Enduring
from moefabric.experiment.first import first_told
from moefabric.experiment.hosts import host_fleet
from moefabric.experiment.jobs import Jobs
from moefabric.experiment.lighting import Light
from moefabric.experiment.predict import proposed_scale
from moefabric.experiment.replay import Replay
from moefabric.experiment.results import Json, ratios, result
from moefabric.experiment.suffering import Found, enduring, felt, injecting, noted_of_controller, suffered
from moefabric.experiment.testbed import Lights, standing
from moefabric.experiment.workload import Workload, workload_on
from moefabric.fidelity import Verdict, worst
from moefabric.management import RunDir, Wiring
from moefabric.spec.experiment import ExperimentSpec, FabricChoice
from moefabric.topology import Fabric, Scale
from moefabric.units import NS_PER_S

CONGESTION = {"paced": "reno", "tcp": "cubic"}
"""Congestion control of the agents' connections. A paced flow needs none, and reno leaves it alone: without loss its window only
opens, where cubic's hystart closes it at the first queue (RFC 9406)."""


def run(
    spec: ExperimentSpec, folder: Path, reporter: Reporter, external: frozenset[str] = frozenset()
) -> Json:
    """Run an experiment whose file lies in `folder`. Returns the run's JSON; SpecError, FabricError and the like where it can't run."""
    started = datetime.now(UTC)
    moved_by = datapath.choose(spec.wiring.switch).datapath.name
    scale = proposed_scale(spec, folder, moved_by)
    results: list[Json] = []
    wiring: Wiring | None = None
    for choices in _groups(spec):
        fabric = spec.wired(choices[0], _name(spec, choices[0]), scale)
        work = workload_on(spec, fabric, folder)
        if choices[0].hosts:
            with host_fleet(spec, fabric) as fleet:
                results += [_replayed(spec, c, fabric, work, fleet, None, (), reporter) for c in choices]
            continue
        reporter.say(f"{'/'.join(c.name for c in choices)}: bringing {fabric.name} up")
        congestion = CONGESTION[spec.transport]
        lay = partial(_laid, choices[0].policy, work, fabric) if fabric.panel else None
        patience_s = spec.patience / NS_PER_S
        beyond = Jobs(fabric, work, spec.training.shape).beyond
        with standing(fabric, external, congestion, spec.wiring.switch, lay, patience_s, beyond) as (
            up,
            fleet,
            lights,
        ):
            results += [
                _replayed(spec, c, fabric, work, fleet, lights, up.remarks, reporter) for c in choices
            ]
            wiring = up
    results.sort(key=lambda entry: [choice.name for choice in spec.fabrics].index(entry["fabric"]))
    ratios(results)
    against_eps(results)
    return {
        "experiment": spec.experiment,
        "version": version("moefabric"),
        "manifest": _manifest(spec, scale, wiring, started),
        "results": results,
        "verdict": str(worst(Verdict(entry["fidelity"]["verdict"]) for entry in results)),
    }


def _groups(spec: ExperimentSpec) -> Iterator[list[FabricChoice]]:
    """Fabrics with the same wiring are brought up once; a patch panel is laid anew for each policy."""

    def key(choice: FabricChoice) -> tuple[bool, int, int, int, str, str]:
        eps = (choice.eps or spec.wiring.eps).model_dump_json()
        return (
            choice.hosts, choice.optical, choice.electrical, choice.patched, eps,
            choice.policy if choice.patched else "",
        )  # fmt: skip

    for _, group in groupby(sorted(spec.fabrics, key=key), key=key):
        yield list(group)


def _name(spec: ExperimentSpec, choice: FabricChoice) -> str:
    """A name that no other run of the same experiment has."""
    nics = f"{choice.patched}p" if choice.patched else f"{choice.optical}o{choice.electrical}e"
    return f"{spec.experiment[:14]}-{nics}-{os.getpid()}"


def _replayed(
    spec: ExperimentSpec,
    choice: FabricChoice,
    fabric: Fabric,
    work: Workload,
    fleet: Fleet,
    lights: Lights | None,
    remarks: tuple[str, ...],
    reporter: Reporter,
) -> Json:
    progress: Callable[[str], None] = lambda what: reporter.step(f"{choice.name}: {what}")  # noqa: E731
    with _replay(spec, choice, fabric, work, fleet, lights) as cold:
        Enduring(cold, work, fleet).warm_up()
    if spec.training.apart:
        return _side_by_side(spec, choice, fabric, work, fleet, lights, remarks, reporter)
    work = work.under(choice.first)
    run_dir = RunDir.named(fabric.name) if lights is not None else None
    with (
        _replay(spec, choice, fabric, work, fleet, lights, progress) as replay,
        enduring(spec, choice, fabric, replay, work, fleet, run_dir) as job,
        CpuSampler() as cpu,
    ):
        runs = [job.iteration(number) for number in range(work.iterations)]
        undergone = suffered(job)
    idle = idle_while(cpu.samples, replay.windows)
    entry = result(
        fabric, choice.name, choice.policy, runs, cpu_idle=idle, remarks=remarks, suffered=undergone
    )
    guesses = {run.number: work.guesses(run.number) for run in runs}
    entry["first_all_to_all"] = first_told(
        fabric, choice.policy, choice.first, [run for run in runs if not run.stood_in], guesses
    )
    return _shown(entry, choice, fabric, work, replay.circuits, reporter)


def _side_by_side(
    spec: ExperimentSpec,
    choice: FabricChoice,
    fabric: Fabric,
    work: Workload,
    fleet: Fleet,
    lights: Lights | None,
    remarks: tuple[str, ...],
    reporter: Reporter,
) -> Json:
    """As `_replayed`, each region by itself."""
    work, run_dir = work.under(choice.first), RunDir.named(fabric.name)
    moving, lit = _light(spec, choice, fabric, work, lights)
    with injecting(spec, choice, fabric, run_dir) as injector, CpuSampler() as cpu:
        apart = Apart(
            fabric, policy_named(choice.policy), fleet, moving, lit, paced=spec.transport == "paced",
            patience_s=spec.patience / NS_PER_S, begins=injector.iteration,
            progress=lambda what: reporter.step(f"{choice.name}: {what}"),
        )  # fmt: skip
        try:
            runs = apart.run(Jobs(fabric, work, spec.training.shape).programmes, work.iterations)
        finally:
            apart.close()
        found = Found(run_dir)
        found.look()
        undergone = felt(found, apart.lasted, apart.clock)
    idle = idle_while(cpu.samples, apart.windows)
    entry = result(
        fabric, choice.name, choice.policy, runs, cpu_idle=idle, remarks=remarks, suffered=undergone
    )
    entry["shape"] = asdict(spec.training.shape)
    guesses = {run.number: work.guesses(run.number) for run in runs}
    entry["first_all_to_all"] = first_told(fabric, choice.policy, choice.first, runs, guesses)
    return _shown(entry, choice, fabric, work, apart.circuits, reporter)


def _shown(
    entry: Json,
    choice: FabricChoice,
    fabric: Fabric,
    work: Workload,
    circuits: CircuitSet,
    reporter: Reporter,
) -> Json:
    """The entry with what its pictures show besides."""
    # The first layer's light is the last to be moved: the backward pass ends there. One region stands for all.
    first = fabric.regions[0]
    entry["demand"] = work.layers(work.iterations - 1)[0].demand.of(first.servers).array.tolist()
    of = f" in {first.name}" if len(fabric.regions) > 1 else ""
    entry["demand_label"] = f"dispatch of layer 0{of}, bytes from row's server to column's ({work.label})"
    entry["circuits"] = [[str(c.a), str(c.b)] for c in circuits]
    seconds = sum(i["measured_s"] for i in entry["iterations"]) / len(entry["iterations"])
    reporter.say(f"{choice.name}: {seconds:.3f} s an iteration, verdict {entry['fidelity']['verdict']}")
    return entry


@contextmanager
def _replay(
    spec: ExperimentSpec,
    choice: FabricChoice,
    fabric: Fabric,
    work: Workload,
    fleet: Fleet,
    lights: Lights | None,
    progress: Callable[[str], None] = lambda _: None,
) -> Iterator[Replay]:
    """A replay that starts from the dark, or, where the light never moves, from all the light that it will have."""
    moving, lit = _light(spec, choice, fabric, work, lights)
    policy, paced = policy_named(choice.policy), spec.transport == "paced"
    replay = Replay(fabric, policy, fleet, moving, lit, paced=paced, progress=progress)
    try:
        yield replay
    finally:
        replay.close()


def _light(
    spec: ExperimentSpec,
    choice: FabricChoice,
    fabric: Fabric,
    work: Workload,
    lights: Lights | None,
) -> tuple[Mapping[str, Light], CircuitSet]:
    """Who moves the light of each region, and what is lit when the first iteration starts."""
    if lights is None or choice.policy == "eps":
        return {}, CircuitSet()
    if fabric.panel:
        return {}, _laid(choice.policy, work, fabric, lights)
    lights.dark()
    if policy_named(choice.policy).moves:
        noted = partial(noted_of_controller, RunDir.named(fabric.name))
        return lights.under(choice.policy, spec.patience / NS_PER_S, noted), CircuitSet()
    return {}, _laid(choice.policy, work, fabric, lights)


def _laid(policy: str, work: Workload, fabric: Fabric, lights: Lights) -> CircuitSet:
    """Light for the whole job; what is lit then. What is there already stays."""
    return lights.reconfigure(policy, work.whole_demand(), fabric)


def _manifest(spec: ExperimentSpec, scale: Scale, wiring: Wiring | None, started: datetime) -> dict[str, Any]:
    return {
        "kernel": platform.release(),
        "datapath": wiring.switch if wiring else "none",
        "crossbar": wiring.crossbar if wiring else "none",
        "scale": {"bytes": scale.bytes, "dilation": scale.dilation},
        "seed": spec.seed,
        "noise": spec.gating.noise,
        "transport": spec.transport,
        "congestion_control": CONGESTION[spec.transport],
        "cores": os.cpu_count(),
        "started": started.isoformat(timespec="seconds"),
        "host": platform.node(),
    }


def operations_total(spec: ExperimentSpec) -> int:
    """How many steps a run announces: the collectives of all fabrics, of each region by itself where they go apart."""
    training = spec.training
    steps = len(spec.fabrics) * training.iterations * spec.model.layers * 4
    if not training.apart:
        return steps
    return steps * training.micro_batches * len(spec.wiring.each_region) // training.pp
