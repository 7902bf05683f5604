"""Page of a sweep: one HTML file that loads nothing else, with a picture of each figure.

A picture shows the figure over one axis, by fabric, with confidence intervals.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import isclose
from typing import Final

import yaml
from markupsafe import Markup

from moefabric.api.sweeps.engine import Value
from moefabric.api.sweeps.outcome import axis_names, sweep_outcome
from moefabric.api.sweeps.results import column
from moefabric.api.sweeps.summary import PointFabric, Sample, SweepResult
from moefabric.core import units
from moefabric.report import formatting
from moefabric.report.chart import Panel, figure
from moefabric.report.formatting import counted, printable
from moefabric.report.marks import COLOURS, Axis, Dot, Interval, Mark, curve
from moefabric.report.page import page_style, page_template
from moefabric.report.tables import Cell, Row, Table, html_table

_MOST_ROWS: Final = 500
"""Rows of the page's table."""
_MOST_CHARTS: Final = 24
"""Charts of one figure; the table has all points."""
_MOST_SAMPLES: Final = 10
"""Most runs of a point that are drawn one by one."""
_WIDE: Final = 50.0
"""Ratio of the greatest to the least value from which on a horizontal axis is logarithmic."""
_ROOM: Final = 0.05
"""Part of a horizontal axis that is free at each end."""
_ZOOM: Final = 0.6
"""Ratio of the least to the greatest value above which a vertical axis doesn't start at 0."""
_NEAR: Final = 0.03
"""Part of a vertical axis within which a curve hides another: five pixels."""
_BESIDE: Final = 8.0
"""Pixels between the intervals of two fabrics at one place."""


def sweep_page(summary: SweepResult) -> str:
    """Return the whole HTML file. Text of the sweep is escaped; equal results give equal pages."""
    spec = summary.spec
    return page_template("moefabric.api.sweeps").render(
        style=page_style(),
        summary=summary,
        outcome=sweep_outcome(summary),
        pictures=list(sweep_pictures(summary.points, spec.axes, spec.figures)),
        means=html_table(means_table(summary, _MOST_ROWS)),
        hidden=max(0, len(summary.points) - _MOST_ROWS),
        yaml=yaml.safe_dump(
            spec.model_dump(mode="json", exclude_unset=True), sort_keys=False, allow_unicode=True
        ),
        printable=printable,
        fmt=formatting,
    )


def figure_cell(name: str, sample: Sample) -> str:
    """Return a mean with half of its interval: `1.84 s ± 0.02 s`."""
    text = column(name).text
    if sample.mean is None:
        return formatting.MISSING
    if sample.half_width is None:
        return text(sample.mean)
    return f"{text(sample.mean)} ± {text(sample.half_width).lstrip('+')}"


def ratio_cell(sample: Sample | None) -> str:
    """Return a mean ratio with half of its interval: `0.82x ± 0.01`; empty without one."""
    if sample is None or sample.mean is None:
        return ""
    half = "" if sample.half_width is None else f" ± {sample.half_width:.2f}"
    return formatting.ratio(sample.mean) + half


def means_table(summary: SweepResult, most: int, figures: Sequence[str] = ()) -> Table:
    """Return a row for each fabric at each point, with means and confidence intervals.

    Args:
        most: Most rows.
        figures: Names of the figures; none stand for all.
    """
    spec, rows = summary.spec, list[Row]()
    shown, short = figures or spec.figures, axis_names(spec.axes)
    for point in summary.points[:most]:
        runs = max((sample.n for sample in point.figures.values()), default=0)
        cells = [
            Cell(figure_cell(name, point.figures[name]), ratio_cell(point.ratios.get(name)))
            for name in shown
        ]
        values: Row = [printable(point.values[axis]) for axis in spec.axes]
        invalid = str(point.invalid or "")
        fabric = Cell(printable(point.fabric), style="bold")
        rows.append([*values, fabric, str(runs), invalid, *cells])
    names, axes = [column(name).title for name in shown], [short[axis] for axis in spec.axes]
    headings = [*axes, "fabric", "n", "invalid", *names]
    return Table(headings, rows, {*axes, "fabric"}, {"invalid"})


