"""`moefabric sweep`: an experiment under many changes, on one machine or a Ray cluster."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moefabric.cli.options import FILE, INVALID, json_option, settings_option
from moefabric.cli.output import print_renderable, print_result, progress_reporter

if TYPE_CHECKING:
    from rich.table import Table

    from moefabric.sweep.summary import SweepSummary

_MOST_ROWS = 60


@click.command(short_help="Run an experiment under many changes.")
@click.argument("file", type=FILE, metavar="SWEEP")
@click.option("--out", type=FILE, help="Folder of the results. Default: out/NAME.")
@click.option("--cluster", metavar="ADDRESS", help="Use this Ray cluster; `auto` finds it.")
@click.option("--resume", is_flag=True, help="Go on: keep the runs that the folder has.")
@json_option
@settings_option
def sweep(
    file: Path,
    out: Path | None,
    cluster: str | None,
    resume: bool,
    as_json: bool,
    settings: tuple[str, ...],
) -> None:
    """Carry out the runs that the file SWEEP describes, each on cores of its own.

    Results, a table and a page with pictures go to one folder while runs end. Without --cluster,
    Ray runs on this machine for the time of the sweep. Exit status 1: a run has no result; 3: the
    measurements of a run can't be trusted.
    """
    from moefabric.api.sweep import Sweep

    loaded = Sweep.load(file, *settings)
    folder = out or Path("out") / loaded.spec.sweep
    with progress_reporter(loaded.spec.run_count) as reporter:
        result = loaded.run(folder, cluster=cluster, resume=resume, reporter=reporter)
    summary = result.summary
    if as_json:
        print_result(summary.to_json(), (), as_json=True)
    else:
        print_renderable(means_table(summary))
        click.echo(f"{folder / 'report.html'}: {len(summary.records)} runs")
    if summary.failed:
        sys.exit(1)
    sys.exit(INVALID if summary.invalid else 0)


def means_table(summary: "SweepSummary") -> "Table":
    """Return a row for each fabric at each point, with means and confidence intervals."""
    from rich.table import Table

    from moefabric.report.formatting import printable
    from moefabric.sweep.page import figure_cell

    axes, figures = summary.spec.axes, summary.spec.figures
    title = f"{summary.spec.sweep}: means, 95 % confidence"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in (*axes, "fabric"):
        table.add_column(name, overflow="fold")
    for name in ("n", *figures):
        table.add_column(name, justify="right")
    for point in summary.points[:_MOST_ROWS]:
        runs = max((sample.n for sample in point.figures.values()), default=0)
        values = [printable(point.values[axis]) for axis in axes]
        cells = [figure_cell(name, point.figures[name]) for name in figures]
        table.add_row(*values, printable(point.fabric), str(runs), *cells)
    if (hidden := len(summary.points) - _MOST_ROWS) > 0:
        table.caption = f"{hidden} more rows are in sweep.json"
    return table
