"""The frontier study: every policy on every network, and the effect of limited forwarding."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Final, NamedTuple, TypeVar

import numpy as np
from pydantic import BaseModel

from moefabric.api.results import ProgressReporter
from moefabric.api.units import Units
from moefabric_studies.paper import loader
from moefabric_studies.paper.evaluation import RATES, load_evaluation
from moefabric_studies.paper.frontier import results
from moefabric_studies.paper.frontier.jobs import (
    REGION_SIZES,
    RegionJob,
    region_jobs,
    training_trace_demands,
)
from moefabric_studies.paper.frontier.networks import (
    EPS,
    EVEN_SPILL,
    JOINT,
    MIXNET,
    MOVED_MULTIHOP,
    MULTIHOP,
    NICS,
    POLICIES,
    SPILL,
    Comparison,
    FrontierPolicy,
    optical_nics,
    server_usd,
)
from moefabric_studies.paper.iteration import Iteration, compose_iteration
from moefabric_studies.paper.job import FloatArray, PaperJob
from moefabric_studies.paper.network import AllToAll, nic_bytes_s

SETTLE_S: Final = 0.025
"""Settle time of the OCS in `Point.settling_iteration_s`."""
CORNER: Final = 7
"""Optical NICs of the experiments with limits, mixes and the trace."""
FORWARDING_NICS: Final = (0.0, 0.125, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0)
"""Limits of forwarding, in NICs of a server."""
_PERMUTATIONS: Final = ("exchange", "cycle")
_SHARES: Final = tuple(step / 8 for step in range(9))
_MOVE_SHARES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
_MOVED_AND_FIXED: Final = ((MIXNET, EVEN_SPILL), (JOINT, EVEN_SPILL), (MOVED_MULTIHOP, MULTIHOP))
_MOVE_SPLITS: Final = (7, 6, 4)
"""Circuit NICs for which circuits that move are compared with circuits that don't."""
_TRACE_STEPS: Final = 40
"""Distance of the training steps whose all-to-alls are compared."""
_TRACE_EXPERTS: Final = 16
_GPUS: Final = {
    "A100, 312 Tflop/s": 312e12,
    "H100, 989 Tflop/s": 989e12,
    "B200, 2,250 Tflop/s": 2250e12,
}
"""Dense bfloat16 peak of NVIDIA's data sheets."""
_GPU_UTILISATION: Final = 0.4
_EXAMPLE: Final = "mixtral-8x22b"
_Kind = TypeVar("_Kind", bound=BaseModel)


class _Region(NamedTuple):
    """A job with its compared all-to-alls by number of optical NICs, one for each layer."""

    job: RegionJob
    comparisons: dict[int, tuple[Comparison, ...]]


def _compared(job: RegionJob) -> _Region:
    return _Region(job, {n: tuple(Comparison(one, n) for one in job.demands) for n in range(NICS)})


def step_count(folder: Path, sizes: Sequence[int] = REGION_SIZES) -> int:
    """Return the steps of the study that a progress reporter sees.

    Args:
        folder: Folder of the paper's jobs.
        sizes: Servers of the regions.
    """
    jobs = len(loader.load_section(loader.JobsFile, folder / "jobs.yaml").jobs)
    return len(sizes) * (2 * jobs + len(_PERMUTATIONS)) + len(_trace_sizes(sizes))


def _trace_sizes(sizes: Sequence[int]) -> list[int]:
    """Return the regions for which the trace has an expert for each server."""
    return [servers for servers in sizes if servers <= _TRACE_EXPERTS]


