"""Experiments with the assumptions of the tables: the effect of each on the figures.

The calibrated GPU speed, the paths of the fat-tree, the uplinks of the 3:1 tree, and the circuits
and routing of TopoOpt are not in the paper. Each grid shows which assumption gives which figure.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from math import exp, isfinite, log
from statistics import mean, median
from typing import Final, get_args

from moefabric import rate_text, read_gating
from moefabric.api.workloads import ComputeModel
from moefabric_studies.grids import Grid, grid
from moefabric_studies.paper.calibration import CALIBRATION_NETWORK
from moefabric_studies.paper.cost_performance import front_grid, price_grid, unpublished_grid
from moefabric_studies.paper.evaluation import PRODUCTION_NETWORK, RATES, Evaluation
from moefabric_studies.paper.failures import slow_down
from moefabric_studies.paper.iteration import Iteration, compose_iteration
from moefabric_studies.paper.job import PaperJob
from moefabric_studies.paper.network import (
    NETWORKS,
    AllToAll,
    forwarding_s,
    oversubscribed_all_to_all,
    single_path_s,
    topoopt_all_to_all,
    topoopt_degree,
)
from moefabric_studies.paper.optics import control_grid, degree_grid, delay_grid
from moefabric_studies.paper.path_collisions import hashed_to_spread

_UTILISATIONS: Final = (0.4, 0.5, 0.6)
_TOLERANCE: Final = 0.1
"""Band of the counts with other GPU speeds. The tables' bands are narrower."""
_COLUMNS: Final = ("fat-tree", "rail-optimised", "topoopt", "mixnet")
_DEEPSEEK_TOPOOPT: Final = 1.3
"""The paper's average of TopoOpt's iteration time for DeepSeek-R1, relative to MixNet's (section
7.3). Those of the other models are in the published figures."""
_PAIR: Final = "llama-moe"
"""Model whose EP group has two servers: all its bytes use the circuits between them."""
_EXAMPLE: Final = "mixtral-8x22b"
_BATCH_JOBS: Final = ("mixtral-8x7b", "mixtral-8x22b")
_BATCHES: Final = (8, 32, 64)
"""Batches of section D.4, of which jobs are calibrated for the first."""
_BatchCase = tuple[float, float, int | None]
"""Part of its time that attention takes, the part of computation that doesn't grow with the batch,
and TopoOpt's circuits of the EP group if not the tables'."""
_BATCH_CASES: Final[dict[str, _BatchCase]] = {
    "as in the tables": (1.0, 0.0, None),
    "attention takes no time": (0.0, 0.0, None),
    "70 % of computation fixed": (1.0, 0.7, None),
    "all computation fixed": (1.0, 1.0, None),
    "2 circuits, one path": (1.0, 0.0, 2),
} | {f"2 circuits, one path, {100 * part:.0f} % fixed": (1.0, part, 2) for part in (0.5, 0.7, 0.9)}
_MEASURED_BPS: Final = 400e9
_RECORD: Final = "mixtral-8x7b-domains.npz"
_RECORDED_BLOCKS: Final = (0, 7, 15)
"""Blocks of the record, beside the training trace."""
_PAPER_EXPERTS_MS: Final = 100
"""Duration of Mixtral's experts above which the paper says theirs is."""
_FAILURE_BPS: Final = 400e9
_WEIGHT_READS: Final = 3
"""Reads of an expert's weights: forward, and backward for the gradients of inputs and weights."""


def sensitivity_grids(evaluation: Evaluation) -> tuple[Grid, ...]:
    """Return the grids of all experiments."""
    return (
        calibration_grid(evaluation),
        utilisation_grid(evaluation),
        topoopt_grid(evaluation),
        implied_circuits_grid(evaluation),
        oversubscription_grid(evaluation),
        unpublished_grid(evaluation),
        front_grid(evaluation),
        steps_grid(evaluation),
        batch_grid(evaluation),
        failure_grid(evaluation),
        price_grid(evaluation),
        blocks_grid(evaluation),
        control_grid(evaluation),
        degree_grid(evaluation),
        delay_grid(evaluation),
    )


