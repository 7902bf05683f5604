"""`moefabric frontier`: iteration time against cost, with and without forwarding."""

from pathlib import Path

import click

from moefabric.api import commands
from moefabric_studies.commands.examples import examples_folder


@click.command(short_help="Compare the cost and speed of fabrics with and without forwarding.")
@click.argument(
    "folder", type=click.Path(path_type=Path, file_okay=False), default=Path("examples/paper")
)
@click.option("--json", "json_file", type=commands.FILE, help="Write every network as JSON.")
@click.option(
    "--page", type=commands.FILE, help="Write the page, in Markdown, with its pictures beside it."
)
@click.option(
    "--results", type=commands.FILE, help="Take the results of an earlier run; compute nothing."
)
@click.option("--resume", is_flag=True, help="Go on where the run of this --json file was stopped.")
@click.option(
    "--stored",
    type=commands.FILE,
    default=Path("docs/results"),
    help="Folder of stored results of examples/forwarding-*.yaml, which the page shows.",
)
@click.option("--store", type=commands.FILE, help="Write networks of 7+1 NICs as CSV, to be kept.")
def frontier(
    folder: Path,
    json_file: Path | None,
    page: Path | None,
    results: Path | None,
    stored: Path,
    resume: bool,
    store: Path | None,
) -> None:
    """Predict iterations of the jobs in FOLDER on every network, and compare with its cost."""
    from moefabric.api.results import Provenance
    from moefabric.api.units import file_digests, finished_units
    from moefabric_studies.markdown import write_page
    from moefabric_studies.paper.frontier.page import page_text, text_lines
    from moefabric_studies.paper.frontier.pictures import pictures
    from moefabric_studies.paper.frontier.results import FrontierResults
    from moefabric_studies.paper.frontier.study import run_study, step_count
    from moefabric_studies.raw_tables import source_of, table_text

    commands.check_writable(json_file, page, store)
    if results:
        outcome = FrontierResults.model_validate_json(results.read_text())
    else:
        folder = examples_folder(folder)
        identity = {"command": "frontier", "files": file_digests(folder.iterdir())}
        with (
            finished_units(json_file, identity, resume=resume) as units,
            commands.progress_reporter(step_count(folder)) as reporter,
        ):
            files = sorted(folder.glob("*.yaml"))
            source = source_of("frontier", files, "studies/moefabric_studies/paper")
            outcome = run_study(folder, reporter, units=units)
            outcome = outcome.model_copy(update={"provenance": source})
            commands.write_output(json_file, outcome.model_dump_json(indent=1) + "\n")
    if results:
        commands.write_output(json_file, outcome.model_dump_json(indent=1) + "\n")
    if store:
        commands.write_output(store, table_text(outcome.provenance or Provenance(), outcome.rows))
    if page:
        write_page(page, page_text(outcome, page, stored), pictures(outcome))
    if json_file != commands.STANDARD_OUTPUT:
        click.echo("\n".join(text_lines(outcome)))
