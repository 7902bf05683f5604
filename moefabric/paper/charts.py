"""Charts in the report's SVG style: lines, and columns with the paper's values as strokes."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from moefabric.report import svg

_LEFT, _RIGHT, _TOP, _BOTTOM = 54.0, 12.0, 58.0, 34.0
_WIDTH: Final = (svg.WIDTH - 24) / 2
"""Width of a chart, two of which are side by side on the page."""
_HEIGHT: Final = 280.0


@dataclass(frozen=True)
class Series:
    """Values of one colour.

    Attributes:
        name: name in the legend.
        class_: CSS class of the colour.
        values: a value for each group of columns, or for each position of lines; None leaves a gap.
        published: the paper's values of the groups.
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
        title: title of the chart.
        groups: names of the groups.
        series: columns of each group.
        unit: unit of the values.
        reference: value of a horizontal line.
    """
    values = [value for one in series for value in one.values if value is not None]
    published = [value for one in series for value in one.published]
    low, high = min([0.0, *values]), max([0.0, *values, *published])
    y = svg.LinearScale(low, high * 1.05 or 1.0, _HEIGHT - _BOTTOM, _TOP)
    ticks = [(tick, f"{tick:g}{unit}") for tick in svg.ticks(y.low, y.high, 5)]
    elements = _frame(title, y, ticks, series)
    group_width = (_WIDTH - _LEFT - _RIGHT) / len(groups)
    column_width = min(34.0, group_width * 0.84 / len(series))
    for g, group in enumerate(groups):
        center = _LEFT + (g + 0.5) * group_width
        elements.append(svg.label(center, _HEIGHT - 12, group, "tick", "middle"))
        left = center - column_width * len(series) / 2
        for s, one in enumerate(series):
            x, name = left + s * column_width, f"{group}, {one.name}"
            elements += _column(one, g, x, column_width, y, name, unit)
    if reference is not None:
        elements.append(svg.line(_LEFT, y(reference), _WIDTH - _RIGHT, y(reference), "reference"))
    return svg.picture(_WIDTH, _HEIGHT, title, elements)


def _column(
    series: Series, group: int, x: float, width: float, y: svg.LinearScale, name: str, unit: str
) -> list[Markup]:
    value = series.values[group]
    if value is None:
        return []
    tooltip, strokes = f"{name}: {value:.3g}{unit}", []
    if series.published:
        published = series.published[group]
        tooltip += f", paper {published:.3g}{unit}"
        strokes = [svg.rect(x - 1, y(published) - 1.5, width + 2, 3, "target", title=tooltip)]
    top, bottom = sorted((y(value), y(0.0)))
    return [svg.rect(x + 1, top, width - 2, bottom - top, series.class_, title=tooltip), *strokes]


def lines(
    title: str, labels: Sequence[str], series: Sequence[Series], *, logarithmic: bool = False
) -> Markup:
    """Return a chart of lines whose y axis starts near the least value.

    Args:
        title: title of the chart.
        labels: labels of the positions on the x axis, at equal distances.
        series: a line each.
        logarithmic: whether the y axis is logarithmic.
    """
    scale = math.log10 if logarithmic else float
    values = [scale(value) for one in series for value in one.values if value is not None]
    values = values or [0.0, 1.0]
    margin = 0.08 * (max(values) - min(values))
    y = svg.LinearScale(min(values) - margin, max(values) + margin, _HEIGHT - _BOTTOM, _TOP)
    across = svg.LinearScale(0, len(labels) - 1, _LEFT + 24, _WIDTH - _RIGHT - 24)
    xs = [across(position) for position in range(len(labels))]
    ticks = _logarithmic_ticks(y) if logarithmic else svg.ticks(y.low, y.high, 5)
    texts = [(tick, f"{10**tick if logarithmic else tick:g}") for tick in ticks]
    elements = _frame(title, y, texts, series)
    elements += [
        svg.label(x, _HEIGHT - 12, label, "tick", "middle")
        for x, label in zip(xs, labels, strict=True)
    ]
    for one in series:
        points = [
            (x, y(scale(value)), f"{one.name}, {label}: {value:.4g}")
            for x, value, label in zip(xs, one.values, labels, strict=True)
            if value is not None
        ]
        elements.append(svg.path([(px, py) for px, py, _ in points], f"curve c-{one.class_}"))
        elements += [
            svg.rect(px - 4, py - 4, 8, 8, one.class_, title=tooltip, radius=4)
            for px, py, tooltip in points
        ]
    return svg.picture(_WIDTH, _HEIGHT, title, elements)


def _frame(
    title: str, y: svg.LinearScale, ticks: Iterable[tuple[float, str]], series: Sequence[Series]
) -> list[Markup]:
    """Return title, horizontal grid with the texts of its ticks, and legend."""
    elements = [svg.label(0, 16, title, "strong")]
    for tick, text in ticks:
        elements.append(svg.line(_LEFT, y(tick), _WIDTH - _RIGHT, y(tick), "grid"))
        elements.append(svg.label(_LEFT - 8, y(tick) + 4, text, "tick", "end"))
    elements.append(svg.legend(_LEFT, 38, [(one.class_, one.name) for one in series]))
    return elements


def _logarithmic_ticks(y: svg.LinearScale) -> list[float]:
    """Return the logarithms of 1, 2 and 5 times the powers of ten on an axis."""
    ticks = [
        math.log10(factor) + power
        for power in range(math.floor(y.low), math.ceil(y.high) + 1)
        for factor in (1, 2, 5)
    ]
    return [tick for tick in ticks if y.low - 1e-9 <= tick <= y.high + 1e-9]
