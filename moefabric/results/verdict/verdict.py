"""Verdict on a fabric of a run: whether its measurements can be trusted.

`pass` means that paced collectives took their predicted time within 2 % in the median and 5 % in
the 95th percentile, that every byte arrived intact by its planned path, and that nothing else
disturbed the run. Each reason names the culprit: a collective, a flow, a link or a server.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from statistics import median_high, median_low
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric.results.model import ErrorSummary, FidelityResult, Verdict
from moefabric.results.verdict import reasons
from moefabric.results.verdict.measurements import Errors, FabricMeasurements, least_error
from moefabric.results.verdict.reasons import (
    GROSS_OUTLIER,
    GROSS_SHARE,
    MOST_NAMES,
    OUTLIER,
    TCP_OUTLIER,
    UNSCALED,
    LabelledError,
    Reason,
    RunFinding,
    RunSetting,
    with_remedies,
)

_QUANTILES: Final = 41
"""Points of a distribution's curve, however many samples it has."""
_STANDARD_ERRORS: Final = 4.0
"""Standard errors that a mean may be off by chance."""
_SPREAD_SAMPLES: Final = 20
"""Samples from which a spread is judged."""
_LEAST_RATIO: Final = 1e-3


def worst_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of the verdicts; a pass if there are none."""
    return max(verdicts, key=tuple(Verdict).index, default=Verdict.PASS)


def judge(
    measured: FabricMeasurements,
    findings: Iterable[RunFinding] = (),
    *,
    mtu: int = 1500,
    paced: bool = True,
    setting: RunSetting = UNSCALED,
) -> FidelityResult:
    """Judge the measurements of a fabric.

    Args:
        measured: The measurements of all iterations.
        findings: Findings besides, on the machine and the testbed.
        mtu: MTU of the NICs in bytes.
        paced: Whether flows were paced.
        setting: Scale and length of the run, which remedies change.
    """
    summaries = {
        kind: summarise(errors) for kind, errors in measured.errors.items() if errors.values
    }
    timings = {
        kind: list(_timing(kind, measured.errors[kind], summary, paced=paced))
        for kind, summary in summaries.items()
    }
    iterations = timings.pop("iteration", [])
    timing = [*chain.from_iterable(timings.values()), *_links(measured, paced=paced)]
    if setting.measured_control and measured.control and not timing:  # transfers are right
        update = {"remedy": reasons.FIXED_CONTROL, "change": ""}
        iterations = [finding.model_copy(update=update) for finding in iterations]
    timing += iterations
    all_findings = [
        *_changes(measured),  # first, since they explain times
        *timing,
        *_samples(measured),
        *_tail(reasons.LATENESS, measured.lateness, "late starts of agents"),
        *_tail(reasons.STARTS, measured.starts, "starts of collectives"),
        *_reports(measured),
        *_arrivals(measured, paced=paced),
        *_tail(reasons.DARK_TIME, measured.dark_time, "dark times of reconfigurations"),
        *_dark_distribution(measured),
        *_cpu(measured.cpu_idle, timing),
        *findings,
        *_repetitions(measured, mtu, paced=paced),
        *_losses(measured),
        *_control(measured),
        *reasons.OTHER_CIRCUITS.judge_each(measured.circuits, MOST_NAMES),
        *reasons.MISROUTED.judge_each(measured.misrouted, MOST_NAMES),
        *reasons.CONTRADICTION.judge_each(measured.contradictions, MOST_NAMES),
    ]
    collectives = summaries.get("collective")
    return FidelityResult(
        verdict=worst_verdict(finding.verdict for finding in all_findings),
        reasons=[finding.text for finding in all_findings],
        findings=with_remedies(all_findings, setting),
        link_rate_error_p95=_abs_p95(np.array([*chain.from_iterable(measured.links.values())])),
        cpu_idle_min=min(measured.cpu_idle, default=None),
        completion_error_p50=collectives.abs_p50 if collectives else None,
        completion_error_p95=collectives.abs_p95 if collectives else None,
        completion_errors=summaries,
        start_lateness_p95=_abs_p95(measured.lateness.signed),
        disturbed=measured.disturbed,
    )


def judge_program(
    findings: Sequence[RunFinding],
    timing: Sequence[RunFinding],
    cpu_idle: Sequence[float],
    setting: RunSetting,
    *,
    timed: bool = True,
) -> FidelityResult:
    """Judge runs of a program.

    Args:
        findings: Findings on its results and its bytes.
        timing: Findings on its times.
        cpu_idle: Idle shares of the machine while it ran.
        setting: What slows the program down.
        timed: Whether the model predicts its times, so that the machine must be idle.
    """
    all_findings = [*findings, *timing, *(_cpu(cpu_idle, timing) if timed else ())]
    return FidelityResult(
        verdict=worst_verdict(finding.verdict for finding in all_findings),
        reasons=[finding.text for finding in all_findings],
        findings=with_remedies(all_findings, setting),
        cpu_idle_min=min(cpu_idle, default=None),
    )


def summarise(errors: Errors) -> ErrorSummary:
    """Return the distribution of signed errors; there is at least one."""
    signed = errors.signed
    percentiles = np.percentile(signed, (0, 5, 50, 95, 100)).tolist()
    figures = dict(zip(("min", "p5", "p50", "p95", "max"), percentiles, strict=True))
    figures["abs_p50"], figures["abs_p95"] = np.percentile(np.abs(signed), (50, 95)).tolist()
    quantiles = np.percentile(signed, np.linspace(0, 100, _QUANTILES)).tolist()
    return ErrorSummary(n=len(signed), **figures, quantiles=quantiles)


def _timing(
    kind: str, errors: Errors, summary: ErrorSummary, *, paced: bool
) -> Iterator[RunFinding]:
    """Yield the findings on times of one kind: median, tail, bias and outliers."""
    yield from error_findings(kind, errors, summary, paced=paced)
    bias = abs(summary.p50)
    yield from reasons.BIAS.judge(bias, paced=paced, kind=kind, median=summary.p50)
    yield from _outliers(errors, f"{kind} times", OUTLIER if paced else TCP_OUTLIER)


def error_findings(
    kind: str, errors: Errors, summary: ErrorSummary, *, paced: bool
) -> Iterator[RunFinding]:
    """Yield the findings on the median and the tail of times of one kind.

    Args:
        kind: What was timed, in words.
        errors: The errors of the times against their predictions.
        summary: Their distribution.
        paced: Whether flows were paced.
    """
    for reason, value in (
        (reasons.MEDIAN_ERROR, summary.abs_p50),
        (reasons.P95_ERROR, summary.abs_p95),
    ):
        yield from reason.judge(value, paced=paced, kind=kind, place=errors.worst)


def _outliers(errors: Errors, kind: str, least: float = OUTLIER) -> Iterator[RunFinding]:
    """Yield the finding on single samples that are far off, however good the others are."""
    if not errors.values:
        return
    share, count = errors.outlier_share(least), len(errors.values)
    outliers = int(np.count_nonzero((errors.signed > share) | (errors.signed < least_error(share))))
    gross = int(np.count_nonzero(errors.signed > GROSS_OUTLIER))
    many = gross > 1 and gross > GROSS_SHARE * count
    reason = reasons.MANY_OUTLIERS if many else reasons.FEW_OUTLIERS
    place = "; ".join(map(str, errors.outliers(share)))
    short = -least_error(share)
    yield from reason.judge(outliers, count=count, kind=kind, share=share, short=short, place=place)


def _worst_medians(samples: Mapping[str, Sequence[float]]) -> list[LabelledError]:
    """Return the medians of the greatest magnitude, greatest first, with their names.

    Of the two in the middle of an even count the smaller error counts, so that one sample of two
    judges no link: the mean of two has degraded an honest run on quiet cores.
    """
    medians = [
        LabelledError(name, min(median_low(values), median_high(values), key=abs))
        for name, values in samples.items()
    ]
    return sorted(medians, key=lambda one: -abs(one.error))[:MOST_NAMES]


def _links(measured: FabricMeasurements, *, paced: bool) -> Iterator[RunFinding]:
    """Yield the findings on links whose median goodput differs from the planned one."""
    for worst in _worst_medians(measured.links):
        yield from reasons.LINK_GOODPUT.judge(abs(worst.error), paced=paced, place=worst)


def _samples(measured: FabricMeasurements) -> Iterator[RunFinding]:
    """Yield the findings on the number of judged collectives."""
    errors = measured.errors.get("collective")
    if errors is None or not errors.values:
        yield from reasons.NO_COLLECTIVE.judge()
    else:
        yield from reasons.FEW_COLLECTIVES.judge(len(errors.values))
    yield from reasons.DISTURBED.judge(measured.disturbed)


def _tail(reason: Reason, errors: Errors, kind: str) -> Iterator[RunFinding]:
    """Yield the findings on the tail of errors; half is as wrong as twice as much."""
    too_small = 1 / np.maximum(1 + errors.signed, _LEAST_RATIO) - 1
    if (p95 := _abs_p95(np.maximum(errors.signed, too_small))) is not None:
        yield from reason.judge(p95, place=errors.worst)
    yield from _outliers(errors, kind)


def _dark_distribution(measured: FabricMeasurements) -> Iterator[RunFinding]:
    """Yield the findings on OCSes whose random dark times have another mean or spread."""
    for ocs, errors in measured.dark_means.items():
        deviations, mean = np.array(measured.dark_deviations[ocs]), float(np.mean(errors))
        error = float(np.sqrt(np.sum(deviations**2))) / len(errors)
        excess = abs(mean) - _STANDARD_ERRORS * error
        yield from reasons.DARK_MEAN.judge(excess, place=ocs, mean=mean)
        if len(errors) >= _SPREAD_SAMPLES:
            ratio = max(_LEAST_RATIO, float(np.std(errors) / np.sqrt(np.mean(deviations**2))))
            yield from reasons.DARK_SPREAD.judge(max(ratio, 1 / ratio), place=ocs, ratio=ratio)


def _reports(measured: FabricMeasurements) -> Iterator[RunFinding]:
    """Yield the finding on agents that report late, which may hide delays before the report."""
    errors = measured.reports
    if errors.values:
        yield from reasons.REPORTS.judge(float(np.median(errors.signed)), place=errors.worst)


def _arrivals(measured: FabricMeasurements, *, paced: bool) -> Iterator[RunFinding]:
    """Yield the findings on receivers whose arrivals their senders contradict."""
    for server, median in _worst_medians(measured.arrivals):
        yield from reasons.ARRIVALS.judge(abs(median), paced=paced, place=server)


def _cpu(idle: Sequence[float], timing: Sequence[RunFinding]) -> list[RunFinding]:
    """Return the findings on the machine's idle time; starvation with errors is invalid."""
    if not idle:
        return list(reasons.NO_CPU_SAMPLE.judge())
    starved = list(reasons.STARVED.judge(min(idle))) if timing else []
    if {finding.remedy for finding in timing} == {reasons.FIXED_CONTROL}:
        update = {"remedy": reasons.FIXED_CONTROL, "change": ""}
        starved = [finding.model_copy(update=update) for finding in starved]
    return starved or list(reasons.BUSY.judge(min(idle)))


