"""`moefabric frontier`: iteration time against cost, with and without forwarding."""

from itertools import chain
from pathlib import Path

import click

from moefabric.cli.options import FILE
from moefabric.cli.output import STANDARD_OUTPUT, check_writable, progress_reporter, write_output


@click.command(short_help="Compare the cost and speed of fabrics with and without forwarding.")
@click.argument(
    "folder", type=click.Path(path_type=Path, file_okay=False), default=Path("examples/paper")
)
@click.option("--json", "json_file", type=FILE, help="Write every network as JSON.")
@click.option("--page", type=FILE, help="Write the page, in Markdown, with its pictures beside it.")
@click.option("--results", type=FILE, help="Take the results of an earlier run; compute nothing.")
@click.option(
    "--run",
    "runs",
    type=FILE,
    multiple=True,
    help="JSON of a run of examples/forwarding-*.yaml, to be set beside.",
)
def frontier(
    folder: Path,
    json_file: Path | None,
    page: Path | None,
    results: Path | None,
    runs: tuple[Path, ...],
) -> None:
    """Predict iterations of the jobs in FOLDER on every network, and compare with its cost."""
    from moefabric.paper.frontier.emulated import measured_points
    from moefabric.paper.frontier.page import page_text, text_lines
    from moefabric.paper.frontier.pictures import pictures
    from moefabric.paper.frontier.results import FrontierResults
    from moefabric.paper.frontier.study import run_study, step_count

    check_writable(json_file, page)
    measured = tuple(chain.from_iterable(map(measured_points, runs)))
    if results:
        outcome = FrontierResults.read(results)
    else:
        with progress_reporter(step_count(folder)) as reporter:
            outcome = run_study(folder, reporter)
    if measured:
        outcome = outcome.model_copy(update={"measured": measured})
    write_output(json_file, outcome.model_dump_json(indent=1) + "\n")
    if page:
        for name, picture in pictures(outcome).items():
            write_output(page.with_name(name), picture)
        write_output(page, page_text(outcome))
    if json_file != STANDARD_OUTPUT:
        click.echo("\n".join(text_lines(outcome)))