def run_study(
    folder: Path,
    reporter: ProgressReporter,
    sizes: Sequence[int] = REGION_SIZES,
    units: Units | None = None,
) -> results.FrontierResults:
    """Compute the study.

    Args:
        folder: Folder of the paper's jobs: `examples/paper`.
        reporter: Receives progress, `step_count` steps.
        sizes: Servers of the regions.
        units: Keeps the steps that have ended. Default: nothing does.

    Raises:
        SpecError: If a file of the folder can't be used.
    """
    start, kept = time.process_time(), units or Units()

    def step(name: str, kind: type[_Kind], compute: Callable[[], Iterator[_Kind]]) -> list[_Kind]:
        rows = kept.value(name, list[kind], lambda: list(compute()))  # type: ignore[valid-type]
        reporter.advance(name)
        return rows

    evaluation = load_evaluation(folder)
    regions = list(map(_compared, region_jobs(folder, evaluation.jobs, sizes)))
    points, limits = list[results.Point](), list[results.Limit]()
    for region in regions:
        name = f"{region.job.model}, {region.job.servers} servers"
        points += step(name, results.Point, partial(_points, region))
    for region in regions:
        name = f"{region.job.model}, {region.job.servers} servers: limits"
        limits += step(name, results.Limit, partial(_limits, region.job))
    mixes, moves = list[results.Mix](), list[results.Move]()
    for job in (region.job for region in regions if region.job.model == _EXAMPLE):
        for kind in _PERMUTATIONS:
            name = f"{job.servers} servers: permutation, {kind}"
            mixes += step(name, results.Mix, partial(_mixes, job, kind))
        if job.servers == results.SMALLEST:
            moves += kept.value("moves", list[results.Move], partial(_moves, job))
    traces = list[results.TraceTimes]()
    for servers in _trace_sizes(sizes):
        name = f"{servers} servers: training trace"
        traces += step(name, results.TraceTimes, partial(_traces, evaluation.trace, servers))
    speeds = [
        speed
        for region in regions
        if region.job.servers == results.SMALLEST
        for speed in _speeds(region)
    ]
    return results.FrontierResults(
        points=results.marked(points),
        limits=tuple(limits),
        mixes=tuple(mixes),
        moves=tuple(moves),
        traces=tuple(traces),
        gpu_speeds=tuple(speeds),
        cpu_s=time.process_time() - start,
    )


def _points(region: _Region) -> Iterator[results.Point]:
    """Yield the points of a region: all policies and numbers of NICs at all rates."""
    base = {rate: _iterations(region, EPS, 0, rate) for rate in RATES}
    for policy in POLICIES:
        for optical, rate in product(optical_nics(policy), RATES):
            yield _point(region, policy, optical, rate, base[rate])


@dataclass(frozen=True)
class _Times:
    """Mean times over the layers of a job."""

    dispatch_s: float
    iteration: Iteration
    settling_s: float


def _point(
    region: _Region, policy: FrontierPolicy, optical: int, rate: float, base: _Times
) -> results.Point:
    times, electrical = _iterations(region, policy, optical, rate), NICS - optical
    forwarded = 0.0
    if policy == MULTIHOP:
        forwarded = mean(c.multihop_split.forwarded for c in region.comparisons[optical])
    usd = server_usd(policy, optical, rate)
    slower = times.iteration.seconds / base.iteration.seconds
    return results.Point(
        model=region.job.model,
        servers=region.job.servers,
        rate_bps=rate,
        policy=policy.name,
        optical=optical,
        electrical=electrical,
        usd=usd,
        all_to_all_s=times.dispatch_s,
        iteration_s=times.iteration.seconds,
        settling_iteration_s=times.settling_s,
        transfers_s=times.iteration.pipeline_s + times.iteration.all_reduce_s,
        forwarded=forwarded,
        all_to_all=times.dispatch_s / base.dispatch_s,
        iteration=slower,
        efficiency=server_usd(EPS, 0, rate) / usd / slower,
    )


def _iterations(region: _Region, policy: FrontierPolicy, optical: int, rate: float) -> _Times:
    """Return the times of a job whose layers have the gating of its samples in turn."""
    electrical = NICS - optical
    dispatches, iterations, settling = list[float](), list[Iteration](), list[float]()
    for job, comparison in zip(region.job.layers, region.comparisons[optical], strict=True):
        dispatches.append(comparison.nic_bytes(policy) / nic_bytes_s(rate))
        iterations.append(_iteration(job, dispatches[-1], electrical, rate))
        settling.append(_settling_s(job, comparison, policy, rate))
    parts = zip(*(vars(iteration).values() for iteration in iterations), strict=True)
    return _Times(mean(dispatches), Iteration(*map(mean, parts)), mean(settling))


def _iteration(
    job: PaperJob, dispatch_s: float, electrical: int, rate: float, waiting_s: float = 0.0
) -> Iteration:
    all_to_all = AllToAll(dispatch_s, dispatch_s * job.model.combine_ratio)
    return compose_iteration(job, all_to_all, electrical * nic_bytes_s(rate), waiting_s)


def _settling_s(
    job: PaperJob, comparison: Comparison, policy: FrontierPolicy, rate: float
) -> float:
    """Return the seconds of an iteration whose circuits settle for each forward dispatch.

    A policy that doesn't wait sends over the EPS meanwhile, or leaves circuits where they are if
    that is faster.
    """
    electrical, dispatch_s = comparison.electrical, comparison.nic_bytes(policy) / nic_bytes_s(rate)
    if not policy.moves:
        return _iteration(job, dispatch_s, electrical, rate).seconds
    if policy.waits:
        return _iteration(job, dispatch_s, electrical, rate, SETTLE_S).seconds
    eps_s = comparison.nic_bytes(EPS) / nic_bytes_s(rate) * NICS / electrical
    sent = min(1.0, SETTLE_S / eps_s)
    added_s = sent * (eps_s - dispatch_s)
    moved_s = _iteration(job, dispatch_s, electrical, rate, added_s).seconds
    unmoved_s = comparison.nic_bytes(comparison.unmoved(policy)) / nic_bytes_s(rate)
    return min(moved_s, _iteration(job, unmoved_s, electrical, rate).seconds)


