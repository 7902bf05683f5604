"""Figures of the paper, drawn from the tables' results."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from markupsafe import Markup

from moefabric import rate_text
from moefabric.api.charts import WIDTH, Axis, Box, Dot, Line, Mark, Panel, Rule, figure
from moefabric.api.networks import paper_network_usd
from moefabric_studies.paper import measures, tables
from moefabric_studies.paper.evaluation import RATES
from moefabric_studies.paper.failures import slow_down
from moefabric_studies.paper.network import PlanningPolicy
from moefabric_studies.paper.prediction_quality import TOP_K
from moefabric_studies.paper.results import PaperResults
from moefabric_studies.paper.rows import REPORTED
from moefabric_studies.paper.tables import value_or_none

_COLOURS: Final = {
    "fat-tree": "bar",
    "rail-optimised": "by-eps",
    "topoopt": "k-other",
    "mixnet": "light",
    "mixnet-spill": "k-dispatch",
    "mixnet-joint": "p-verify",
}
"""CSS class of each network's colour."""
_MODELS: Final = {
    "mixtral-8x22b": "Mixtral 8x22B",
    "mixtral-8x7b": "Mixtral 8x7B",
    "llama-moe": "LLaMA-MoE",
    "qwen-moe": "Qwen-MoE",
    "deepseek-r1": "DeepSeek-R1",
}
_COMPARED: Final = ("fat-tree", "rail-optimised", "mixnet", "topoopt")
_PUBLISHED: Final = ("rail-optimised", "topoopt", "mixnet")
_POLICY_NETWORKS: Final[Mapping[str, PlanningPolicy]] = {
    "mixnet": "mixnet",
    "mixnet-spill": "spill",
    "mixnet-joint": "joint",
}
"""Policy of each network with an OCS."""
_EXAMPLE: Final = "mixtral-8x22b"
"""Model of the figures that show one model."""
_RATE_TEXTS: Final = [rate_text(rate) for rate in RATES]
EMULATED_FIGURES: Final = ("iteration", "efficiency", "share", "delay", "aims")
"""Tables whose figures can be drawn from measurements."""
_WIDTH: Final = (WIDTH - 24) / 2
"""Width of a chart, two of which are side by side on the page."""
_HEIGHT: Final = 188.0
Point = TypeVar("Point")


@dataclass(frozen=True)
class Series:
    """Values of one colour.

    Attributes:
        name: Name in the legend.
        class_: CSS class of the colour.
        values: A value for each group of columns, or for each position of lines; None leaves a gap.
        published: The paper's values of the groups.
    """

    name: str
    class_: str
    values: Sequence[float | None]
    published: Sequence[float] = ()


def _by_network(
    networks: Iterable[str],
    points: Sequence[Point],
    value: Callable[[str, Point], float | None],
    published: Callable[[str, Point], float] | None = None,
) -> list[Series]:
    """Return a series for each network, with its values at some points, and the paper's."""
    return [
        Series(
            network,
            _COLOURS[network],
            [value(network, point) for point in points],
            [published(network, point) for point in points] if published else (),
        )
        for network in networks
    ]


def _iterations(results: PaperResults) -> Iterator[Markup]:
    """Yield a figure of the normalised iteration time for each model."""
    evaluation = results.evaluation

    def own(job: str, network: str, rate: float) -> float | None:
        return value_or_none(tables.normalised_time, evaluation, job, network, rate)

    def published(job: str, network: str, rate: float) -> float:
        return evaluation.published[job, rate, network]

    for job in evaluation.calibrations:
        series = _by_network(_COMPARED, RATES, partial(own, job), partial(published, job))
        yield columns(_MODELS[job], _RATE_TEXTS, series)


def _costs(_: PaperResults) -> Iterator[Markup]:
    """Yield a figure of the networks' prices."""
    series = _by_network(
        _COMPARED, RATES, lambda name, rate: paper_network_usd(name, measures.SERVERS, rate) / 1e6
    )
    yield columns("Million USD, 128 servers", _RATE_TEXTS, series)


def _efficiencies(results: PaperResults) -> Iterator[Markup]:
    """Yield a figure of the performance per dollar, relative to the fat-tree's, for each model.

    The paper's values are computed from its iteration times and prices.
    """
    evaluation, base = results.evaluation, "fat-tree"

    def own(job: str, network: str, rate: float) -> float | None:
        return value_or_none(measures.efficiency, evaluation, job, network, base, rate)

    def published(job: str, network: str, rate: float) -> float:
        speed = evaluation.published[job, rate, base] / evaluation.published[job, rate, network]
        return speed * evaluation.usd(job, base, rate) / evaluation.usd(job, network, rate)

    for job in evaluation.calibrations:
        series = _by_network(_PUBLISHED, RATES, partial(own, job), partial(published, job))
        series += _by_network(("mixnet-joint",), RATES, partial(own, job))
        title = f"{_MODELS[job]}, relative to the fat-tree"
        yield columns(title, _RATE_TEXTS, series, reference=1.0)