@dataclass(frozen=True)
class SweepPicture:
    """Picture of one figure.

    Attributes:
        title: Name of the figure.
        svg: Its charts.
        hidden: Number of charts that are left out.
    """

    title: str
    svg: Markup
    hidden: int


def sweep_pictures(
    points: Sequence[PointFabric], axes: Sequence[str], figures: Sequence[str]
) -> Iterator[SweepPicture]:
    """Yield a picture for each figure that has values.

    Args:
        points: Each fabric at each point.
        axes: The axes. The first one with several values is horizontal; there is a chart for each
            combination of the others.
        figures: Names of the figures.
    """
    fabrics = list(dict.fromkeys(point.fabric for point in points))
    across = _horizontal(points, axes)
    further_axes = [axis for axis in axes if axis != across]
    legend = [(f"t{k % COLOURS}", printable(name)) for k, name in enumerate(fabrics)]
    facets = _facets(points, further_axes, axis_names(axes))
    columns = list(dict.fromkeys(point.values.get(across) for point in points))
    places, x = _horizontal_axis(columns, across)
    for name in figures:
        if not any(point.figures[name].n for point in points):
            continue
        text = column(name)
        y = _y_axis(points, name, text.text)
        beside = _BESIDE * any(point.figures[name].interval for point in points)
        panels = []
        for title, facet in list(facets.items())[:_MOST_CHARTS]:
            curves = dict[str, dict[float, Sample]]()
            for point in facet:
                if point.figures[name].n:
                    place = places[columns.index(point.values.get(across))]
                    curves.setdefault(point.fabric, {})[place] = point.figures[name]
            equal = _equal_curves(curves)
            near = _equal_curves(curves, _NEAR * (y.high - y.low))
            marks = list[Mark]()
            for fabric in (fabric for fabric in fabrics if fabric in curves):
                covers = any(fabric in group[1:] for group in near)
                number = fabrics.index(fabric)
                dx = beside * (number - (len(fabrics) - 1) / 2)
                marks += _marks(number, fabric, curves[fabric], text.text, dx, covers=covers)
            note = "\n".join(printable(" = ".join(group)) for group in equal)
            panels.append(Panel(x, y, marks, heading=title, note=note))
        drawn = figure(text.title, panels, columns=min(3, len(panels)), legend=legend)
        yield SweepPicture(text.title, drawn, max(0, len(facets) - _MOST_CHARTS))


def _horizontal(points: Sequence[PointFabric], axes: Sequence[str]) -> str:
    """Return the first axis with several values; empty if there is no axis."""
    several = (axis for axis in axes if len({point.values[axis] for point in points}) > 1)
    return next(several, axes[0] if axes else "")


def _horizontal_axis(columns: Sequence[Value | None], title: str) -> tuple[list[float], Axis]:
    """Return the place of each value on the horizontal axis, and the axis.

    Numbers, times, rates and sizes are at their true distances, other values side by side.
    """
    texts = [printable("" if value is None else value) for value in columns]
    numbers = _numbers(columns)
    if not numbers or min(numbers) == max(numbers):
        places = [float(k) for k in range(len(columns))]
        ticks = dict(zip(places, texts, strict=True))
        return places, Axis(-0.5, len(columns) - 0.5, ticks, printable(title), grid="")
    low, high = min(numbers), max(numbers)
    logarithmic = low > 0 and high / low >= _WIDE
    if logarithmic:
        ends = low * (low / high) ** _ROOM, high * (high / low) ** _ROOM
    else:
        ends = low - _ROOM * (high - low), high + _ROOM * (high - low)
    ticks = dict(zip(numbers, texts, strict=True))
    return numbers, Axis(*ends, ticks, printable(title), logarithmic, grid="")


