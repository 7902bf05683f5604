"""Page of a sweep: one HTML file that loads nothing else, with a picture of each figure.

A picture shows the figure over one axis, by fabric, with confidence intervals.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import yaml
from markupsafe import Markup

from moefabric.api.sweeps.results import column
from moefabric.api.sweeps.summary import PointFabric, Sample, SweepResult
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
_DODGE: Final = 0.07
"""Distance of fabrics at one value of the axis, which keeps their intervals apart."""
_ZOOM: Final = 0.6
"""Ratio of the least to the greatest value above which a vertical axis doesn't start at 0."""


def sweep_page(summary: SweepResult) -> str:
    """Return the whole HTML file. Text of the sweep is escaped; equal results give equal pages."""
    spec = summary.spec
    return page_template("moefabric.api.sweeps").render(
        style=page_style(),
        summary=summary,
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


def means_table(summary: SweepResult, most: int) -> Table:
    """Return a row for each fabric at each point, with means and confidence intervals.

    Args:
        summary: The sweep.
        most: Most rows.
    """
    spec, rows = summary.spec, list[Row]()
    for point in summary.points[:most]:
        runs = max((sample.n for sample in point.figures.values()), default=0)
        cells = [
            Cell(figure_cell(name, sample), ratio_cell(point.ratios.get(name)))
            for name, sample in point.figures.items()
        ]
        values: Row = [printable(point.values[axis]) for axis in spec.axes]
        invalid = str(point.invalid or "")
        fabric = Cell(printable(point.fabric), style="bold")
        rows.append([*values, fabric, str(runs), invalid, *cells])
    names = [column(name).title for name in spec.figures]
    texts = {*spec.axes, "fabric"}
    return Table([*spec.axes, "fabric", "n", "invalid", *names], rows, texts, {"invalid"})


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
    facets = _facets(points, further_axes)
    columns = list(dict.fromkeys(point.values.get(across) for point in points))
    x = Axis(
        -0.5, len(columns) - 0.5,
        {k: printable("" if value is None else value) for k, value in enumerate(columns)},
        printable(across), grid="",
    )  # fmt: skip
    for name in figures:
        if not any(point.figures[name].n for point in points):
            continue
        text = column(name)
        y = _y_axis(points, name, text.text)
        panels = []
        for title, facet in list(facets.items())[:_MOST_CHARTS]:
            marks = list[Mark]()
            for k, fabric in enumerate(fabrics):
                own = [point for point in facet if point.fabric == fabric and point.figures[name].n]
                samples = {columns.index(p.values.get(across)): p.figures[name] for p in own}
                shift = (k - (len(fabrics) - 1) / 2) * _DODGE
                marks += _marks(k, fabric, shift, samples, text.text)
            panels.append(Panel(x, y, marks, heading=title))
        drawn = figure(text.title, panels, columns=min(3, len(panels)), legend=legend)
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
        values = (f"{axis.rpartition('.')[2]} {point.values[axis]}" for axis in axes)
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
    shift: float,
    samples: Mapping[int, Sample],
    text: Callable[[float], str],
) -> Iterator[Mark]:
    """Yield the curve of a fabric with its intervals and its single runs.

    Args:
        number: Position of the fabric among all.
        fabric: Its name.
        shift: Distance of its marks from their places on the horizontal axis.
        samples: Its values by place.
        text: Format of values.
    """
    colour, name = number % COLOURS, printable(fabric)
    points = [(k + shift, s.mean or 0.0, _tooltip(fabric, s, text)) for k, s in samples.items()]
    yield from curve(colour, points, dashed=number >= COLOURS)
    for k, sample in samples.items():
        if sample.interval:
            yield Interval(k + shift, *sample.interval, f"curve c{colour}")
        for value in sample.values if 1 < sample.n <= _MOST_SAMPLES else ():
            title = f"{name}: {text(value)}"
            yield Dot(k + shift, value, f"t{colour} sample", title, 2.0)


def _tooltip(fabric: str, sample: Sample, text: Callable[[float], str]) -> str:
    """Return a tooltip such as `eps: 1.84 s, 1.80 s to 1.88 s (95 %, 5 runs)`."""
    interval = sample.interval
    bounds = f", {text(interval[0])} to {text(interval[1])} (95 %" if interval else " ("
    runs = f"{', ' if interval else ''}{counted(sample.n, 'run')})"
    return f"{printable(fabric)}: {text(sample.mean or 0.0)}{bounds}{runs}"
