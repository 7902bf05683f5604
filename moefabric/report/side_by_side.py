"""Several runs side by side: a table for the terminal, and one HTML page with a picture."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup
from rich import box
from rich.console import RenderableType
from rich.table import Column, Table

from moefabric.report import formatting, svg
from moefabric.report.comparison_bars import comparison_bars
from moefabric.report.formatting import printable
from moefabric.report.page import page_style, page_template
from moefabric.report.summary import FabricSummary, overall_verdict, summaries
from moefabric.runner.result_model import RunResult, Verdict

_NAMES, _FIGURES, _GAP, _TOP, _BAR, _SPACE = 150.0, 80.0, 40.0, 62.0, 14.0, 14.0
_COLOURS: Final = ("k-dispatch", "light", "p-verify", "k-pipeline", "k-all-reduce", "k-expert")
"""Classes of the bars of runs; with more runs they repeat."""

Value = Callable[[FabricSummary], float | None]


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


def change(column: RunColumn, first: RunColumn, name: str, value: Value) -> float | None:
    """Return the relative change of a figure from the first run, if both have it."""
    fabrics = first.fabrics.get(name), column.fabrics.get(name)
    if column is first or fabrics[0] is None or fabrics[1] is None:
        return None
    before, after = value(fabrics[0]), value(fabrics[1])
    return after / before - 1 if before and after is not None else None


def runs_table(runs: Mapping[str, RunResult]) -> RenderableType:
    """Return a table with a row for each fabric and run; changes are from the first run."""
    columns = run_columns(runs)
    drawn = Table(
        *(Column(heading, no_wrap=True) for heading in ("fabric", "run", "verdict")),
        *(Column(heading, justify="right", no_wrap=True) for heading in _HEADINGS),
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    for name in fabric_names(columns):
        shown = printable(name)
        for column in columns:
            if (fabric := column.fabrics.get(name)) is None:
                continue
            cells = [
                formatting.seconds(fabric.iteration_s, 4),
                formatting.deviation(change(column, columns[0], name, lambda f: f.iteration_s)),
                formatting.seconds(fabric.measured_s, 4),
                formatting.deviation(change(column, columns[0], name, lambda f: f.measured_s)),
                formatting.percentage(fabric.optical_share),
            ]
            drawn.add_row(shown, column.label, str(fabric.verdict), *cells)
            shown = ""
    return drawn


_HEADINGS: Final = ("iteration", "change", "all-to-all", "change", "optical\nshare")


def runs_page(runs: Mapping[str, RunResult]) -> str:
    """Return one self-contained HTML page of several runs. Text of the runs is escaped."""
    columns = run_columns(runs)
    return page_template("moefabric.report", "runs.html.j2").render(
        style=page_style(),
        columns=columns,
        first=columns[0],
        names=fabric_names(columns),
        bars=runs_bars(columns),
        pictures=[(c, comparison_bars(summaries(c.run))) for c in columns if c.run.results],
        change=change,
        iteration=lambda fabric: fabric.iteration_s,
        all_to_all=lambda fabric: fabric.measured_s,
        printable=printable,
        fmt=formatting,
    )


def runs_bars(columns: Sequence[RunColumn]) -> Markup:
    """Draw iteration and all-to-all times: a group of bars for each fabric, a bar for each run."""
    names = fabric_names(columns)
    if not names:
        return Markup()
    group = len(columns) * (_BAR + 2) + _SPACE
    width = (svg.WIDTH - _NAMES - _GAP) / 2
    swatches = [(_colour(k), column.label) for k, column in enumerate(columns)]
    drawn = [svg.legend(_NAMES, 38, swatches)]
    panels: tuple[tuple[str, Value], ...] = (
        ("Iteration time", lambda fabric: fabric.iteration_s),
        ("All-to-all time", lambda fabric: fabric.measured_s),
    )
    for k, name in enumerate(names):
        y = _TOP + k * group + len(columns) * (_BAR + 2) / 2 + 4
        drawn.append(svg.label(_NAMES - 16, y, printable(name), "strong", "end"))
    for panel, (heading, value) in enumerate(panels):
        left = _NAMES + panel * (width + _GAP)
        longest = max(
            (value(f) or 0.0 for column in columns for f in column.fabrics.values()), default=0.0
        )
        across = svg.LinearScale(0.0, longest or 1.0, left, left + width - _FIGURES)
        drawn.append(svg.label(left, 16, heading, "strong"))
        for k, name in enumerate(names):
            for row, column in enumerate(columns):
                y = _TOP + k * group + row * (_BAR + 2)
                drawn += _bar(column, name, value, across, y, _colour(row))
    return svg.picture(svg.WIDTH, _TOP + len(names) * group, "Runs side by side", drawn)


def _bar(
    column: RunColumn, name: str, value: Value, across: svg.LinearScale, y: float, colour: str
) -> list[Markup]:
    fabric = column.fabrics.get(name)
    seconds = value(fabric) if fabric else None
    if seconds is None:
        return [svg.label(across.start, y + 11, "not measured", "faint")]
    text = formatting.seconds(seconds, 4)
    return [
        svg.bar(across, 0.0, seconds, y, _BAR, colour, f"{column.label}: {text}"),
        svg.label(across(seconds) + 8, y + 11, text, "small"),
    ]


def _colour(row: int) -> str:
    return _COLOURS[row % len(_COLOURS)]
