"""`moefabric train`: a program that trains on emulated fabrics."""

import sys
from pathlib import Path

import click

from moefabric.cli.options import FILE, INVALID, settings_option
from moefabric.cli.output import (
    STANDARD_OUTPUT,
    check_writable,
    print_tables,
    progress_reporter,
    write_output,
)


@click.command(short_help="Train a model on emulated fabrics.")
@click.argument("experiment", type=FILE)
@click.option(
    "--json",
    "json_file",
    type=FILE,
    help="Write the results as JSON ('-': to standard output, instead of the table).",
)
@click.option("--report", type=FILE, help="Write the results as one self-contained HTML page.")
@click.option(
    "--gating",
    type=FILE,
    help="Write what the gates chose as a NumPy archive, which `gating: {trace: FILE}` replays.",
)
@click.option("--hosts", type=FILE, help="Train on the real servers that this file lists.")
@settings_option
def train(
    experiment: Path,
    json_file: Path | None,
    report: Path | None,
    gating: Path | None,
    hosts: Path | None,
    settings: tuple[str, ...],
) -> None:
    """Train the program of the file EXPERIMENT on its fabrics, one after the other.

    Start the program's ranks on the servers, carry their all-to-alls over each fabric, judge and
    report the results, and remove the fabrics. Exit status 3: the measurements can't be trusted.
    """
    from moefabric.api.experiment import Experiment

    loaded = Experiment.load(experiment, settings, hosts_file=hosts)
    check_writable(json_file, report, gating)
    with progress_reporter(loaded.operations) as reporter:
        result = loaded.train(reporter=reporter)
    write_output(json_file, result.json_text())
    if report is not None:
        write_output(report, result.page())
    if gating is not None:
        result.write_gating(gating)
    if json_file != STANDARD_OUTPUT:
        print_tables(result)
    sys.exit(INVALID if result.verdict == "invalid" else 0)