def calibration_grid(evaluation: Evaluation) -> Grid:
    """Return the GPU speed that the fat-tree column needs, by model."""
    rows = []
    for name, calibrated in evaluation.calibrations.items():
        job, hashed = calibrated.job, hashed_to_spread(calibrated.job)
        training, rate = job.training, RATES[0]
        base, mixnet = (
            evaluation.iteration(name, network, rate) for network in (CALIBRATION_NETWORK, "mixnet")
        )
        unhashed_s = base.seconds - base.all_to_all_s + mixnet.all_to_all_s / hashed
        published = evaluation.published[name, rate, "mixnet"]
        rows.append(
            (
                name,
                f"{training.utilisation:.2f} of {training.gpu_flops / 1e12:.0f} Tflop/s",
                f"{job.layer_compute_s * 1e3:.0f} ms",
                f"{100 * calibrated.error:.1f} %",
                f"{training.utilisation / _UTILISATIONS[0]:.1f}x",
                f"{hashed:.2f}x",
                f"{training.utilisation / hashed:.2f}",
                f"{unhashed_s / calibrated.unit_s:.2f} ({published:.2f})",
            )
        )
    return grid("paper/calibration", rows)


def utilisation_grid(evaluation: Evaluation) -> Grid:
    """Return the rows within a tenth of the published figures, by GPU speed."""
    calibrated = {name: one.job for name, one in evaluation.calibrations.items()}
    cases = {"calibrated": calibrated}
    for utilisation in _UTILISATIONS:
        jobs = {name: job.with_utilisation(utilisation) for name, job in calibrated.items()}
        cases[f"{utilisation:.1f}"] = jobs
    rows = []
    for label, jobs in cases.items():
        errors = {network: _errors(evaluation, jobs, network) for network in _COLUMNS}
        base = errors[CALIBRATION_NETWORK]
        counts = (f"{sum(abs(e) <= _TOLERANCE for e in errors[n])}" for n in _COLUMNS)
        rows.append((label, *counts, f"{100 * min(base):+.0f} % to {100 * max(base):+.0f} %"))
    published = evaluation.published
    null = (
        sum(
            abs(published[job, rate, CALIBRATION_NETWORK] / value - 1) <= _TOLERANCE
            for (job, rate, one), value in published.items()
            if one == network
        )
        for network in _COLUMNS
    )
    rows.append(("null: the published fat-tree", *(f"{count}" for count in null), ""))
    return grid("paper/utilisation", rows, header=("GPU speed", *_COLUMNS, "fat-tree's errors"))


def _errors(evaluation: Evaluation, jobs: dict[str, PaperJob], network: str) -> list[float]:
    """Return the relative errors of a network's iteration times, with units from the fat-tree."""

    def ratios(name: str, network: str) -> list[float]:
        """Return a job's seconds over the published figures, at each rate."""
        at_first = evaluation.source.all_to_all(jobs[name], network, RATES[0])
        iterations = zip(RATES, _at_rates(jobs[name], at_first, network), strict=True)
        published = evaluation.published
        return [one.seconds / published[name, rate, network] for rate, one in iterations]

    units_s = {name: exp(mean(map(log, ratios(name, CALIBRATION_NETWORK)))) for name in jobs}
    return [ratio / units_s[name] - 1 for name in jobs for ratio in ratios(name, network)]


def topoopt_grid(evaluation: Evaluation) -> Grid:
    """Return TopoOpt's iteration time relative to MixNet's, by circuits and routing."""
    degrees, routings = (2, 3, 4, 5, 6), {"relays": forwarding_s, "one path": single_path_s}
    rows = []
    for name, job in evaluation.jobs.items():
        for routing, completion_s in routings.items():
            ratios = []
            for degree in degrees:
                at_first = topoopt_all_to_all(job, RATES[0], degree, completion_s)
                ratio = mean(_to_mixnet(evaluation, name, at_first, "topoopt"))
                ratios.append(f"{ratio:.2f}" if isfinite(ratio) else "no path")
            rows.append((name, routing, *ratios, f"{_published_topoopt(evaluation, name):.2f}"))
    return grid(
        "paper/topoopt",
        rows,
        header=("model", "routing", *(f"{degree} circuits" for degree in degrees), "paper"),
    )


def _published_topoopt(evaluation: Evaluation, name: str) -> float:
    if name not in evaluation.calibrations:
        return _DEEPSEEK_TOPOOPT
    published = evaluation.published
    return mean(
        published[name, rate, "topoopt"] / published[name, rate, "mixnet"] for rate in RATES
    )


