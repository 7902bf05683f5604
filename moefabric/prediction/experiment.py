"""Predictions of an experiment by fluid model and event simulation, without a fabric."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from pathlib import Path
from statistics import median
from typing import Final

from moefabric.config.code_inputs import code_digests
from moefabric.config.experiment import ExperimentSpec, FabricChoice
from moefabric.config.guarded_policy import guarded_policy, policy_faults
from moefabric.config.inputs import input_digests
from moefabric.core.errors import SpecError
from moefabric.core.units import Scale
from moefabric.planner.policy import known_demand
from moefabric.prediction.control_time import ControlPrediction
from moefabric.prediction.first_all_to_all import predicted_first_all_to_alls
from moefabric.prediction.hybrid_jobs import AnyJobs, HybridJobs
from moefabric.prediction.job_prediction import JobPrediction, TaskPlanner, predict_jobs
from moefabric.prediction.jobs import Jobs
from moefabric.prediction.scaling import (
    PlannedLoad,
    ProposedScale,
    dark_time_remarks,
    propose_scale,
    scale_remarks,
)
from moefabric.prediction.simulated_regions import simulated_regions
from moefabric.prediction.workload_loader import gating_notes, workload_of, workload_on
from moefabric.report.formatting import seconds
from moefabric.results.circuit_use import CircuitUse, condensed, joined, with_circuit_use
from moefabric.results.comparison import baseline, is_invalid, network_cost, with_cost_ratios
from moefabric.results.model import (
    ExperimentPrediction,
    FabricPrediction,
    InputDigest,
    SimulatedRegionCount,
)
from moefabric.results.statistics import median_ratio
from moefabric.results.verdict.fabric_result import wiring_summary
from moefabric.workload.iterations.substitution import Substitutions

_FORESEEN_ITERATIONS: Final = 4
"""Iterations of a run by which its scale is chosen."""


def predict_fabrics(spec: ExperimentSpec, folder: Path) -> ExperimentPrediction:
    """Return iteration, exposed communication and all-to-all seconds of each fabric.

    Args:
        spec: The experiment.
        folder: Folder of the experiment's file; relative paths start there.
    """
    predicted = [_fabric_prediction(spec, choice, folder) for choice in spec.fabrics]
    entries = with_cost_ratios([one.entry for one in predicted])
    entries = with_circuit_use(entries, [one.circuits for one in predicted])
    base = baseline(entries)
    base_s = predicted[entries.index(base)].all_to_alls_s if base and not is_invalid(base) else {}
    fabrics = []
    for entry, own in zip(entries, predicted, strict=True):
        ratio = None if is_invalid(entry) else median_ratio(own.all_to_alls_s, base_s)
        fabrics.append(entry.model_copy(update={"all_to_all_vs_eps": ratio}))
    inputs = experiment_inputs(spec, folder)
    notes = [*_notes(spec, moving=any(one.reconfigurations for one in fabrics))]
    notes += gating_notes(spec, folder)
    return ExperimentPrediction(
        experiment=spec.experiment, inputs=inputs, notes=notes, fabrics=fabrics
    )


def _notes(spec: ExperimentSpec, *, moving: bool) -> Iterator[str]:
    """Yield what a prediction assumes: what a run measures instead, and training."""
    control_s = ControlPrediction.fixed(spec.control_s).changed_s
    control = f"{seconds(control_s)} of control time for each change of circuits and " * moving
    yield (
        f"assumed: {control}the planned rates; the prediction beside a run takes the control times "
        "that it measured and the paces that it ordered"
    )
    if spec.train is not None and not spec.gating.is_given:
        yield "assumed: even gating; gating.trace replays what the gates of a training chose"
    yield from spec.notes()
    source = spec.gating.generator or (spec.gating.file.name if spec.gating.file else "")
    if "decode" in source:
        yield f"{source}: an iteration holds a backward pass, since moefabric models training only"


@dataclass(frozen=True)
class _Predicted:
    """The prediction of a fabric.

    Attributes:
        entry: Its figures.
        all_to_alls_s: Seconds of each all-to-all by region and request.
        circuits: The circuits that each of them had.
    """

    entry: FabricPrediction
    all_to_alls_s: Mapping[tuple[str, Hashable], float]
    circuits: CircuitUse


def experiment_inputs(spec: ExperimentSpec, folder: Path) -> list[InputDigest]:
    """Return the digests of an experiment, its files and the code of its plug-ins."""
    digests = [*input_digests(spec, folder), *code_digests(spec)]
    return [InputDigest(key=key, file=file, sha256=value) for key, file, value in digests]


def changed_inputs(spec: ExperimentSpec, folder: Path, before: Sequence[InputDigest]) -> list[str]:
    """Describe the files of an experiment that have other digests than before, or are gone."""
    try:
        now = experiment_inputs(spec, folder)
    except SpecError as error:
        return [f"an input is gone: {line}" for line in str(error).splitlines()]
    digests = {one.key: one for one in now}
    changed = [was for was in before if digests.get(was.key) != was]
    return [f"{was.key}: {was.file} was changed during the run" for was in changed]


def _fabric_prediction(spec: ExperimentSpec, choice: FabricChoice, folder: Path) -> _Predicted:
    fabric, some = spec.build_fabric(choice, "predict", Scale()), simulated_regions(spec, choice)
    simulated = some.part.build_fabric(choice, "predict", Scale())
    work = workload_of(choice, workload_on(some.part, simulated, folder))
    policy = guarded_policy(choice.policy)
    jobs = Jobs.of(some.part, simulated, work, spec.training.dp)
    planner = jobs.planner(policy, spec.control_s, choice.first_policy)
    predictions = predict_all(jobs, planner, work.iterations)
    gating = None
    if choice.dispatch_light == "predict":
        gating = {number: work.predictions(number) for number in range(work.iterations)}
    estimate = some.estimate(predictions)

    def total(field: str) -> float:
        return float(sum(getattr(prediction, field) for prediction in predictions))

    dispatches = [prediction.dispatches for prediction in predictions]
    spine_share = total("spine_bytes") / max(1.0, total("sent_bytes"))
    all_to_alls_s: dict[tuple[str, Hashable], float] = {
        (region, (n, *key)): took_s
        for n, one in enumerate(predictions)
        for (*key, region), took_s in one.all_to_alls_s.items()
    }
    entry = FabricPrediction(
        fabric=choice.name,
        policy=choice.policy,
        wiring=wiring_summary(fabric),
        iteration_s=estimate.iteration_s,
        compute_s=estimate.compute_s,
        exposed_comm_s=estimate.exposed_comm_s,
        all_to_all_s=median(all_to_alls_s.values()),
        light_share=total("optical_bytes") / max(1.0, total("bytes")),
        spine_share=spine_share if fabric.spines else None,
        reconfigurations=some.count_in_all(total("reconfigurations")),
        cost=network_cost(fabric, estimate.iteration_s),
        first=choice.dispatch_light,
        knows=known_demand(policy, choice.dispatch_light),
        first_all_to_all=predicted_first_all_to_alls(dispatches, gating),
        **FabricPrediction.choices(choice),
        policy_faults=list(policy_faults(policy)),
        simulated=SimulatedRegionCount(
            regions=some.regions,
            all_regions=some.all_regions,
            is_sample=some.is_sample,
            iteration_error_s=estimate.error_s,
        ),
    )
    return _Predicted(entry, all_to_alls_s, _circuit_use(predictions))


def _circuit_use(predictions: Sequence[JobPrediction]) -> CircuitUse:
    """Return the circuits of all all-to-alls by region and number."""
    pairs = cache(lambda circuits: joined(circuit.pair for circuit in circuits))
    return condensed(
        {
            (region, (n, *key)): pairs(circuits)
            for n, prediction in enumerate(predictions)
            for (*key, region), circuits in prediction.circuits.items()
        }
    )


@dataclass(frozen=True)
class ExperimentScale:
    """Scales of an experiment's fabrics; fabrics of one wiring share a testbed, and its scale.

    Attributes:
        by_fabric: The scale of each fabric, by name.
        remarks: Why measurements at this scale mean little here, by name of the fabric.
        iterations_s: Wall seconds of one iteration on every fabric, together: an estimate.
    """

    by_fabric: Mapping[str, ProposedScale]
    remarks: Mapping[str, Sequence[str]]
    iterations_s: float

    @property
    def slowest(self) -> ProposedScale:
        """The scale of greatest dilation."""
        return max(self.by_fabric.values(), key=lambda proposed: proposed.scale.dilation)


def experiment_scale(spec: ExperimentSpec, folder: Path, datapath: str) -> ExperimentScale:
    """Return the scale of each fabric, and why measurements at these scales mean little here.

    A scale of `auto` becomes, for each wiring, the fastest at which this machine is faithful. Model
    times don't depend on it. Real servers get the scale of the slowest emulated fabric.
    """
    given = spec.given_scale()
    by_fabric: dict[str, ProposedScale] = {}
    remarks: dict[str, Sequence[str]] = {}
    iterations_s = 0.0
    for choices in spec.wiring_groups():
        loads = [_planned_load(spec, choice, folder) for choice in choices if not choice.hosts]
        if not loads:
            continue
        proposed = ProposedScale(given) if given else _proposed_scale(spec, loads, datapath)
        warnings = scale_remarks(loads, proposed.scale, datapath)
        by_fabric.update((choice.name, proposed) for choice in choices)
        for choice in choices:
            moves = choice.planner.reconfigures and not choice.hosts
            dark = dark_time_remarks(loads[0].fabric, proposed.scale) if moves else []
            remarks[choice.name] = [*warnings, *dark]
        iterations_s += proposed.scale.dilation * sum(load.unskipped_s for load in loads)
    emulated = ExperimentScale(by_fabric, remarks, iterations_s)
    slowest = emulated.slowest if by_fabric else ProposedScale(given or Scale())
    names = [choice.name for choice in spec.fabrics]
    return replace(emulated, by_fabric={name: by_fabric.get(name, slowest) for name in names})


def _proposed_scale(
    spec: ExperimentSpec, loads: Sequence[PlannedLoad], datapath: str
) -> ProposedScale:
    """Return the scale for fabrics of one wiring; sizes of a program that trains are its own."""
    proposed = propose_scale(loads, datapath)
    if spec.train is None:
        return proposed
    scale = proposed.scale
    factor = spec.train.byte_scale(spec.model.build(), spec.training.build())
    dilation = max(scale.dilation, ceil(scale.bytes * scale.dilation / factor))
    return replace(proposed, scale=replace(scale, bytes=factor, dilation=dilation))


def _planned_load(spec: ExperimentSpec, choice: FabricChoice, folder: Path) -> PlannedLoad:
    """Return the load of the first iterations of all jobs on the emulated part of a fabric.

    Iterations differ: a demand that fills all NICs needs many more flows than one that doesn't.
    """
    if spec.hybrid is not None:
        hybrid = HybridJobs.of(spec, choice, "scale", Scale(), folder)
        fabric, jobs = hybrid.fabric, hybrid.whole
    else:
        fabric = spec.build_fabric(choice, "scale", Scale())
        jobs = Jobs.of(spec, fabric, workload_of(choice, workload_on(spec, fabric, folder)))
    count = min(spec.training.iterations, _FORESEEN_ITERATIONS)
    policy = guarded_policy(choice.policy)
    planner = jobs.planner(policy, spec.control_s, choice.first_policy)
    predictions = predict_all(jobs, planner, count)
    return PlannedLoad.greatest(
        [PlannedLoad.of(fabric, predictions[number::count]) for number in range(count)]
    )


def predict_all(jobs: AnyJobs, planner: TaskPlanner, iterations: int) -> list[JobPrediction]:
    """Return the prediction of each iteration of each job, with no component lost."""
    planned = [
        planner.plan(jobs.tasks(job, number, Substitutions()) for number in range(iterations))
        for job in jobs.all
    ]
    return predict_jobs(jobs.fabric, planned)
