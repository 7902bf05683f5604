"""Small charts of curves side by side, as SVG files and as figures of a page."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from markupsafe import Markup

from moefabric.report import svg
from moefabric.report.picture_file import WIDTH, picture_file

_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 14.0, 30.0, 40.0
_HEIGHT: Final = 230.0
"""Height of a chart with its title and axes."""
_TITLE: Final = 18.0
"""Height of a picture's title."""
_LEGEND: Final = 46.0
"""Height of a legend of one line."""


@dataclass(frozen=True)
class Axis:
    """An axis, linear or logarithmic, with the texts of its ticks."""

    low: float
    high: float
    ticks: Mapping[float, str]
    logarithmic: bool = False
    title: str = ""

    def scale(self, start: float, end: float) -> svg.LinearScale:
        """Return the map of values, as `place` changes them, to positions."""
        return svg.LinearScale(self.place(self.low), self.place(self.high), start, end)

    def place(self, value: float) -> float:
        """Return a value within the axis, or its logarithm."""
        within = min(max(value, self.low), self.high)
        return math.log10(within) if self.logarithmic else within


@dataclass(frozen=True)
class Curve:
    """Values of one colour: (x, y, tooltip), in order.

    Attributes:
        colour: Number of the colour.
        points: The values.
        is_null: Whether the line is dashed.
        marks: Whether each value has a mark.
        joined: Whether a line joins the values.
        intervals: Intervals around values: (x, low, high).
        samples: What values are means of: (x, y, tooltip).
    """

    colour: str
    points: Sequence[tuple[float, float, str]]
    is_null: bool = False
    marks: bool = True
    joined: bool = True
    intervals: Sequence[tuple[float, float, float]] = ()
    samples: Sequence[tuple[float, float, str]] = ()


@dataclass(frozen=True)
class Chart:
    """A small chart. `reference` is the y value of a horizontal line."""

    title: str
    x: Axis
    y: Axis
    curves: Sequence[Curve] = field(default_factory=tuple)
    reference: float | None = 1.0


def charts_picture(
    title: str, charts: Sequence[Chart], legend: Sequence[tuple[str, str]], columns: int = 3
) -> str:
    """Return the text of an SVG file with charts in rows.

    Args:
        title: Title of the picture.
        charts: The charts, row by row.
        legend: Class and name of each colour: `t1` for curves of colour `1`.
        columns: Charts of a row.
    """
    height, drawn = _rows(charts, legend, columns, WIDTH, _TITLE)
    return picture_file(height, title, [svg.label(16, 22, title, "strong"), *drawn])


def charts_figure(
    title: str, charts: Sequence[Chart], legend: Sequence[tuple[str, str]], columns: int = 3
) -> Markup:
    """Return charts in rows for a page; `title` is their text for screen readers."""
    height, drawn = _rows(charts, legend, columns, svg.WIDTH, -12.0)
    return svg.picture(svg.WIDTH, height, title, drawn)


def _rows(
    charts: Sequence[Chart],
    legend: Sequence[tuple[str, str]],
    columns: int,
    width: float,
    top: float,
) -> tuple[float, list[Markup]]:
    """Return the height and the elements of a legend at `top` and of charts below it."""
    drawn, lines = list[Markup](), _legend_lines(legend, width)
    for number, entries in enumerate(lines):
        drawn.append(svg.legend(18, top + 28 + 20 * number, entries))
    head = top + _LEGEND + 20 * (len(lines) - 1)
    chart_width = (width - 16) / columns
    for number, chart in enumerate(charts):
        row, column = divmod(number, columns)
        drawn += _drawn(chart, 8 + column * chart_width, head + row * _HEIGHT, chart_width)
    return head + math.ceil(len(charts) / columns) * _HEIGHT + 6, drawn


def _legend_lines(legend: Sequence[tuple[str, str]], room: float) -> list[list[tuple[str, str]]]:
    """Return the entries of each line of a legend."""
    lines, x = [list[tuple[str, str]]()], 0.0
    for class_, name in legend:
        width = 40 + svg.text_width(name, 12)
        if x + width > room - 24:
            lines.append([])
            x = 0.0
        lines[-1].append((class_, name))
        x += width
    return lines


def _drawn(chart: Chart, left: float, top: float, width: float) -> Iterator[Markup]:
    """Yield the elements of a chart."""
    x = chart.x.scale(left + _LEFT + 6, left + width - _RIGHT)
    y = chart.y.scale(top + _HEIGHT - _BOTTOM, top + _TOP)
    start, end, bottom = left + _LEFT, left + width - _RIGHT + 6, top + _HEIGHT - _BOTTOM
    yield svg.label(start, top + 16, chart.title, "strong")
    for tick, text in chart.y.ticks.items():
        level = y(chart.y.place(tick))
        yield svg.line(start, level, end, level, "grid")
        yield svg.label(start - 6, level + 4, text, "tick", "end")
    if chart.reference is not None:
        level = y(chart.y.place(chart.reference))
        yield svg.line(start, level, end, level, "reference")
    for tick, text in chart.x.ticks.items():
        at = x(chart.x.place(tick))
        yield svg.line(at, bottom, at, bottom + 4, "reference")
        yield svg.label(at, bottom + 17, text, "tick", "middle")
    yield svg.label((start + end) / 2, bottom + 33, chart.x.title, "tick", "middle")
    for curve in chart.curves:
        yield from _curve(curve, chart, x, y)


def _curve(curve: Curve, chart: Chart, x: svg.LinearScale, y: svg.LinearScale) -> Iterator[Markup]:
    """Yield the line of a curve, its marks, intervals and samples."""

    def at(x_value: float, y_value: float) -> tuple[float, float]:
        return x(chart.x.place(x_value)), y(chart.y.place(y_value))

    dashed = " null" if curve.is_null else ""
    if curve.joined and len(curve.points) > 1:
        line = [at(x_value, y_value) for x_value, y_value, _ in curve.points]
        yield svg.path(line, f"curve c{curve.colour}{dashed}")
    for x_value, low, high in curve.intervals:
        (px, bottom), (_, top) = at(x_value, low), at(x_value, high)
        yield svg.line(px, bottom, px, top, f"curve c{curve.colour}")
        for end in (bottom, top):
            yield svg.line(px - 4, end, px + 4, end, f"curve c{curve.colour}")
    for x_value, y_value, title in curve.samples:
        yield svg.circle(*at(x_value, y_value), 2.0, f"t{curve.colour} sample", title)
    for x_value, y_value, title in curve.points if curve.marks else ():
        yield svg.circle(*at(x_value, y_value), 3.0, f"t{curve.colour}", title)
