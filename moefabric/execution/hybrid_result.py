"""Emulated and modelled parts of a hybrid run, and the verdict on its background flows."""

from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np

from moefabric.config.experiment import ExperimentSpec
from moefabric.prediction.hybrid_jobs import HybridJobs
from moefabric.prediction.simulated_regions import SimulatedRegions
from moefabric.report.formatting import counted
from moefabric.results.comparison import network_cost
from moefabric.results.model import FabricResult
from moefabric.results.parts import CollectiveResult, HybridResult
from moefabric.results.verdict import reasons
from moefabric.results.verdict.fabric_result import with_findings
from moefabric.results.verdict.reasons import RunFinding


def with_hybrid(result: FabricResult, spec: ExperimentSpec, jobs: HybridJobs) -> FabricResult:
    """Return a fabric's result with its hybrid part, and the verdict on that part."""
    hybrid = hybrid_result(spec, jobs, result.transfers)
    seconds = [i.measured_s for i in result.iterations if i.measured_s is not None]
    cost = network_cost(jobs.whole.fabric, median(seconds) if seconds else None, hybrid.servers)
    judged = with_findings(result, _findings(hybrid))
    return judged.model_copy(update={"hybrid": hybrid, "cost": cost})


def hybrid_result(
    spec: ExperimentSpec, jobs: HybridJobs, transfers: Sequence[CollectiveResult]
) -> HybridResult:
    """Return the emulated and the modelled part of a run.

    Args:
        jobs: Jobs of the experiment on the fabric.
        transfers: The transfers of the run, background flows among them.
    """
    assert spec.hybrid is not None
    wiring = spec.wiring
    flows = [transfer for transfer in transfers if transfer.kind == "background"]
    counted = [flow.bytes_by_eps for flow in flows if flow.bytes_by_eps is not None]
    p5, p50 = _rate_errors(flows)
    return HybridResult(
        emulated=list(spec.hybrid.emulated),
        regions=len(wiring.expanded_regions),
        servers=wiring.server_count,
        gpus=wiring.server_count * wiring.gpus_per_server,
        simulated_regions=jobs.simulated.regions,
        peers=[s for region in jobs.fabric.regions if region.modelled for s in region.servers],
        background=spec.hybrid.background,
        flows=jobs.background_flows,
        bytes=sum(flow.bytes for flow in flows),
        counted_bytes=sum(counted) if len(counted) == len(flows) else None,
        rate_error_p5=p5,
        rate_error_p50=p50,
        remark=_sampling(jobs.simulated),
    )


def _sampling(simulated: SimulatedRegions) -> str:
    """Return a note on the regions that stand for all; empty if all regions are modelled."""
    if simulated.regions == simulated.all_regions:
        return ""
    accuracy = "a sample, as regions differ" if simulated.is_sample else "exact, as they are alike"
    verb = "stands" if simulated.regions == 1 else "stand"
    counts = f"{counted(simulated.regions, 'region')} {verb} for {simulated.all_regions:,}"
    return f"{counts} in the model ({accuracy})"


def _rate_errors(flows: Sequence[CollectiveResult]) -> tuple[float | None, float | None]:
    """Return the 5th percentile and the median of measured over modelled rates, minus 1."""
    measured = [flow for flow in flows if flow.planned_s and flow.measured_s and flow.bytes]
    if not measured:
        return None, None
    errors = np.array([_rate_error(flow) for flow in measured])
    sizes = [flow.bytes for flow in measured]
    p5, p50 = np.quantile(errors, (0.05, 0.5), weights=sizes, method="inverted_cdf")
    return float(p5), float(p50)


def _rate_error(flow: CollectiveResult) -> float:
    arrived = flow.bytes if flow.bytes_by_eps is None else min(flow.bytes_by_eps, flow.bytes)
    return arrived / flow.bytes * (flow.planned_s or 0.0) / flow.measured_s - 1


def _findings(hybrid: HybridResult) -> Iterator[RunFinding]:
    """Yield the findings on rates of the background."""
    for figure, error, reason in (
        ("median", hybrid.rate_error_p50, reasons.BACKGROUND_BEHIND),
        ("5th percentile", hybrid.rate_error_p5, reasons.BACKGROUND_BEHIND_P5),
    ):
        if error is not None:
            yield from reason.judge(-error, figure=figure, error=error)
