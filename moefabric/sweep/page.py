"""Page of a sweep: one HTML file that loads nothing else."""

from collections.abc import Iterator
from typing import Final

import yaml

from moefabric.report import formatting
from moefabric.report.formatting import printable
from moefabric.report.page import page_style, page_template
from moefabric.sweep.columns import ColumnText
from moefabric.sweep.pictures import sweep_pictures
from moefabric.sweep.statistics import PointFabric, Sample
from moefabric.sweep.summary import SweepSummary

_MOST_ROWS: Final = 500
"""Rows of the page's table."""


def sweep_page(summary: SweepSummary) -> str:
    """Return the whole HTML file. Text of the sweep is escaped; equal results give equal pages."""
    spec = summary.spec
    return page_template("moefabric.sweep").render(
        style=page_style(),
        summary=summary,
        pictures=list(sweep_pictures(summary.points, spec.axes, spec.figures)),
        columns=[ColumnText.of(name).title for name in spec.figures],
        rows=list(_rows(summary)),
        hidden=max(0, len(summary.points) - _MOST_ROWS),
        yaml=yaml.safe_dump(
            spec.model_dump(mode="json", exclude_unset=True), sort_keys=False, allow_unicode=True
        ),
        printable=printable,
        fmt=formatting,
    )


def figure_cell(name: str, sample: Sample) -> str:
    """Return a mean with half of its interval: `1.84 s ± 0.02 s`."""
    text = ColumnText.of(name).text
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


def _rows(summary: SweepSummary) -> Iterator[tuple[PointFabric, int, list[tuple[str, str]]]]:
    """Yield the fabrics at points with the number of their runs and the cells of their figures."""
    for point in summary.points[:_MOST_ROWS]:
        runs = max((sample.n for sample in point.figures.values()), default=0)
        cells = [
            (figure_cell(name, sample), ratio_cell(point.ratios.get(name)))
            for name, sample in point.figures.items()
        ]
        yield point, runs, cells
