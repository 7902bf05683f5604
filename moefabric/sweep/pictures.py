"""Pictures of a sweep: each figure over one axis, by fabric, with confidence intervals."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from markupsafe import Markup

from moefabric.report import svg
from moefabric.report.formatting import counted, printable
from moefabric.report.small_charts import Axis, Chart, Curve, charts_figure
from moefabric.sweep.columns import ColumnText
from moefabric.sweep.point import Value
from moefabric.sweep.statistics import PointFabric, Sample

_COLOURS: Final = 8
_MOST_CHARTS: Final = 24
"""Charts of one figure; the table has all points."""
_MOST_SAMPLES: Final = 10
"""Most runs of a point that are drawn one by one."""
_DODGE: Final = 0.07
"""Distance of fabrics at one value of the axis, which keeps their intervals apart."""
_ZOOM: Final = 0.6
"""Ratio of the least to the greatest value above which a vertical axis doesn't start at 0."""
_TICK_ROOM: Final = 300.0
"""Width of a chart's horizontal axis at three charts in a row."""


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
    legend = [(f"t{_colour(k)}", printable(name)) for k, name in enumerate(fabrics)]
    facets = _facets(points, further_axes)
    columns = list(dict.fromkeys(point.values.get(across) for point in points))
    for name in figures:
        if not any(point.figures[name].n for point in points):
            continue
        text = ColumnText.of(name)
        x, y = _x_axis(across, columns), _y_axis(points, name, text.text)
        charts = []
        for title, facet in list(facets.items())[:_MOST_CHARTS]:
            samples = {
                (point.fabric, columns.index(point.values.get(across))): sample
                for point in facet
                if (sample := point.figures[name]).n
            }
            curves = [_curve(k, fabrics, samples, text.text) for k in range(len(fabrics))]
            charts.append(Chart(title, x, y, curves, reference=None))
        drawn = charts_figure(text.title, charts, legend, columns=min(3, len(charts)))
        yield SweepPicture(text.title, drawn, max(0, len(facets) - _MOST_CHARTS))


def _horizontal(points: Sequence[PointFabric], axes: Sequence[str]) -> str:
    """Return the first axis with several values; empty if there is no axis."""
    several = (axis for axis in axes if len({point.values[axis] for point in points}) > 1)
    return next(several, axes[0] if axes else "")


def _facets(
    points: Sequence[PointFabric], axes: Sequence[str]
) -> Mapping[str, Sequence[PointFabric]]:
    """Return points by the text of their values on some axes."""
    facets: dict[str, list[PointFabric]] = {}
    for point in points:
        values = (f"{_short(axis)} {point.values[axis]}" for axis in axes)
        facets.setdefault(printable(", ".join(values)), []).append(point)
    return facets


def _short(axis: str) -> str:
    """Return the last key of a place."""
    return axis.rpartition(".")[2]


def _x_axis(axis: str, columns: Sequence[Value | None]) -> Axis:
    values = [printable("" if value is None else value) for value in columns]
    widest = max((svg.text_width(value, 11.5) + 12 for value in values), default=1.0)
    step = max(1, ceil(widest * len(values) / _TICK_ROOM))
    ticks = {float(k): value for k, value in enumerate(values) if k % step == 0}
    return Axis(-0.5, len(values) - 0.5, ticks, title=printable(axis))


def _y_axis(points: Sequence[PointFabric], name: str, text: Callable[[float], str]) -> Axis:
    samples = [point.figures[name] for point in points if point.figures[name].n]
    ends = [end for sample in samples for end in (*(sample.interval or ()), *sample.values)]
    low, high = min(ends), max(ends)
    room = 0.05 * (high - low)
    if low >= 0 and (low < _ZOOM * high or not room):
        low, high = 0.0, high * 1.05 or 1.0
    else:
        low, high = low - room, high + room
    return Axis(low, high, {tick: text(tick) for tick in svg.ticks(low, high, 5)})


def _curve(
    number: int,
    fabrics: Sequence[str],
    samples: Mapping[tuple[str, int], Sample],
    text: Callable[[float], str],
) -> Curve:
    """Return the curve of one of the fabrics.

    Args:
        number: Its position among the fabrics.
        fabrics: Names of all fabrics.
        samples: Values by fabric and position on the horizontal axis.
        text: Format of values.
    """
    fabric, shift = fabrics[number], (number - (len(fabrics) - 1) / 2) * _DODGE
    drawn = [(k + shift, sample) for (name, k), sample in samples.items() if name == fabric]
    return Curve(
        str(_colour(number)),
        [(x, s.mean or 0.0, _tooltip(fabric, s, text)) for x, s in drawn],
        is_null=number >= _COLOURS,
        intervals=[(x, *s.interval) for x, s in drawn if s.interval],
        samples=[
            (x, value, f"{printable(fabric)}: {text(value)}")
            for x, s in drawn
            if 1 < s.n <= _MOST_SAMPLES
            for value in s.values
        ],
    )


def _tooltip(fabric: str, sample: Sample, text: Callable[[float], str]) -> str:
    """Return a tooltip such as `eps: 1.84 s, 1.80 s to 1.88 s (95 %, 5 runs)`."""
    interval = sample.interval
    bounds = f", {text(interval[0])} to {text(interval[1])} (95 %" if interval else " ("
    runs = f"{', ' if interval else ''}{counted(sample.n, 'run')})"
    return f"{printable(fabric)}: {text(sample.mean or 0.0)}{bounds}{runs}"


def _colour(number: int) -> int:
    return number % _COLOURS