def _numbers(values: Sequence[Value | None]) -> list[float] | None:
    """Return values as numbers of one kind; None if they aren't."""
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return [float(v) for v in values if isinstance(v, int | float)]
    for parse in (units.duration_ns, units.rate_bps, units.size_bytes):
        with suppress(ValueError):
            parsed = [parse(v) for v in values if isinstance(v, str)]
            if len(parsed) == len(values):
                return [*map(float, parsed)]
    return None


def _equal_curves(
    curves: Mapping[str, Mapping[float, Sample]], within: float = 0.0
) -> list[list[str]]:
    """Return the fabrics whose means are equal everywhere, or as near as that, group by group."""
    groups: list[list[str]] = []
    for fabric, samples in curves.items():
        for group in groups:
            other = curves[group[0]]
            if samples.keys() == other.keys() and all(
                isclose(samples[place].mean or 0.0, other[place].mean or 0.0, abs_tol=within)
                for place in samples
            ):
                group.append(fabric)
                break
        else:
            groups.append([fabric])
    return [group for group in groups if len(group) > 1]


def _facets(
    points: Sequence[PointFabric], axes: Sequence[str], short: Mapping[str, str]
) -> Mapping[str, Sequence[PointFabric]]:
    """Return points by the text of their values on some axes."""
    facets: dict[str, list[PointFabric]] = {}
    for point in points:
        values = (f"{short[axis]} {point.values[axis]}" for axis in axes)
        facets.setdefault(printable(", ".join(values)), []).append(point)
    return facets


def _y_axis(points: Sequence[PointFabric], name: str, text: Callable[[float], str]) -> Axis:
    samples = [point.figures[name] for point in points if point.figures[name].n]
    ends = [end for sample in samples for end in (*(sample.interval or ()), *sample.values)]
    low, high = min(ends), max(ends)
    room = 0.05 * (high - low)
    if low >= 0 and (low < _ZOOM * high or not room):
        low, high = 0.0, high * 1.05 or 1.0
    else:
        low, high = low - room, high + room
    return Axis.numbers(low, high, text, 5)


def _marks(
    number: int,
    fabric: str,
    samples: Mapping[float, Sample],
    text: Callable[[float], str],
    dx: float,
    *,
    covers: bool,
) -> Iterator[Mark]:
    """Yield the curve of a fabric with its intervals and its single runs.

    Args:
        number: Position of the fabric among all.
        fabric: Its name.
        samples: Its values by place on the horizontal axis.
        text: Format of values.
        dx: Pixels by which it stands beside its place, so that intervals don't hide each other.
        covers: Whether it lies on the curve of another fabric, which shows between its dashes.
    """
    colour, name = number % COLOURS, printable(fabric)
    ordered = sorted(samples.items())
    points = [(place, s.mean or 0.0, _tooltip(fabric, s, text)) for place, s in ordered]
    yield from curve(colour, points, dashed=covers or number >= COLOURS, marks=not covers, dx=dx)
    if covers:
        yield from (Dot(x, y, f"t{colour}", title, 1.6, dx) for x, y, title in points)
    for place, sample in ordered:
        if sample.interval:
            yield Interval(place, *sample.interval, f"curve c{colour}", dx)
        for value in sample.values if 1 < sample.n <= _MOST_SAMPLES else ():
            title = f"{name}: {text(value)}"
            yield Dot(place, value, f"t{colour} sample", title, 2.5, dx + 4)


def _tooltip(fabric: str, sample: Sample, text: Callable[[float], str]) -> str:
    """Return a tooltip such as `eps: 1.84 s, 1.80 s to 1.88 s (95 %, 5 runs)`."""
    interval = sample.interval
    bounds = f", {text(interval[0])} to {text(interval[1])} (95 %" if interval else " ("
    runs = f"{', ' if interval else ''}{counted(sample.n, 'run')})"
    return f"{printable(fabric)}: {text(sample.mean or 0.0)}{bounds}{runs}"