def _changes(measured: FabricMeasurements) -> Iterator[RunFinding]:
    """Yield the findings on reconfigurations that failed, or left circuits dark."""
    failed, dark = measured.failed_changes, measured.dark_changes
    count = sum(measured.requests.values())
    distinct = list(dict.fromkeys(failed))
    more = len(distinct) - MOST_NAMES
    place = "; ".join([*distinct[:MOST_NAMES], *([f"and {more} more"] if more > 0 else [])])
    yield from reasons.FAILED_CHANGES.judge(len(failed), count=count, place=place)
    for region, requests in measured.requests.items():
        if requests and measured.refusals.get(region, 0) == requests:
            yield from reasons.ALL_REFUSED.judge(requests, place=region)
    yield from reasons.DARK_CHANGES.judge(len(dark), count=count, place="".join(dark[:1]))


def _control(measured: FabricMeasurements) -> Iterator[RunFinding]:
    """Yield the findings on controllers that take longer than expected."""
    for kind, ratios in measured.control.items():
        yield from reasons.LATE_CONTROL.judge(float(np.median(ratios)), place=kind)


def _repetitions(measured: FabricMeasurements, mtu: int, *, paced: bool) -> Iterator[RunFinding]:
    """Yield the finding on TCP segments that were sent again."""
    segments, (most, flow) = measured.repetitions, measured.most_repetitions
    share = segments * mtu / max(1, measured.judged_bytes)
    place = f"{flow} ({most})"
    yield from reasons.REPETITIONS.judge(share, paced=paced, segments=segments, place=place)


def _losses(measured: FabricMeasurements) -> Iterator[RunFinding]:
    integrity = measured.integrity
    sent, received = integrity.bytes_sent or 0, integrity.bytes_received or 0
    yield from reasons.UNEQUAL_BYTES.judge(abs(sent - received), sent=sent, received=received)
    yield from reasons.CORRUPT.judge(integrity.corrupt or 0)
    yield from reasons.LOST_TRANSFERS.judge(integrity.lost_transfers or 0)


def _abs_p95(values: NDArray[np.float64]) -> float | None:
    return float(np.percentile(np.abs(values), 95)) if len(values) else None