def implied_circuits_grid(evaluation: Evaluation) -> Grid:
    """Return the circuits between two servers that the published TopoOpt figures imply."""
    job, unit_s = evaluation.jobs[_PAIR], evaluation.calibrations[_PAIR].unit_s
    circuits = []
    for rate in RATES:
        ours = evaluation.iteration(_PAIR, "topoopt", rate)
        on_one_s = ours.all_to_all_s * topoopt_degree(job)
        published_s = evaluation.published[_PAIR, rate, "topoopt"] * unit_s
        circuits.append(on_one_s / (published_s - ours.seconds + ours.all_to_all_s))
    return grid(
        "paper/implied-circuits",
        (("circuits of 8", *(f"{count:.1f}" for count in circuits)),),
        header=("", *map(rate_text, RATES)),
    )


def _to_mixnet(
    evaluation: Evaluation, name: str, at_first: AllToAll, network: str
) -> Iterator[float]:
    """Yield an iteration's time relative to MixNet's at every rate, given it at the first rate."""
    for rate, one in zip(RATES, _at_rates(evaluation.jobs[name], at_first, network), strict=True):
        yield one.seconds / evaluation.iteration(name, "mixnet", rate).seconds


def _at_rates(job: PaperJob, at_first: AllToAll, network: str) -> Iterator[Iteration]:
    """Yield an iteration at every rate, given its all-to-alls at the first."""
    for rate in RATES:
        eps_bytes_s = NETWORKS[network].eps_bytes_s(rate)
        yield compose_iteration(job, at_first.scaled(RATES[0] / rate), eps_bytes_s)


def oversubscription_grid(evaluation: Evaluation) -> Grid:
    """Return the 3:1 tree's times by the servers of a leaf, and with hashed flows."""
    job = evaluation.jobs[_EXAMPLE]
    base = evaluation.source.all_to_all(job, CALIBRATION_NETWORK, RATES[0])
    trees = {n: oversubscribed_all_to_all(job, RATES[0], n) for n in (8, 4, 2, 1)}
    cases = {f"{count} of a leaf": tree for count, tree in trees.items()}
    cases["1 of a leaf, flows hashed"] = cases["1 of a leaf"].scaled(hashed_to_spread(job))
    rows = [
        (
            label,
            f"{all_to_all.layer_s / base.layer_s:.2f}x",
            f"{max(_to_mixnet(evaluation, _EXAMPLE, all_to_all, 'oversubscribed')):.2f}x",
            "1.6x",
        )
        for label, all_to_all in cases.items()
    ]
    return grid("paper/oversubscription", rows)


def steps_grid(evaluation: Evaluation) -> Grid:
    """Return the duration of each step of a layer's forward pass, by the model of computation."""
    rows = []
    for name, job in evaluation.production_jobs.items():
        sent = evaluation.source.all_to_all(job, PRODUCTION_NETWORK, _MEASURED_BPS)
        for compute in get_args(ComputeModel):
            training = replace(job.training, compute=compute)
            changed = replace(job, training=training)
            layer_s = sent.dispatch_s + sent.combine_s
            times, model = changed.layer_times(layer_s, ("forward",)), job.model
            gate_s = 2 * model.hidden * model.experts * training.rank_tokens / training.rank_flops
            seconds = (
                times.attention_s - gate_s,
                gate_s,
                sent.dispatch_s,
                times.expert_s,
                times.busiest_expert_s,
                sent.combine_s,
            )
            shares = f"{100 * times.transfer_share:.0f} %", f"{100 * times.call_share:.0f} %"
            rows.append((name, compute, *(f"{1e3 * one:.1f}" for one in seconds), *shares))
    (_, _, *flops), (_, _, *roofline) = rows[:2]
    mean_ms, busiest_ms = map(float, flops[3:5])
    peak = 100 * job.training.utilisation / _PAPER_EXPERTS_MS
    return grid(
        "paper/steps",
        rows,
        added_ms=f"{float(roofline[4]) - busiest_ms:.1f}",
        busiest=f"{peak * busiest_ms:.0f}",
        mean=f"{peak * mean_ms:.0f}",
    )


def blocks_grid(evaluation: Evaluation) -> Grid:
    """Return each expert's tokens by block, relative to even ones, of a trained model's record."""
    record, rows = read_gating(evaluation.trace.with_name(_RECORD)), []
    for number, block in enumerate(_RECORDED_BLOCKS):
        tokens = record.matrix(0, number).sum(axis=0)
        rows.append((f"{block}", *(f"{one:.2f}" for one in tokens / tokens.mean())))
    header = ("block", *(f"expert {expert}" for expert in range(len(rows[0]) - 1)))
    return grid("paper/blocks", rows, header=header)


