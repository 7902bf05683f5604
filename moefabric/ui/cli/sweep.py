"""`moefabric sweep`: an experiment under many changes, on one machine or a Ray cluster."""

import sys
from pathlib import Path

import click

from moefabric.api.commands import FILE, INVALID, print_renderable, print_result, progress_reporter
from moefabric.ui.cli.options import json_option, settings_option

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
    from moefabric.api.sweeps.page import means_table
    from moefabric.report.tables import rich_table

    loaded = Sweep.load(file, *settings)
    folder = out or Path("out") / loaded.spec.sweep
    with progress_reporter(loaded.spec.run_count) as reporter:
        result = loaded.run(folder, cluster=cluster, resume=resume, reporter=reporter)
    summary = result.summary
    if as_json:
        print_result(summary.to_json(), (), as_json=True)
    else:
        click.echo(f"{loaded.spec.sweep}: means, 95 % confidence")
        print_renderable(rich_table(means_table(summary, _MOST_ROWS)))
        if (hidden := len(summary.points) - _MOST_ROWS) > 0:
            click.echo(f"{hidden} more rows are in sweep.json")
        click.echo(f"{folder / 'report.html'}: {len(summary.records)} runs")
    if summary.failed:
        sys.exit(1)
    sys.exit(INVALID if summary.invalid else 0)
