"""What a hybrid run emulated and modelled, and whether its background flows kept to the model."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

import numpy as np

from moefabric.config.experiment import ExperimentSpec
from moefabric.runner.comparison import network_cost
from moefabric.runner.fidelity import worst_verdict
from moefabric.runner.hybrid_jobs import HybridJobs
from moefabric.runner.result_model import FabricResult, Verdict
from moefabric.runner.result_parts import CollectiveResult, HybridResult
from moefabric.runner.simulated_regions import SimulatedRegions

_MOST_BEHIND: Final = 0.03
"""Shortfall of the background's rates, in the median, above which a run is degraded."""
_MOST_BEHIND_P5: Final = 0.15
"""The same for the latest twentieth of the bytes."""


def with_hybrid(result: FabricResult, spec: ExperimentSpec, jobs: HybridJobs) -> FabricResult:
    """Return a fabric's result with what was emulated and modelled, and the verdict on it."""
    part = hybrid_result(spec, jobs, result.transfers)
    reasons = list(_remarks(part))
    fidelity = result.fidelity
    if reasons:
        verdict = worst_verdict((fidelity.verdict, Verdict.DEGRADED))
        fidelity = fidelity.model_copy(
            update={"verdict": verdict, "reasons": [*fidelity.reasons, *reasons]}
        )
    seconds = [one.measured_s for one in result.iterations if one.measured_s is not None]
    cost = network_cost(jobs.whole.fabric, median(seconds) if seconds else None, part.servers)
    return result.model_copy(update={"hybrid": part, "fidelity": fidelity, "cost": cost})


def hybrid_result(
    spec: ExperimentSpec, jobs: HybridJobs, transfers: Sequence[CollectiveResult]
) -> HybridResult:
    """Return what was emulated and modelled.

    Args:
        spec: The experiment.
        jobs: Its job on the fabric.
        transfers: The transfers of the run, background flows among them.
    """
    assert spec.hybrid is not None
    wiring = spec.wiring
    sent = [one for one in transfers if one.kind == "background"]
    counted = [one.bytes_by_eps for one in sent if one.bytes_by_eps is not None]
    p5, p50 = _rate_errors(sent)
    return HybridResult(
        emulated=list(spec.hybrid.emulated),
        regions=len(wiring.expanded_regions),
        servers=wiring.server_count,
        gpus=wiring.server_count * wiring.gpus_per_server,
        simulated_regions=jobs.simulated.regions,
        peers=[s for region in jobs.fabric.regions if region.modelled for s in region.servers],
        background=spec.hybrid.background,
        flows=jobs.background_flows,
        bytes=sum(one.bytes for one in sent),
        counted_bytes=sum(counted) if len(counted) == len(sent) else None,
        rate_error_p5=p5,
        rate_error_p50=p50,
        remark=_sampling(jobs.simulated),
    )


def _sampling(some: SimulatedRegions) -> str:
    """Return what a model of fewer regions takes for granted; empty if it has all of them."""
    if some.regions == some.all_regions:
        return ""
    alike = "a sample, as regions differ" if some.is_sample else "exact, as they are alike"
    return f"{some.regions:,} regions stand for {some.all_regions:,} in the model ({alike})"


def _rate_errors(sent: Sequence[CollectiveResult]) -> tuple[float | None, float | None]:
    """Return the 5th percentile and the median of rates over the model's, minus 1."""
    known = [one for one in sent if one.planned_s and one.measured_s and one.bytes]
    if not known:
        return None, None
    errors, sizes = np.array([_rate_error(one) for one in known]), [one.bytes for one in known]
    order = np.argsort(errors)
    reached = np.cumsum(np.array(sizes, float)[order]) / sum(sizes)
    p5, p50 = (float(errors[order][np.searchsorted(reached, share)]) for share in (0.05, 0.5))
    return p5, p50


def _rate_error(one: CollectiveResult) -> float:
    arrived = one.bytes if one.bytes_by_eps is None else min(one.bytes_by_eps, one.bytes)
    return arrived / one.bytes * (one.planned_s or 0.0) / one.measured_s - 1


def _remarks(part: HybridResult) -> Iterator[str]:
    """Yield why the background makes a run degraded."""
    for name, error, most in (
        ("median", part.rate_error_p50, _MOST_BEHIND),
        ("5th percentile", part.rate_error_p5, _MOST_BEHIND_P5),
    ):
        if error is not None and error < -most:
            behind = f"{name} of their rates {error:+.1%}"
            yield f"background flows fell behind the model: {behind}, more than {most:.0%}"
