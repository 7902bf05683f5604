"""`moefabric oracle`: the model beside other simulators."""

from pathlib import Path

import click

from moefabric.api.commands import FILE, check_writable, progress_reporter, write_output
from moefabric_studies.commands.examples import examples_folder


@click.command(short_help="Compare the model with other simulators.")
@click.argument(
    "folder", type=click.Path(path_type=Path, file_okay=False), default=Path("examples")
)
@click.option("--ns3", "ns3_python", type=FILE, help="Python that has ns-3.")
@click.option("--simgrid", "simgrid_python", type=FILE, help="Python that has SimGrid.")
@click.option("--json", "json_file", type=FILE, help="Write the results as JSON.")
@click.option("--page", type=FILE, help="Write the page, in Markdown, with its pictures beside it.")
@click.option(
    "--mixnet",
    type=FILE,
    help="Write the page of MixNet's simulator from stored results, no other.",
)
@click.option("--resume", is_flag=True, help="Go on where the run of this --json file was stopped.")
@click.option("--results", type=FILE, help="Take the results of an earlier run; simulate nothing.")
@click.option("--store", type=FILE, help="Write the tables of the page as CSV, to be kept.")
def oracle(
    folder: Path,
    ns3_python: Path | None,
    simgrid_python: Path | None,
    json_file: Path | None,
    page: Path | None,
    mixnet: Path | None,
    results: Path | None,
    resume: bool,
    store: Path | None,
) -> None:
    """Run the examples' all-to-alls in ns-3 and SimGrid and compare. FOLDER holds the examples."""
    if mixnet:
        _write_mixnet(mixnet, folder)
        return
    from moefabric.api.units import finished_units
    from moefabric_studies.markdown import write_page
    from moefabric_studies.oracle import processes
    from moefabric_studies.oracle.page import pictures, text
    from moefabric_studies.oracle.results import OracleResults
    from moefabric_studies.oracle.study import Study, compare
    from moefabric_studies.raw_tables import source_of

    check_writable(json_file, page, store)
    if results:
        outcome = OracleResults.model_validate_json(results.read_text())
    else:
        folder = examples_folder(folder)
        study = Study.of(folder)
        source = source_of(
            "oracle", sorted(folder.glob("*.yaml")), "studies/moefabric_studies/oracle"
        )
        ns3 = processes.ns3(ns3_python or processes.NS3_PYTHON)
        simgrid = processes.simgrid(simgrid_python or processes.SIMGRID_PYTHON)
        identity = {"command": "oracle", "ns3": str(ns3.python)}
        with (
            finished_units(json_file, identity, resume=resume) as units,
            progress_reporter(len(study.simulations)) as reporter,
        ):
            outcome = compare(study, ns3, simgrid, reporter, units)
            outcome = outcome.model_copy(update={"provenance": source})
            write_output(json_file, outcome.model_dump_json(indent=1) + "\n")
    write_output(json_file, outcome.model_dump_json(indent=1) + "\n")
    tables = outcome.tables
    if store:
        tables.write(store)
    if page:
        write_page(page, text(tables), pictures(tables))
    else:
        write_output(Path("-"), text(tables))


def _write_mixnet(page: Path, folder: Path) -> None:
    from moefabric_studies.oracle.mixnet.cases import demands
    from moefabric_studies.oracle.mixnet.page import text
    from moefabric_studies.oracle.mixnet.runs import JudgedResults

    write_output(page, text(JudgedResults.stored(), demands(folder)))