def _shares(results: PaperResults) -> Iterator[Markup]:
    """Yield a figure of the all-to-alls' share of the iteration, beside the paper's range."""
    rows = results.rows("share")
    calls = [row for row in rows if row.verdict != REPORTED]
    transfers = {row.subject: row.value for row in rows if row.verdict == REPORTED}
    bounds = [row.paper or (None, None) for row in calls]
    source = "emulated" if results.measurements else "predicted"
    series = [
        Series(f"{source}, calls", "k-dispatch", [row.value for row in calls]),
        Series(f"{source}, transfers", "light", [transfers.get(row.subject) for row in calls]),
        Series("paper, lowest", "by-eps", [low for low, _ in bounds]),
        Series("paper, highest", "bar", [high for _, high in bounds]),
    ]
    yield columns("Part of an iteration at 400 Gb/s", [row.name for row in calls], series, " %")


def _delays(results: PaperResults) -> Iterator[Markup]:
    """Yield a figure of the iteration time over the reconfiguration delay.

    Each forward dispatch needs other circuits than those that are lit.
    """
    evaluation = results.evaluation

    def times(seconds: measures.IterationSeconds, delays_s: Sequence[float]) -> list[float | None]:
        return [
            value_or_none(seconds, evaluation, _EXAMPLE, 400e9, delay_s) for delay_s in delays_s
        ]

    def relative(seconds: measures.IterationSeconds) -> list[float | None]:
        (base,) = times(measures.blocked_iteration_s, [0.0])
        return [
            time / base if time and base else None for time in times(seconds, measures.DELAYS_S)
        ]

    blocked = relative(measures.blocked_iteration_s)
    series = [Series("blocked until light settles", "light", blocked)]
    if evaluation.is_predicted:
        diverted = relative(measures.diverted_iteration_s)
        series.append(Series("diverted to the EPS meanwhile", "k-dispatch", diverted))
    labels = measures.delay_texts()
    title = f"{_MODELS[_EXAMPLE]}, 400 Gb/s: iteration relative to no delay"
    yield lines(title, labels, series, logarithmic=True)


def _degrees(results: PaperResults) -> Iterator[Markup]:
    """Yield a figure of the iteration time over the optical degree at equal cost."""
    job, rate, seconds = results.evaluation.jobs[_EXAMPLE], 100e9, measures.degree_iteration_s
    base = seconds(job, rate, 6)
    series = _by_network(
        ("mixnet", "mixnet-spill"),
        measures.DEGREES,
        lambda name, degree: seconds(job, rate, degree, _POLICY_NETWORKS[name]) / base,
    )
    title = f"{_MODELS[_EXAMPLE]}, 100 Gb/s: iteration relative to degree 6"
    yield lines(title, [str(degree) for degree in measures.DEGREES], series)


def _failures(results: PaperResults) -> Iterator[Markup]:
    """Yield a figure of the additional iteration time with a failure."""
    jobs = results.evaluation.jobs
    cases = (("deepseek-r1", "nic"), ("mixtral-8x22b", "gpu"), ("deepseek-r1", "server"))
    rows = results.rows("failures")[: len(cases)]
    published = [row.paper[0] for row in rows if row.paper and row.paper[0] is not None]
    series = [Series("mixnet", _COLOURS["mixnet"], [row.value for row in rows], published)]

    def slower(network: str, case: tuple[str, str]) -> float:
        job, failed = case
        return 100 * slow_down(jobs[job], 400e9, failed, _POLICY_NETWORKS[network])

    series += _by_network(("mixnet-spill", "mixnet-joint"), cases, slower)
    yield columns("Longer iteration, 400 Gb/s", [row.name for row in rows], series, " %")


def _predictions(results: PaperResults) -> Iterator[Markup]:
    """Yield figures of the predictors' accuracy, and of the cost of wrong predictions."""
    quality = results.evaluation.prediction_quality
    predictors = list(quality.accuracy)
    accuracy = [100 * share for share in quality.accuracy.values()]
    title = f"Top-{TOP_K} accuracy on the training trace"
    yield columns(title, predictors, [Series("predicted", "k-dispatch", accuracy)], " %")
    series = [
        Series(f"{optical} optical + {electrical} electrical NICs", class_, list(extra.values()))
        for ((optical, electrical), extra), class_ in zip(
            quality.extra_ms.items(), ("light", "k-dispatch"), strict=True
        )
    ]
    title = "Additional time of a dispatch after a wrong prediction"
    yield columns(title, predictors, series, " ms")