def batch_grid(evaluation: Evaluation) -> Grid:
    """Return TopoOpt's iteration time relative to MixNet's, by batch and changed assumption.

    In the tables, computation and all-to-alls grow with the batch alike.
    """
    rows = []
    for label, case in _BATCH_CASES.items():
        cells = product(_BATCH_JOBS, _BATCHES)
        ratios = (_batch_ratio(evaluation, job, n / _BATCHES[0], case) for job, n in cells)
        rows.append((label, *(f"{ratio:.2f}" for ratio in ratios)))
    roofs = (_roofline_ratio(evaluation, *cell) for cell in product(_BATCH_JOBS, _BATCHES))
    rows.insert(1, ("compute: roofline", *(f"{ratio:.2f}" for ratio in roofs)))
    job = evaluation.jobs[_BATCH_JOBS[0]]
    training, model, times = job.training, job.model, job.layer_times()
    read = _WEIGHT_READS * model.token_bytes / model.hidden * model.expert_weights / training.tp
    return grid(
        "paper/batch",
        rows,
        reads_ms=f"{1e3 * read * model.experts / training.ep / training.memory_bytes_s:.2f}",
        experts_ms=f"{1e3 * times.busiest_expert_s:.0f}",
        fixed_ms=f"{700 * times.seconds:.0f}",
    )


def _roofline_ratio(evaluation: Evaluation, name: str, micro_batch: int) -> float:
    """Return the ratio of the tables if memory bounds computation, too."""
    base = evaluation.jobs[name]
    job = replace(base, training=replace(base.training, compute="roofline"))
    job, larger = job.with_micro_batch(micro_batch), micro_batch / base.training.micro_batch
    slow, fast = (
        _at_rates(job, evaluation.all_to_all(name, network, RATES[0]).scaled(larger), network)
        for network in ("topoopt", "mixnet")
    )
    return mean(one.seconds / other.seconds for one, other in zip(slow, fast, strict=True))


def _batch_ratio(evaluation: Evaluation, name: str, larger: float, case: _BatchCase) -> float:
    attention, fixed, circuits = case
    job, routing = evaluation.jobs[name], single_path_s if circuits else forwarding_s
    attention_s = (1 - attention) * job.layer_passes * job.layer_times().attention_s

    def seconds(one: Iteration) -> float:
        compute_s = one.compute_s + one.straggler_s - attention_s
        growing_s = (1 - fixed) * compute_s + one.all_to_all_s + one.pipeline_s
        return fixed * compute_s + larger * growing_s + one.all_reduce_s

    topoopt = topoopt_all_to_all(job, RATES[0], circuits, routing)
    mixnet = evaluation.all_to_all(name, "mixnet", RATES[0])
    pairs = zip(_at_rates(job, topoopt, "topoopt"), _at_rates(job, mixnet, "mixnet"), strict=True)
    return mean(seconds(slow) / seconds(fast) for slow, fast in pairs)


_FAILURE_CASES: Final[dict[str, Callable[[PaperJob, float, str], float]]] = {
    "as in the tables": slow_down,
    "median of servers and NICs, not the worst": partial(slow_down, take=median),
    "circuits for every server (joint)": partial(slow_down, policy="joint"),
    "backup server of 2 electrical NICs": partial(slow_down, backup_nics=2),
    "both": partial(slow_down, policy="joint", backup_nics=2),
    "both, and the median": partial(slow_down, policy="joint", backup_nics=2, take=median),
    "all-reduces of the backward pass hidden": partial(slow_down, all_reduces=2),
}


def failure_grid(evaluation: Evaluation) -> Grid:
    """Return the slow-downs of the rows of failures, one assumption changed at a time."""
    deepseek, mixtral, rows = evaluation.jobs["deepseek-r1"], evaluation.jobs[_EXAMPLE], []
    for label, case in _FAILURE_CASES.items():
        gpu, other = (case(mixtral, _FAILURE_BPS, failed) for failed in ("gpu", "server"))
        nic, server = (case(deepseek, _FAILURE_BPS, failed) for failed in ("nic", "server"))
        rows.append((label, *(f"{100 * one:+.1f} %" for one in (nic, gpu, server, other - gpu))))
    return grid("paper/failures", rows)
