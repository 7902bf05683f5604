"""Page of a sweep: one HTML file that loads nothing else."""

from typing import Final

import yaml

from moefabric.api.sweeps.columns import column
from moefabric.api.sweeps.pictures import sweep_pictures
from moefabric.api.sweeps.statistics import Sample
from moefabric.api.sweeps.summary import SweepSummary
from moefabric.report import formatting
from moefabric.report.formatting import printable
from moefabric.report.page import page_style, page_template
from moefabric.report.tables import Cell, Row, Table, html_table

_MOST_ROWS: Final = 500
"""Rows of the page's table."""


def sweep_page(summary: SweepSummary) -> str:
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


def means_table(summary: SweepSummary, most: int) -> Table:
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
        rows.append(
            [*values, Cell(printable(point.fabric), style="bold"), str(runs), invalid, *cells]
        )
    names = [column(name).title for name in spec.figures]
    texts = {*spec.axes, "fabric"}
    return Table([*spec.axes, "fabric", "n", "invalid", *names], rows, texts, {"invalid"})
