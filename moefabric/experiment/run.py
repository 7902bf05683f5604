"""A run: every fabric of an experiment brought up, replayed, judged and taken down, and what came of it as JSON."""

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from agents.fleet import Fleet
from controller.planner.plan import policy_named
from emulator import datapath
from moefabric.circuits import CircuitSet
from moefabric.console import Reporter
from moefabric.experiment.cpu import CpuSampler, idle_while
from moefabric.experiment.hosts import host_fleet
from moefabric.experiment.predict import proposed_scale
from moefabric.experiment.replay import Light, Replay
from moefabric.experiment.results import Json, ratios, result
from moefabric.experiment.testbed import Lights, standing
from moefabric.experiment.workload import Workload, workload_on
from moefabric.fidelity import Verdict, worst
from moefabric.management import Wiring
from moefabric.spec.experiment import ExperimentSpec, FabricChoice
from moefabric.topology import Fabric, Scale

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
        with standing(fabric, external, congestion, spec.wiring.switch) as (up, fleet, lights):
            results += [
                _replayed(spec, c, fabric, work, fleet, lights, up.remarks, reporter) for c in choices
            ]
            wiring = up
    results.sort(key=lambda entry: [choice.name for choice in spec.fabrics].index(entry["fabric"]))
    ratios(results)
    return {
        "experiment": spec.experiment,
        "version": version("moefabric"),
        "manifest": _manifest(spec, scale, wiring, started),
        "results": results,
        "verdict": str(worst(Verdict(entry["fidelity"]["verdict"]) for entry in results)),
    }


def _groups(spec: ExperimentSpec) -> Iterator[list[FabricChoice]]:
    """Fabrics with the same wiring are brought up once."""

    def key(choice: FabricChoice) -> tuple[bool, int, int]:
        return choice.hosts, choice.optical, choice.electrical

    for _, group in groupby(sorted(spec.fabrics, key=key), key=key):
        yield list(group)


def _name(spec: ExperimentSpec, choice: FabricChoice) -> str:
    """A name that no other run of the same experiment has."""
    return f"{spec.experiment[:14]}-{choice.optical}o{choice.electrical}e-{os.getpid()}"


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
        cold.iteration(0, work.warm_up())
    with _replay(spec, choice, fabric, work, fleet, lights, progress) as replay, CpuSampler() as cpu:
        runs = [replay.iteration(number, work.operations(number)) for number in range(work.iterations)]
    idle = idle_while(cpu.samples, replay.windows)
    entry = result(fabric, choice.name, choice.policy, runs, cpu_idle=idle, remarks=remarks)
    # The first layer's light is the last to be moved: the backward pass ends there. One region stands for all.
    first = fabric.regions[0]
    entry["demand"] = work.layers(work.iterations - 1)[0].demand.of(first.servers).array.tolist()
    of = f" in {first.name}" if len(fabric.regions) > 1 else ""
    entry["demand_label"] = f"dispatch of layer 0{of}, bytes from row's server to column's ({work.label})"
    entry["circuits"] = [[str(c.a), str(c.b)] for c in replay.circuits]
    seconds = sum(i["measured_s"] for i in entry["iterations"]) / len(runs)
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
    moving, lit = _light(choice, fabric, work, lights)
    policy, paced = policy_named(choice.policy), spec.transport == "paced"
    replay = Replay(fabric, policy, fleet, moving, lit, paced=paced, progress=progress)
    try:
        yield replay
    finally:
        replay.close()


def _light(
    choice: FabricChoice, fabric: Fabric, work: Workload, lights: Lights | None
) -> tuple[Mapping[str, Light], CircuitSet]:
    """Who moves the light of each region, and what is lit when the first iteration starts."""
    if lights is None or choice.policy == "eps":
        return {}, CircuitSet()
    lights.dark()
    if policy_named(choice.policy).moves:
        return lights.under(choice.policy), CircuitSet()
    return {}, lights.reconfigure(choice.policy, work.layers(0)[0].demand, fabric)


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
    """How many steps a run announces: the collectives of all fabrics."""
    return len(spec.fabrics) * spec.training.iterations * spec.model.layers * 4
