"""`moefabric paper`: tables of the MixNet paper, predicted or emulated."""

import json
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from moefabric.api import commands
from moefabric.api.signals import graceful_shutdown
from moefabric_studies.commands.examples import examples_folder

if TYPE_CHECKING:
    from moefabric.api.units import Units
    from moefabric_studies.paper.network import TreeFlows
    from moefabric_studies.paper.results import PaperResults


@click.command(short_help="Reproduce the MixNet paper's tables.")
@click.argument(
    "folder", type=click.Path(path_type=Path, file_okay=False), default=Path("examples/paper")
)
@click.option("--json", "json_file", type=commands.FILE, help="Write every row as JSON.")
@click.option("--report", type=commands.FILE, help="Write one HTML page.")
@click.option(
    "--document",
    type=commands.FILE,
    help="Write the predictions as Markdown, docs/paper.md, with pictures beside it.",
)
@click.option(
    "--gather",
    type=click.Choice(["none", "nvswitch", "pcie"]),
    default="none",
    show_default=True,
    help="Path over which servers of MixNet and TopoOpt gather and scatter the bytes of all-to-alls"
    " (`wiring.server_paths`). The paper's simulator has none.",
)
@click.option(
    "--tree-flows",
    type=click.Choice(["pooled", "nic-per-gpu", "hashed"]),
    default="pooled",
    show_default=True,
    help="NICs of flows on the fat-tree and the 3:1 tree: all of a server alike; those of the GPUs"
    " that send and receive (`eps.nic_per_gpu`), or so with one random path for each flow, as in"
    " the paper's simulator. Jobs are calibrated alike.",
)
@click.option(
    "--emulated",
    is_flag=True,
    help="Measure one region's all-to-alls on emulated fabrics, 143 cells. Needs root.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="MODEL[/NETWORK][@RATE]",
    help="With --emulated: measure only this model, on this network, at this NIC rate; or"
    " `reconfiguration`.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="With --emulated: go on where the run of this --json file was stopped.",
)
def paper(
    folder: Path,
    json_file: Path | None,
    report: Path | None,
    document: Path | None,
    gather: Literal["none", "nvswitch", "pcie"],
    tree_flows: "TreeFlows",
    emulated: bool,
    only: tuple[str, ...],
    resume: bool,
) -> None:
    """Print the paper's tables with predicted or emulated values. FOLDER holds their definition."""
    from moefabric.api.networks import ServerPaths
    from moefabric_studies.markdown import write_page
    from moefabric_studies.paper.page import document_pictures, document_text, page
    from moefabric_studies.paper.results import predict_tables
    from moefabric_studies.paper.text import text_lines

    if (only or resume) and not emulated:
        raise click.UsageError(f"{'--only' if only else '--resume'} needs --emulated")
    if tree_flows != "pooled" and (emulated or document):
        option = "--emulated" if emulated else "--document"
        raise click.UsageError(f"{option} needs --tree-flows pooled")
    commands.check_writable(json_file, report, document)
    folder = examples_folder(folder)
    predicted = predict_tables(folder, ServerPaths(gather=gather), tree_flows)
    with _units(folder, json_file, resume=resume) if emulated else nullcontext() as units:
        results = _emulate(predicted, only, units) if units else predicted
        commands.write_output(json_file, json.dumps(results.to_json(), indent=1) + "\n")
    if json_file != commands.STANDARD_OUTPUT:
        click.echo("\n".join(text_lines(results)))
    if report:
        commands.write_output(report, page(predicted, results if emulated else None))
    if document:
        write_page(document, document_text(predicted), document_pictures(predicted))
    if results.measurements is not None and results.measurements.is_invalid:
        sys.exit(commands.INVALID)


def _units(
    folder: Path, json_file: Path | None, *, resume: bool
) -> "AbstractContextManager[Units]":
    from moefabric.api.units import file_digests, finished_units

    machine = {"kernel": platform.release(), "cores": os.cpu_count()}
    identity = {"command": "paper", "files": file_digests(folder.iterdir()), **machine}
    return finished_units(json_file, identity, resume=resume)


@graceful_shutdown()
def _emulate(predicted: "PaperResults", only: Sequence[str], units: "Units") -> "PaperResults":
    from moefabric_studies.paper import emulated

    evaluation = predicted.evaluation
    waits = not only or emulated.RECONFIGURATION in only
    filters = [emulated.CellFilter.parse(text) for text in only if text != emulated.RECONFIGURATION]
    cells = emulated.select_cells(evaluation, filters) if filters or not only else []
    with commands.progress_reporter(emulated.step_count(cells, waits=waits)) as reporter:
        measurements = emulated.measure_cells(evaluation, cells, reporter, waits=waits, units=units)
    return emulated.emulated_tables(predicted, measurements)