# --- limits of forwarding, other demands, GPUs ---------------------------------------------------


def _limits(job: RegionJob) -> Iterator[results.Limit]:
    """Yield the effect of limited forwarding on the first layer."""
    comparison = Comparison(job.demands[0], CORNER)
    base = comparison.nic_bytes(EPS)
    by_nics = {f"{n:g}": comparison.limited_nic_bytes(n) / base for n in FORWARDING_NICS}
    yield results.Limit(
        model=job.model,
        servers=job.servers,
        by_nics=by_nics,
        unlimited=comparison.nic_bytes(MULTIHOP) / base,
        relays=comparison.multihop_split.relays,
        dispatch_nic_bytes=base,
    )


def _mixes(job: RegionJob, kind: str) -> Iterator[results.Mix]:
    """Yield the times of demands, a growing share of which is a permutation."""
    policies = (MIXNET, JOINT, EVEN_SPILL, MULTIHOP, MOVED_MULTIHOP)
    for share in _SHARES:
        times = _relative(Comparison(_mixed(job, kind, share), CORNER), policies)
        yield results.Mix(servers=job.servers, kind=kind, share=share, all_to_all=times)


def _mixed(job: RegionJob, kind: str, share: float) -> FloatArray:
    """Return a demand, a share of which is a permutation."""
    model, positions = job.demands[0], np.arange(job.servers)
    partners = positions ^ 1 if kind == "exchange" else (positions + 1) % job.servers
    permutation = np.zeros_like(model)
    permutation[positions, partners] = 1.0
    mixed: FloatArray = (1 - share) * model / _busiest(model) + share * permutation
    return mixed


def _moves(job: RegionJob) -> list[results.Move]:
    """Return the times with circuits that move and with circuits that don't."""
    moves = []
    for optical, share in product(_MOVE_SPLITS, _MOVE_SHARES):
        comparison = Comparison(_mixed(job, "exchange", share), optical)
        for policy, fixed in _MOVED_AND_FIXED:
            times = _relative(comparison, (policy, fixed))
            move = results.Move(
                optical=optical,
                share=share,
                policy=policy.name,
                waits=policy.waits,
                moved=times[policy.name],
                fixed=times[fixed.name],
                eps=NICS / comparison.electrical,
            )
            moves.append(move)
    return moves


def _busiest(demand: FloatArray) -> float:
    """Return the most bytes that a server sends or receives."""
    return float(max(demand.sum(axis=0).max(), demand.sum(axis=1).max()))


def _relative(comparison: Comparison, policies: Sequence[FrontierPolicy]) -> dict[str, float]:
    """Return completion times by policy, relative to the non-blocking EPS."""
    base = comparison.nic_bytes(EPS)
    return {policy.name: comparison.nic_bytes(policy) / base for policy in policies}


def _traces(file: Path, servers: int) -> Iterator[results.TraceTimes]:
    """Yield the all-to-alls of the training trace."""
    policies = (MIXNET, SPILL, JOINT, EVEN_SPILL, MULTIHOP)
    comparisons = [
        Comparison(demand, CORNER) for demand in training_trace_demands(file, servers, _TRACE_STEPS)
    ]
    times = [_relative(comparison, policies) for comparison in comparisons]
    yield results.TraceTimes(
        servers=servers,
        all_to_all={p.name: tuple(layer[p.name] for layer in times) for p in policies},
        forwarded=tuple(comparison.multihop_split.forwarded for comparison in comparisons),
    )


def _speeds(region: _Region) -> Iterator[results.GpuSpeed]:
    """Yield iterations with GPUs of other speeds, and with those of the study."""
    for rate in RATES:
        for gpu, flops in {"as in the study": None, **_GPUS}.items():
            job = region.job
            if flops is not None:
                layers = (one.with_utilisation(_GPU_UTILISATION, flops) for one in job.layers)
                job = replace(job, layers=tuple(layers))
            changed = region._replace(job=job)
            base = _iterations(changed, EPS, 0, rate).iteration
            multihop = _iterations(changed, MULTIHOP, CORNER, rate).iteration
            yield results.GpuSpeed(
                gpu=gpu,
                rate_bps=rate,
                model=job.model,
                all_to_all_share=base.all_to_all_share,
                iteration=multihop.seconds / base.seconds,
            )
