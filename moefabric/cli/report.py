"""`moefabric report`: saved results as tables, pages and pictures."""

from pathlib import Path

import click

from moefabric.cli.options import FILE
from moefabric.cli.output import check_writable, print_tables, write_output


@click.command(short_help="Show the results of a run from its JSON.")
@click.argument("run", type=FILE)
@click.option("--html", type=FILE, help="Write one self-contained HTML page instead of tables.")
@click.option(
    "--first-all-to-alls",
    "picture",
    type=FILE,
    help="Write a picture of the first all-to-alls (SVG) instead of tables.",
)
def report(run: Path, html: Path | None, picture: Path | None) -> None:
    """Show the results in the file RUN, which `moefabric run --json RUN` has written."""
    from moefabric.api.result import Result
    from moefabric.report.first_all_to_alls import first_all_to_alls_picture

    check_writable(html, picture)
    result = Result.load(run)
    if html is not None:
        write_output(html, result.page())
    if picture is not None:
        write_output(picture, first_all_to_alls_picture(result))
    if html is None and picture is None:
        print_tables(result)
