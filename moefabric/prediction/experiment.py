"""Predictions of an experiment by fluid model and event simulation, without a fabric."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from statistics import fmean, median

from moefabric.config.experiment import ExperimentSpec, FabricChoice
from moefabric.config.guarded_policy import guarded_policy, policy_faults
from moefabric.config.inputs import input_digests
from moefabric.core.errors import SpecError
from moefabric.core.units import Scale
from moefabric.planner.known_demand import known_demand
from moefabric.prediction.first_all_to_all import predicted_first_all_to_alls
from moefabric.prediction.hybrid_jobs import AnyJobs, HybridJobs
from moefabric.prediction.job_prediction import JobPrediction, TaskPlanner, predict_jobs
from moefabric.prediction.jobs import Jobs
from moefabric.prediction.scaling import PlannedLoad, ProposedScale, propose_scale, scale_remarks
from moefabric.prediction.simulated_regions import simulated_regions
from moefabric.prediction.workload_loader import workload_of, workload_on
from moefabric.results.comparison import baseline, network_cost, with_cost_ratios
from moefabric.results.model import (
    ExperimentPrediction,
    FabricPrediction,
    InputDigest,
    SimulatedRegionCount,
)
from moefabric.results.verdict.fabric_result import wiring_summary
from moefabric.workload.iterations.substitution import Substitutions


def predict_fabrics(spec: ExperimentSpec, folder: Path) -> ExperimentPrediction:
    """Return iteration, exposed communication and all-to-all seconds of each fabric.

    Args:
        spec: The experiment.
        folder: Folder of the experiment's file; relative paths start there.
    """
    fabrics = [_fabric_prediction(spec, choice, folder) for choice in spec.fabrics]
    base = baseline(fabrics)
    base_s = base.all_to_all_s if base else None
    entries = []
    for entry in with_cost_ratios(fabrics):
        ratio = entry.all_to_all_s / base_s if base_s is not None else None
        entries.append(entry.model_copy(update={"all_to_all_vs_eps": ratio}))
    inputs = experiment_inputs(spec, folder)
    return ExperimentPrediction(experiment=spec.experiment, inputs=inputs, fabrics=entries)


def experiment_inputs(spec: ExperimentSpec, folder: Path) -> list[InputDigest]:
    """Return the digests of an experiment and of the files that it names."""
    digests = input_digests(spec, folder)
    return [InputDigest(key=key, file=file, sha256=value) for key, file, value in digests]


def changed_inputs(spec: ExperimentSpec, folder: Path, before: Sequence[InputDigest]) -> list[str]:
    """Describe the files of an experiment that have other digests than before, or are gone."""
    try:
        now = experiment_inputs(spec, folder)
    except SpecError as error:
        return [f"an input is gone: {line}" for line in str(error).splitlines()]
    pairs = zip(before, now, strict=True)
    return [f"{was.key}: {was.file} was changed during the run" for was, one in pairs if was != one]


def _fabric_prediction(
    spec: ExperimentSpec, choice: FabricChoice, folder: Path
) -> FabricPrediction:
    fabric, some = spec.build_fabric(choice, "predict", Scale()), simulated_regions(spec, choice)
    simulated = some.part.build_fabric(choice, "predict", Scale())
    work = workload_of(choice, workload_on(some.part, simulated, folder))
    policy = guarded_policy(choice.policy)
    jobs = Jobs.of(some.part, simulated, work, spec.training.dp)
    predictions = predict_all(jobs, jobs.planner(policy, spec.control_s), work.iterations)
    gating = None
    if choice.dispatch_light == "predict":
        gating = {number: work.predictions(number) for number in range(work.iterations)}
    estimate = some.estimate(predictions)

    def total(field: str) -> float:
        return float(sum(getattr(prediction, field) for prediction in predictions))

    dispatches = [prediction.dispatches for prediction in predictions]
    spine_share = total("spine_bytes") / max(1.0, total("sent_bytes"))
    return FabricPrediction(
        fabric=choice.name,
        policy=choice.policy,
        wiring=wiring_summary(fabric),
        iteration_s=estimate.iteration_s,
        compute_s=estimate.compute_s,
        exposed_comm_s=estimate.iteration_s - estimate.compute_s,
        all_to_all_s=_all_to_all_s(predictions),
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


def _all_to_all_s(predictions: Sequence[JobPrediction]) -> float:
    """Return the seconds of an all-to-all: the mean over kinds of the median of each kind.

    Kinds differ: if a dispatch is in FP8, its combine has about twice its bytes.
    """
    by_kind: dict[tuple[str, str], list[float]] = {}
    for prediction in predictions:
        for kind, seconds in prediction.collectives_s.items():
            by_kind.setdefault(kind, []).extend(seconds)
    return fmean(map(median, by_kind.values()))


def proposed_scale(
    spec: ExperimentSpec, folder: Path, datapath: str
) -> tuple[ProposedScale, list[str]]:
    """Return the experiment's scale, and why measurements at this scale mean little here.

    A scale of `auto` becomes one at which this machine is faithful.
    """
    loads = [_planned_load(spec, choice, folder) for choice in spec.fabrics if not choice.hosts]
    given, exposed_s = spec.given_scale(), sum(load.exposed_s for load in loads)
    if given is not None:
        proposed = ProposedScale(given, iterations_s=exposed_s * given.dilation)
        return proposed, scale_remarks(loads, given, datapath)
    proposed = propose_scale(loads, datapath)
    if spec.train is not None:
        scale = proposed.scale
        factor = spec.train.byte_scale(spec.model.build(), spec.training.build())
        dilation = max(scale.dilation, ceil(scale.bytes * scale.dilation / factor))
        proposed = replace(proposed, scale=replace(scale, bytes=factor, dilation=dilation))
    proposed = replace(proposed, iterations_s=exposed_s * proposed.scale.dilation)
    return proposed, scale_remarks(loads, proposed.scale, datapath)


def _planned_load(spec: ExperimentSpec, choice: FabricChoice, folder: Path) -> PlannedLoad:
    """Return the load of the first iteration of all jobs on the emulated part of a fabric."""
    policy = guarded_policy(choice.policy)
    if spec.hybrid is not None:
        hybrid = HybridJobs.of(spec, choice, "scale", Scale(), folder)
        fabric, jobs = hybrid.fabric, hybrid.whole
    else:
        fabric = spec.build_fabric(choice, "scale", Scale())
        jobs = Jobs.of(spec, fabric, workload_of(choice, workload_on(spec, fabric, folder)))
    return PlannedLoad.of(fabric, predict_all(jobs, jobs.planner(policy, spec.control_s), 1))


def predict_all(jobs: AnyJobs, planner: TaskPlanner, iterations: int) -> list[JobPrediction]:
    """Return the prediction of each iteration of each job, with no component lost."""
    planned = [
        planner.plan(jobs.tasks(job, number, Substitutions()) for number in range(iterations))
        for job in jobs.all
    ]
    return predict_jobs(jobs.fabric, planned)
