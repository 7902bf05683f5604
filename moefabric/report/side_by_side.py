"""Several runs side by side: a table for the terminal, and one HTML page with a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from markupsafe import Markup
from rich.console import RenderableType

from moefabric.report import chart, formatting
from moefabric.report.bars import FIGURE, comparison_bars, missing
from moefabric.report.chart import Panel
from moefabric.report.formatting import printable
from moefabric.report.marks import Axis, Box, Mark, Text, untrusted
from moefabric.report.page import page_template
from moefabric.report.summary import COLUMNS, FabricSummary, overall_verdict, summaries
from moefabric.report.tables import Cell, Row, Table, html_table, rich_table
from moefabric.results.model import RunResult, Verdict

_FIGURES: Final = ("iteration_s", "exposed_comm_s", "all_to_all_s", "vs_eps", "optical_share")
_CHANGES: Final = ("iteration_s", "all_to_all_s")
"""Figures whose changes are shown."""
_COLOURS: Final = (1, 4, 2, 3, 6, 0)
"""Colours of the runs' bars, in order."""


@dataclass(frozen=True)
class RunColumn:
    """A run of the comparison: its label, and its fabrics by name."""

    label: str
    run: RunResult
    fabrics: Mapping[str, FabricSummary]

    @property
    def verdict(self) -> Verdict:
        """Worst verdict of the run."""
        return overall_verdict(self.run)


def run_columns(runs: Mapping[str, RunResult]) -> list[RunColumn]:
    """Return runs with their fabrics by name, in order."""
    return [
        RunColumn(printable(label), run, {s.result.fabric: s for s in summaries(run)})
        for label, run in runs.items()
    ]


def fabric_names(columns: Sequence[RunColumn]) -> list[str]:
    """Return the names of the fabrics of all runs, in the order of the first that has each."""
    return list(dict.fromkeys(name for column in columns for name in column.fabrics))


def _change(column: RunColumn, first: RunColumn, name: str, figure: str) -> str:
    """Return the relative change of a figure from the first run.

    It is empty in the first run, and if one of both fabrics is invalid.
    """
    both = [one.fabrics[name] for one in (first, column) if name in one.fabrics]
    if len(both) < 2 or any(fabric.is_invalid for fabric in both):
        return ""
    before, after = (fabric[figure] for fabric in both)
    if column is first or not before or after is None:
        return ""
    return formatting.deviation(after / before - 1)


def _figures(columns: Sequence[RunColumn], *, wide: bool) -> Table:
    """Return a row for each fabric and run; changes are from the first run.

    Args:
        wide: Whether there is room for all figures. Then changes stand below their times.
    """
    shown = [name for name in _FIGURES if wide or name in (*_CHANGES, "optical_share")]
    beside = () if wide else _CHANGES
    heads = ["fabric", "run", "verdict"]
    for figure in shown:
        heads += [COLUMNS[figure].heading, *["change"] * (figure in beside)]
    rows = list[Row]()
    for name in fabric_names(columns):
        having = [column for column in columns if name in column.fabrics]
        for column in having:
            fabric = column.fabrics[name]
            first = printable(name) if wide or column is having[0] else ""
            rows.append([first, column.label, fabric.verdict])
            for figure in shown:
                change = _change(column, columns[0], name, figure) if figure in _CHANGES else ""
                text, below = fabric.text(figure), change if wide else ""
                rows[-1].append(Cell(text, below, void=fabric.is_invalid))
                rows[-1] += [change or formatting.MISSING] * (figure in beside)
    return Table(heads, rows, {"run", "verdict"})


def runs_table(runs: Mapping[str, RunResult]) -> RenderableType:
    """Return a table for the terminal, with a row for each fabric and run."""
    return rich_table(_figures(run_columns(runs), wide=False))


def runs_page(runs: Mapping[str, RunResult]) -> str:
    """Return one self-contained HTML page of several runs. Text of the runs is escaped."""
    columns = run_columns(runs)
    return page_template("moefabric.report", "runs.html.j2").render(
        columns=columns,
        first=columns[0],
        figures=html_table(_figures(columns, wide=True)),
        bars=runs_bars(columns),
        pictures=[(c, comparison_bars(summaries(c.run))) for c in columns if c.run.results],
        printable=printable,
    )


def runs_bars(columns: Sequence[RunColumn]) -> Markup:
    """Draw iteration and all-to-all times: a group of bars for each fabric, a bar for each run."""
    fabrics, size = fabric_names(columns), len(columns) + 1
    ticks = {n * size + (size - 1) / 2: printable(name) for n, name in enumerate(fabrics)}
    rows = len(fabrics) * size - 1
    names = Axis(rows, 0.0, ticks, grid="", class_="strong")
    legend = [(f"t{_COLOURS[n % len(_COLOURS)]}", column.label) for n, column in enumerate(columns)]
    panels = []
    for figure in _CHANGES:
        longest_s, marks = 0.0, list[Mark]()
        for (group, name), (n, column) in product(enumerate(fabrics), enumerate(columns)):
            row, (colour, label) = group * size + n, legend[n]
            fabric = column.fabrics.get(name)
            seconds = fabric[figure] if fabric else None
            if fabric is None or seconds is None:
                marks.append(missing(row + 0.5))
                continue
            longest_s, text = max(longest_s, seconds), formatting.seconds(seconds, 4)
            text += " (invalid)" * fabric.is_invalid
            bar = Box((0.0, seconds), (row, row + 0.88), colour, f"{label}: {text}")
            marks += untrusted(
                [bar, Text(seconds, row + 0.44, text, "small", dx=8)], invalid=fabric.is_invalid
            )
        title, axis, right = COLUMNS[figure].title, Axis(0.0, longest_s or 1.0), FIGURE + 8
        panels.append(Panel(axis, names, marks, 16.0 * rows, title, right=right))
        names = names.untitled
    return chart.figure("Runs side by side", panels if fabrics else [], columns=2, legend=legend)
