"""`moefabric report`: saved results as tables, pages and pictures."""

from collections.abc import Sequence
from pathlib import Path

import click

from moefabric.api.commands import (
    FILE,
    check_writable,
    print_renderable,
    print_tables,
    write_output,
)


@click.command(short_help="Show the results of runs from their JSON.")
@click.argument("runs", type=FILE, nargs=-1, required=True, metavar="RUN...")
@click.option("--html", type=FILE, help="Write one self-contained HTML page instead of tables.")
@click.option(
    "--first-all-to-alls",
    "picture",
    type=FILE,
    help="Write a picture of the first all-to-alls (SVG) instead of tables. One RUN only.",
)
def report(runs: tuple[Path, ...], html: Path | None, picture: Path | None) -> None:
    """Show the results in files RUN, which `moefabric run --json RUN` has written.

    Several runs are shown side by side, with changes from the first.
    """
    if len(runs) > 1 and picture is not None:
        raise click.UsageError("--first-all-to-alls: give one RUN")
    check_writable(html, picture)
    if len(runs) > 1:
        _report_several(runs, html)
    else:
        _report_one(runs[0], html, picture)


def _report_one(run: Path, html: Path | None, picture: Path | None) -> None:
    from moefabric.api.result import Result
    from moefabric.report.bars import first_all_to_alls_picture

    result = Result.load(run)
    if html is not None:
        write_output(html, result.page())
    if picture is not None:
        write_output(picture, first_all_to_alls_picture(result))
    if html is None and picture is None:
        print_tables(result)


def _report_several(files: Sequence[Path], html: Path | None) -> None:
    from moefabric.api.runs import Runs

    runs = Runs.load(*files)
    if html is None:
        print_renderable(runs.renderable())
    else:
        write_output(html, runs.page())
