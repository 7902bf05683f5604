"""Tables of the paper, computed from an evaluation and the specification in `tables.yaml`.

Aims of this project beyond the paper have a table of their own, and are counted apart.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from statistics import mean
from typing import Final, ParamSpec

from moefabric import rate_bps, rate_text
from moefabric_studies.paper import loader, rows
from moefabric_studies.paper.calibration import CALIBRATION_NETWORK
from moefabric_studies.paper.evaluation import RATES, Evaluation, InvalidCellError, UnmeasuredError
from moefabric_studies.paper.iteration import overlapped_iteration
from moefabric_studies.paper.measures import MEASURES, price_ratio
from moefabric_studies.paper.network import NETWORKS
from moefabric_studies.paper.prediction_quality import TOP_K
from moefabric_studies.paper.rows import Bounds, PaperRow, PaperTable

_AGGREGATES: Final[Mapping[str, Callable[..., float]]] = {"min": min, "max": max, "mean": mean}
_SCATTER: Final = "scatter of the fat-tree column"
P = ParamSpec("P")
_NETWORKS: Final = ("mixnet-spill", "mixnet-joint")
Seconds = Callable[[Evaluation, str, str, float], float]
"""Time of a job on a network at a NIC rate."""


def measured(compute: Callable[P, float], *args: P.args, **options: P.kwargs) -> list[float | None]:
    """Return a computed value, or None if it needs an invalid one; none if one is unmeasured."""
    try:
        return [compute(*args, **options)]
    except InvalidCellError:
        return [None]
    except UnmeasuredError:
        return []


def value_or_none(compute: Callable[P, float], *args: P.args, **options: P.kwargs) -> float | None:
    """Return a computed value, or None if it needs an unmeasured or an invalid value."""
    return next(iter(measured(compute, *args, **options)), None)


def build_table(spec: loader.TableSpec, evaluation: Evaluation) -> PaperTable:
    """Return a table of `tables.yaml`, without rows that have not been measured."""
    built = tuple(
        _row(spec, row, evaluation, value)
        for row in spec.rows
        for value in measured(_row_value, row, evaluation, MEASURES[row.measure])
    )
    return PaperTable(spec.table, spec.title, spec.source, built, spec.why, spec.null_model)


def _row(
    spec: loader.TableSpec, row: loader.RowSpec, evaluation: Evaluation, value: float | None
) -> PaperRow:
    low, high = row.paper if isinstance(row.paper, list) else (row.paper, row.paper)
    precision = spec.precision if row.precision is None else row.precision
    paper, band = _claimed(row.claim, low, high, precision)
    null = spec.null_value if row.null_value is None else row.null_value
    null_value = _row_value(row, evaluation, price_ratio) if null == "price" else float(null)
    verdict = (
        rows.verdict(band, value, null_value)
        if row.kind == "prediction" or value is None
        else row.kind
    )
    return PaperRow(
        name=row.row,
        subject=_subject(row),
        paper=paper,
        band=band,
        value=value,
        verdict=verdict,
        unit=spec.unit,
        why=spec.why if verdict == rows.OUTSIDE else "",
        null=null_value if row.kind == "prediction" else None,
        precision=f"{precision:g}, {row.reading or spec.reading}",
        source=row.source,
        words=(row.reading or spec.reading).startswith("words"),
    )


def _claimed(
    claim: loader.Claim, low: float, high: float, precision: float
) -> tuple[Bounds, Bounds]:
    """Return the paper's bounds, and the band of values that agree with them."""
    match claim:
        case "value":
            return (low, high), (low - precision, high + precision)
        case "at-most":
            return (None, high), (None, high + precision)
        case "at-least":
            return (low, None), (low - precision, None)
        case "more-than":
            return (low, None), (low + precision, None)


def _row_value(
    row: loader.RowSpec,
    evaluation: Evaluation,
    measure: Callable[[Evaluation, loader.RowSpec, str, float], float],
) -> float:
    values = [
        measure(evaluation, row, job, rate_bps(rate)) for job in row.jobs for rate in row.rates
    ]
    return float(_AGGREGATES[row.take](values))


def _subject(row: loader.RowSpec) -> str:
    if row.profile:
        return row.profile
    jobs = ", ".join(filter(None, row.jobs)) if len(row.jobs) < 3 else f"{len(row.jobs)} models"
    rates = row.rates[0] if len(row.rates) == 1 else f"{len(row.rates)} rates"
    return " at ".join(filter(None, (jobs, rates)))