def _aims(results: PaperResults) -> Iterator[Markup]:
    """Yield figures of all-to-all and iteration relative to the EPS, at the worst rate."""
    evaluation = results.evaluation
    names = [_MODELS[job] for job in evaluation.jobs]
    quantities = {"All-to-all": tables.all_to_all_s, "Iteration": tables.iteration_s}

    def ratio(seconds: tables.Seconds, network: str, job: str) -> float | None:
        return value_or_none(tables.worst_ratio, seconds, evaluation, job, network)

    for quantity, seconds in quantities.items():
        series = _by_network(_POLICY_NETWORKS, list(evaluation.jobs), partial(ratio, seconds))
        yield columns(f"{quantity} relative to a non-blocking EPS", names, series, reference=1.0)


FIGURES: Final[Mapping[str, Callable[[PaperResults], Iterator[Markup]]]] = {
    "iteration": _iterations,
    "cost": _costs,
    "efficiency": _efficiencies,
    "share": _shares,
    "delay": _delays,
    "degree": _degrees,
    "failures": _failures,
    "copilot": _predictions,
    "aims": _aims,
}
"""Figures by table."""


def columns(
    title: str,
    groups: Sequence[str],
    series: Sequence[Series],
    unit: str = "",
    reference: float | None = None,
) -> Markup:
    """Return a chart of grouped columns that start at zero.

    Args:
        title: Title of the chart.
        groups: Names of the groups.
        series: Columns of each group.
        unit: Unit of the values.
        reference: Value of a horizontal line.
    """
    values = [value for curve in series for value in (*curve.values, *curve.published)]
    known = [value for value in values if value is not None]
    y = Axis.numbers(
        min([0.0, *known]), max([0.0, *known]) * 1.05 or 1.0, f"{{:g}}{unit}".format, 5
    )
    marks: list[Mark] = [] if reference is None else [Rule("reference", y=reference)]
    width = min(0.84 / len(series), 34.0 * len(groups) / _WIDTH)
    for g, group in enumerate(groups):
        for s, curve in enumerate(series):
            left = g + 0.5 + (s - len(series) / 2) * width
            marks += _column(curve, g, (left, left + 0.94 * width), group, unit)
    return _chart(title, Axis.names(groups), y, marks, series)


def _column(
    series: Series, number: int, x: tuple[float, float], group: str, unit: str
) -> Iterator[Mark]:
    value, name = series.values[number], f"{group}, {series.name}"
    if value is None:
        return
    published = series.published[number] if series.published else None
    tooltip = f"{name}: {value:.3g}{unit}"
    tooltip += "" if published is None else f", paper {published:.3g}{unit}"
    yield Box(x, (0.0, value), series.class_, tooltip)
    if published is not None:
        yield Line([(x[0], published), (x[1], published)], "published", tooltip)


def lines(
    title: str, labels: Sequence[str], series: Sequence[Series], *, logarithmic: bool = False
) -> Markup:
    """Return a chart of lines whose y axis starts near the least value.

    Args:
        title: Title of the chart.
        labels: Labels of the positions on the x axis, at equal distances.
        series: A line each.
        logarithmic: Whether the y axis is logarithmic.
    """
    values = [v for curve in series for v in curve.values if v is not None] or [0.0, 1.0]
    margin = 0.08 * (max(values) - min(values))
    y = Axis.numbers(min(values) - margin, max(values) + margin, most=5)
    if logarithmic:
        powers = [factor * 10.0**power for power in range(-9, 10) for factor in (1, 2, 5)]
        low, high = 0.9 * min(values), 1.1 * max(values)
        y = Axis(low, high, {n: f"{n:g}" for n in powers if low <= n <= high}, logarithmic=True)
    x = Axis(-0.5, len(labels) - 0.5, dict(enumerate(labels)))
    marks = list[Mark]()
    for curve in series:
        points = [(n, value) for n, value in enumerate(curve.values) if value is not None]
        marks.append(Line(points, f"curve c-{curve.class_}"))
        marks += [
            Dot(n, value, curve.class_, f"{curve.name}, {labels[n]}: {value:.4g}", 4.0)
            for n, value in points
        ]
    return _chart(title, x, y, marks, series)


def _chart(title: str, x: Axis, y: Axis, marks: Sequence[Mark], series: Sequence[Series]) -> Markup:
    legend = [(curve.class_, curve.name) for curve in series]
    panel = Panel(x, y, marks, _HEIGHT, title, legend=legend)
    return figure(title, [panel], width=_WIDTH)
