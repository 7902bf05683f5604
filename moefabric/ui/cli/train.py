"""`moefabric train`: a program that trains on emulated fabrics."""

import sys
from pathlib import Path

import click

from moefabric.api.commands import (
    FILE,
    INVALID,
    check_writable,
    journalled,
    progress_reporter,
    write_result,
)
from moefabric.ui.cli.options import (
    cluster_option,
    experiment_argument,
    hosts_option,
    report_option,
    result_option,
    settings_option,
    spread_option,
)


@click.command(short_help="Train a model on emulated fabrics.")
@experiment_argument
@result_option
@report_option
@click.option(
    "--gating",
    type=FILE,
    help="Write what the gates chose as a NumPy archive, which `gating: {trace: FILE}` replays.",
)
@hosts_option
@cluster_option
@spread_option
@settings_option
def train(
    experiment: Path,
    json_file: Path | None,
    report: Path | None,
    gating: Path | None,
    hosts: Path | None,
    cluster: str | None,
    spread: str,
    settings: tuple[str, ...],
) -> None:
    """Train the program of the file EXPERIMENT on its fabrics, one after the other.

    Start the program's ranks on the servers, carry their all-to-alls over each fabric, judge and
    report the results, and remove the fabrics. Exit status 3: the measurements can't be trusted.
    """
    from moefabric.api.experiment import Experiment

    loaded = Experiment.load(experiment, settings, hosts_file=hosts)
    check_writable(json_file, report, gating)
    with journalled(json_file, report) as journal, progress_reporter(loaded.operations) as reporter:
        result = loaded.train(reporter=reporter, journal=journal, cluster=cluster, spread=spread)
    if gating is not None:
        result.write_gating(gating)
    write_result(result, json_file, report)
    sys.exit(INVALID if result.verdict == "invalid" else 0)