def iteration_table(spec: loader.IterationTableSpec, evaluation: Evaluation) -> PaperTable:
    """Return the table of the published figures, without values that have not been measured.

    The null model of a network is the published fat-tree. The band of a model is as wide as the
    published fat-tree column deviates from its own fit.
    """
    judged, blocked_rows, delay_s = [], [], spec.blocked_ms * 1e-3
    for (job, rate, network), published in evaluation.published.items():
        subject, paper = f"{job} at {rate_text(rate)}", (published, published)
        for value in measured(normalised_time, evaluation, job, network, rate):
            scatter = evaluation.calibrations[job].error
            band = published * (1 - scatter), published * (1 + scatter)
            null = evaluation.published[job, rate, CALIBRATION_NETWORK]
            is_calibrated = network == CALIBRATION_NETWORK
            verdict = rows.verdict(band, value, null)
            if is_calibrated and value is not None:
                verdict = rows.CALIBRATED
            judged.append(
                PaperRow(
                    name=network,
                    subject=subject,
                    paper=paper,
                    band=band,
                    value=value,
                    verdict=verdict,
                    unit="",
                    why=spec.why.get(network, "") if verdict == rows.OUTSIDE else "",
                    null=None if is_calibrated else null,
                    precision=f"{100 * scatter:.1f} %, {_SCATTER}",
                )
            )
        if network != "mixnet":
            continue
        blocked = value_or_none(normalised_time, evaluation, job, network, rate, delay_s)
        if blocked is not None:
            name = f"mixnet, {spec.blocked_ms:g} ms blocked"
            blocked_rows.append(PaperRow(name, subject, paper, None, blocked, rows.REPORTED, ""))
    why = " ".join(spec.why.values())
    return PaperTable(
        "iteration", spec.title, spec.source, (*judged, *blocked_rows), why, spec.null_model
    )


def normalised_time(
    evaluation: Evaluation, job: str, network: str, rate: float, delay_s: float = 0.0
) -> float:
    """Return the iteration time of a job on a network in the unit of the published figures."""
    unit_s = evaluation.calibrations[job].unit_s
    return evaluation.iteration(job, network, rate, delay_s).seconds / unit_s


def copilot_table(spec: loader.CopilotTableSpec, evaluation: Evaluation) -> PaperTable:
    """Return the accuracy of predictors, and the cost of wrong predictions."""
    quality, built = evaluation.prediction_quality, []
    trace, accuracy = "training trace", f"top-{TOP_K} accuracy"
    for other in spec.above:
        gain = 100 * (quality.accuracy["copilot"] - quality.accuracy[other])
        band = spec.precision, None
        name, verdict = f"{accuracy} above {other}", rows.verdict(band, gain, 0.0)
        precision = f"{spec.precision:g}, {spec.reading}"
        row = PaperRow(name, trace, (0.0, None), band, gain, verdict, "points", null=0.0)
        built.append(replace(row, precision=precision))
    for name, share in quality.accuracy.items():
        built.append(
            PaperRow(f"{accuracy}: {name}", trace, None, None, 100 * share, rows.REPORTED, "%")
        )
    for nics, extra_ms in quality.extra_ms.items():
        subject = f"{nics[0]} + {nics[1]} NICs, {quality.dispatch_ms[nics]:.1f} ms"
        built += [
            PaperRow(f"misprediction cost: {name}", subject, None, None, ms, rows.REPORTED, "ms")
            for name, ms in extra_ms.items()
        ]
    return PaperTable("copilot", spec.title, spec.source, tuple(built), null_model=spec.null_model)


def aims_table(spec: loader.AimsSpec, evaluation: Evaluation) -> PaperTable:
    """Return the aims, without values that have not been measured.

    Rows have the worst rate of each model and policy, compared with the non-blocking EPS.
    """
    built = []
    ratios: tuple[tuple[str, Seconds, float], ...] = (
        (": all-to-all", all_to_all_s, spec.all_to_all),
        (": iteration", iteration_s, spec.iteration),
        (" overlapped: iteration", overlapped_s, spec.iteration),
    )
    for group in (ratios[:2], ratios[2:]):
        for network, job, (suffix, seconds, aim) in product(_NETWORKS, evaluation.jobs, group):
            for value in measured(worst_ratio, seconds, evaluation, job, network):
                verdict = rows.INVALID if value is None else rows.MISSED
                if value is not None and value <= aim:
                    verdict = rows.MET
                built.append(PaperRow(network + suffix, job, None, (None, aim), value, verdict))
    return PaperTable("aims", spec.title, spec.source, tuple(built), spec.why)


def worst_ratio(seconds: Seconds, evaluation: Evaluation, job: str, network: str) -> float:
    """Return the largest time over all NIC rates, relative to that on the non-blocking EPS."""
    return max(
        seconds(evaluation, job, network, rate) / seconds(evaluation, job, "fat-tree", rate)
        for rate in RATES
    )


def all_to_all_s(evaluation: Evaluation, job: str, network: str, rate: float) -> float:
    """Return the time of a layer's all-to-alls."""
    return evaluation.all_to_all(job, network, rate).layer_s


def iteration_s(evaluation: Evaluation, job: str, network: str, rate: float) -> float:
    """Return the time of an iteration."""
    return evaluation.iteration(job, network, rate).seconds


def overlapped_s(evaluation: Evaluation, job: str, network: str, rate: float) -> float:
    """Return the time of an iteration with overlapped pipeline transfers."""
    all_to_all = evaluation.all_to_all(job, network, rate)
    electrical = NETWORKS[network].electrical
    return overlapped_iteration(evaluation.jobs[job], all_to_all, electrical, rate).seconds
