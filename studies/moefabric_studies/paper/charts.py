"""Charts of the paper's page: lines, and columns with the paper's values as strokes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from moefabric.api.charts import WIDTH, Axis, Box, Dot, Line, Mark, Panel, Rule, figure

_WIDTH: Final = (WIDTH - 24) / 2
"""Width of a chart, two of which are side by side on the page."""
_HEIGHT: Final = 188.0


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
