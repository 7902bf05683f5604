"""`moefabric run`, `train` and `predict`: experiments, emulated and in the fluid model."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click

from moefabric.api.commands import (
    FILE,
    INVALID,
    STANDARD_OUTPUT,
    check_writable,
    journalled,
    progress_reporter,
    write_result,
)
from moefabric.ui.cli.options import all_of, json_option, placement_options, settings_option

_experiment_options = all_of(
    click.argument("experiment", type=FILE),
    click.option(
        "--json",
        "json_file",
        type=FILE,
        help="Write the results as JSON ('-': to standard output, instead of the table).",
    ),
    click.option("--report", type=FILE, help="Write the results as one self-contained HTML page."),
)
_hosts_option = click.option(
    "--hosts", type=FILE, help="Run on the real servers that this file lists."
)


@click.command(short_help="Run an experiment on emulated fabrics.")
@_experiment_options
@click.option(
    "--external",
    default="",
    show_default=False,
    help="Processes that something else starts: ocs, controller, or ocs,controller.",
)
@_hosts_option
@click.option("--resume", is_flag=True, help="Go on where the run of this --json file was stopped.")
@click.option("--flows", is_flag=True, help="Keep the record of every flow in the JSON.")
@placement_options
def run(
    experiment: Path,
    hosts: Path | None,
    settings: tuple[str, ...],
    external: str,
    json_file: Path | None,
    report: Path | None,
    **options: Any,
) -> None:
    """Run the experiment that the file EXPERIMENT describes.

    Start its fabrics one after the other, replay the traffic, judge and report the results, and
    remove the fabrics. Exit status 3: the experiment ran, but its measurements can't be trusted.
    """
    from moefabric.api.experiment import Experiment

    loaded = Experiment.load(experiment, settings, hosts_file=hosts)
    options["external"] = _external_processes(external)
    if options["resume"] and (json_file is None or json_file == STANDARD_OUTPUT):
        raise click.UsageError("--resume: give the --json file of the run that was stopped")
    check_writable(json_file, report)
    with journalled(json_file, report) as journal, progress_reporter(loaded.operations) as reporter:
        result = loaded.run(reporter=reporter, journal=journal, **options)
    write_result(result, json_file, report)
    sys.exit(INVALID if result.verdict == "invalid" else 0)


def _external_processes(text: str) -> frozenset[str]:
    from moefabric.api.experiment import EXTERNAL_PROCESSES

    processes = frozenset(part for part in text.split(",") if part)
    if unknown := processes.difference(EXTERNAL_PROCESSES):
        names, known = ", ".join(sorted(unknown)), ", ".join(EXTERNAL_PROCESSES)
        raise click.UsageError(f"--external: {names} is not one of {known}")
    return processes


@click.command(short_help="Train a model on emulated fabrics.")
@_experiment_options
@click.option(
    "--gating",
    type=FILE,
    help="Write what the gates chose as a NumPy archive, which `gating: {trace: FILE}` replays.",
)
@_hosts_option
@placement_options
def train(
    experiment: Path,
    hosts: Path | None,
    settings: tuple[str, ...],
    gating: Path | None,
    json_file: Path | None,
    report: Path | None,
    **options: Any,
) -> None:
    """Train the program of the file EXPERIMENT on its fabrics, one after the other.

    Start the program's ranks on the servers, carry their all-to-alls over each fabric, judge and
    report the results, and remove the fabrics. Exit status 3: the measurements can't be trusted.
    """
    from moefabric.api.experiment import Experiment

    loaded = Experiment.load(experiment, settings, hosts_file=hosts)
    check_writable(json_file, report, gating)
    with journalled(json_file, report) as journal, progress_reporter(loaded.operations) as reporter:
        result = loaded.train(reporter=reporter, journal=journal, **options)
    if gating is not None:
        result.write_gating(gating)
    write_result(result, json_file, report)
    sys.exit(INVALID if result.verdict == "invalid" else 0)


@click.command(short_help="Predict the results of an experiment.")
@click.argument("experiment", type=FILE)
@json_option
@settings_option
def predict(experiment: Path, as_json: bool, settings: tuple[str, ...]) -> None:
    """Print what the fluid model predicts for the file EXPERIMENT. Needs no root."""
    from moefabric.api.experiment import Experiment

    predicted = Experiment.load(experiment, settings).predict()
    prediction = predicted.to_json()
    if as_json:
        click.echo(json.dumps(prediction))
        return
    from rich.console import Console

    from moefabric.report import run_tables, tables

    console, fabrics = Console(), prediction["fabrics"]
    console.print(f"{predicted.experiment}: fluid prediction", highlight=False, markup=False)
    console.print(tables.rich_table(run_tables.prediction(predicted)))
    faults = [f"{one['fabric']}: {fault}" for one in fabrics for fault in one["policy_faults"]]
    described = (_dispatch_lines, _spine_lines, _cost_lines, _simulated_lines)
    for line in (*chain.from_iterable(lines(fabrics) for lines in described), *faults):
        console.print(line, highlight=False)


def _dispatch_lines(fabrics: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the exposed time of first all-to-alls, unless all wait for demand and circuits."""
    from moefabric.report import formatting

    waiting = {"first": "block", "split_demand": "known", "demand_error": 0.0}
    if all(entry[key] == value for entry in fabrics for key, value in waiting.items()):
        return
    for entry in fabrics:
        if not (first := entry["first_all_to_all"]):
            continue
        exposed, wait, ideal = (
            formatting.seconds(first[key])
            for key in ("predicted_exposed_s", "predicted_wait_s", "ideal_s")
        )
        times = f"exposed {exposed}, {wait} of it waiting; {ideal} if its demand were known in time"
        line = f"{entry['fabric']}: first all-to-all {times}"
        foresight = first.get("foresight") or {}
        if foresight.get("guessed"):
            busiest = f"the {foresight['top_k']} busiest experts"
            hits = f"{formatting.percentage(foresight['top_k_hits'])} of {busiest}"
            cost = formatting.seconds(foresight["wrong_guess_s"])
            line += f"; {hits} predicted, a prediction costs {cost}"
        yield line


def _spine_lines(fabrics: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the share of the bytes that cross spines, if there are any."""
    for entry in fabrics:
        if entry["spine_share"] is not None:
            yield f"{entry['fabric']}: {entry['spine_share']:.0%} of all bytes cross spines"


def _cost_lines(fabrics: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the price of each network, and its performance per dollar."""
    from moefabric.report import formatting

    for entry in fabrics:
        cost = entry["cost"]
        if cost["network_usd"] is not None:
            ratio = cost["perf_per_dollar_vs_eps"]
            relative = (
                f"; {formatting.ratio(ratio)} the performance per dollar of eps" if ratio else ""
            )
            yield f"{entry['fabric']}: network of {formatting.usd(cost['network_usd'])}{relative}"
    for why in sorted({entry["cost"]["why"] for entry in fabrics} - {""}):
        yield f"networks are not priced: {why}"


def _simulated_lines(fabrics: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield how many regions stand for all, where some do."""
    from moefabric.report import formatting

    for entry in fabrics:
        some = entry["simulated"]
        if some["regions"] == some["all_regions"]:
            continue
        line = f"{entry['fabric']}: {some['regions']} of {some['all_regions']:,} regions simulated"
        if not some["is_sample"]:
            yield f"{line}; the others are equal to them"
            continue
        error = formatting.seconds(some["iteration_error_s"])
        yield f"{line}, which differ at random: standard error of the iteration {error}"
