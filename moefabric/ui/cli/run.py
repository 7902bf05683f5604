"""`moefabric run`, `train`, `predict` and `sweep`: experiments, emulated and predicted."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from moefabric.api import commands
from moefabric.core.errors import MoefabricError
from moefabric.report import formatting
from moefabric.report.formatting import wrapped
from moefabric.ui.cli.command import cli_command, json_file_option, json_option
from moefabric.ui.cli.options import all_of, open_cluster_option, placement_options, settings_option

if TYPE_CHECKING:
    from moefabric.api.experiment import Experiment
    from moefabric.api.result import Result
    from moefabric.api.sweeps.summary import SweepResult
    from moefabric.results.model import FabricPrediction

_MOST_ROWS = 60
_experiment_options = all_of(
    click.argument("experiment", type=commands.FILE),
    json_file_option("the results"),
    click.option(
        "--report", type=commands.FILE, help="Write the results as one self-contained HTML page."
    ),
    click.option(
        "--store",
        type=commands.FILE,
        help="Write the results without their rows, at most 24 kB of JSON for a repository.",
    ),
)
_resume_option = click.option(
    "--resume", is_flag=True, help="Go on where the run of this --json file was stopped."
)
_hosts_option = click.option(
    "--hosts", type=commands.FILE, help="Run on the real servers that this file lists."
)


@cli_command(
    "moefabric run examples/prototype.yaml --json out/run.json --report out/run.html",
    "moefabric run examples/prototype.yaml --set training.iterations=1",
)
@_experiment_options
@click.option(
    "--external",
    default="",
    show_default=False,
    help="Processes that something else starts: ocs, controller, or ocs,controller.",
)
@_hosts_option
@_resume_option
@click.option("--flows", is_flag=True, help="Keep the record of every flow in the JSON.")
@placement_options
def run(
    experiment: Path, hosts: Path | None, settings: tuple[str, ...], external: str, **options: Any
) -> None:
    """Run the experiment that the file EXPERIMENT describes.

    Start its fabrics one after the other, replay the traffic, judge and report the results, and
    remove the fabrics. Exit status 3: the experiment ran, but its measurements can't be trusted.
    """
    loaded = _load(experiment, settings, hosts)
    options["external"] = _external_processes(external)
    _carry_out(loaded.run, loaded.operations, **options)


def _load(file: Path, settings: tuple[str, ...], hosts: Path | None = None) -> "Experiment":
    """Load an experiment. NumPy gets one thread unless the environment says how many.

    The matrices are small. More threads would spin on the cores that carry the fabric.
    """
    if not {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"} & os.environ.keys():
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        import_module("numpy")
        del os.environ["OPENBLAS_NUM_THREADS"]  # programs on servers may want more
    from moefabric.api.experiment import Experiment

    return Experiment.load(file, settings, hosts_file=hosts)


def _carry_out(
    act: "Callable[..., Result]",
    operations: int,
    json_file: Path | None,
    report: Path | None,
    store: Path | None,
    gating: Path | None = None,
    **options: Any,
) -> NoReturn:
    """Run or train an experiment, write its results, and exit with their status."""
    if options["resume"] and json_file in (None, commands.STANDARD_OUTPUT):
        raise click.UsageError("--resume: give the --json file of the run that was stopped")
    commands.check_writable(json_file, report, store, gating)
    command = click.get_current_context().info_name or "run"
    journalled = commands.journalled(json_file, report, command)
    with journalled as journal, commands.progress_reporter(operations) as reporter:
        result = act(reporter=reporter, journal=journal, **options)
    if gating is not None:
        result.write_gating(gating)
    if store is not None:
        result.store(store)
    commands.write_result(result, json_file, report)
    sys.exit(commands.INVALID if result.verdict == "invalid" else 0)


def _external_processes(text: str) -> frozenset[str]:
    from moefabric.api.experiment import EXTERNAL_PROCESSES

    processes = frozenset(part for part in text.split(",") if part)
    if unknown := processes.difference(EXTERNAL_PROCESSES):
        names, known = ", ".join(sorted(unknown)), ", ".join(EXTERNAL_PROCESSES)
        raise click.UsageError(f"--external: {names} is not one of {known}")
    return processes


@cli_command(
    "moefabric train examples/train/prototype.yaml --json out/train.json",
    "moefabric train examples/train/prototype.yaml --gating out/gating.npz",
)
@_experiment_options
@click.option(
    "--gating",
    type=commands.FILE,
    help="Write what the gates chose as a NumPy archive, which `gating: {trace: FILE}` replays.",
)
@_resume_option
@_hosts_option
@placement_options
def train(experiment: Path, hosts: Path | None, settings: tuple[str, ...], **options: Any) -> None:
    """Train the program of the file EXPERIMENT on its fabrics, one after the other.

    Start the program's ranks on the servers, carry their all-to-alls over each fabric, judge and
    report the results, and remove the fabrics. Exit status 3: the measurements can't be trusted.
    """
    loaded = _load(experiment, settings, hosts)
    _carry_out(loaded.train, loaded.operations, **options)


@cli_command(
    "moefabric sweep examples/sweep/settle.yaml",
    "moefabric sweep examples/sweep/settle.yaml --out out/settle --resume",
)
@click.argument("file", type=commands.FILE, metavar="SWEEP")
@click.option("--out", type=commands.FILE, help="Folder of the results. Default: out/NAME.")
@click.option("--cluster", metavar="ADDRESS", help="Use this Ray cluster; `auto` finds it.")
@open_cluster_option
@click.option("--resume", is_flag=True, help="Go on: keep the runs that the folder has.")
@json_option
@settings_option
def sweep(
    file: Path, out: Path | None, as_json: Path | None, settings: tuple[str, ...], **options: Any
) -> None:
    """Carry out the runs that the file SWEEP describes, each on cores of its own.

    Results, a table and a page with pictures go to one folder while runs end. Without --cluster,
    Ray runs on this machine for the time of the sweep. Exit status 1: a run has no result; 3: the
    measurements of a run can't be trusted.
    """
    from moefabric.api.sweep import Sweep
    from moefabric.api.sweeps.results import RECORDS

    loaded = Sweep.load(file, *settings)
    commands.check_writable(as_json)
    folder = out or Path("out") / loaded.spec.sweep
    try:
        with commands.progress_reporter(loaded.spec.run_count) as reporter:
            result = loaded.run(folder, reporter=reporter, **options)
    except KeyboardInterrupt:
        if (folder / RECORDS).is_file():
            remedy = "`moefabric sweep --resume` goes on"
            click.echo(f"moefabric: {folder} has the runs that have ended; {remedy}", err=True)
        raise
    if commands.print_json(result.to_json(), as_json):
        _print_means(result)
        click.echo(f"{folder / 'report.html'}: {len(result.records)} runs")
    if result.failed:
        sys.exit(1)
    sys.exit(commands.INVALID if result.invalid else 0)


def _print_means(result: "SweepResult") -> None:
    """Print the outcome, and the means in as few tables as the terminal's width allows."""
    from moefabric.api.sweeps.outcome import axis_names, sweep_outcome
    from moefabric.api.sweeps.page import means_table
    from moefabric.report.tables import rich_table

    spec = result.spec
    if outcome := sweep_outcome(result):
        click.echo(wrapped(outcome))
    click.echo(f"{spec.sweep}: means, 95 % confidence")
    figures = list[str]()
    for figure in (*spec.figures, ""):
        wider = rich_table(
            means_table(result, _MOST_ROWS, [*figures, figure] if figure else figures)
        )
        if figures and not (figure and commands.is_narrow(wider)):
            commands.print_renderable(rich_table(means_table(result, _MOST_ROWS, figures)))
            figures = []
        figures.append(figure)
    for axis, short in axis_names(spec.axes).items():
        if short != axis:
            click.echo(f"{short}: {axis}")
    if spec.baseline:
        click.echo(f"second lines: relative to {spec.baseline} in the same run")
    if (hidden := len(result.points) - _MOST_ROWS) > 0:
        click.echo(f"{hidden} more rows are in sweep.json")


@cli_command(
    "moefabric predict examples/prototype.yaml",
    "moefabric predict examples/prototype.yaml --set wiring.nic_rate=400Gb/s --json",
)
@click.argument("experiment", type=commands.FILE)
@json_option
@settings_option
def predict(experiment: Path, as_json: Path | None, settings: tuple[str, ...]) -> None:
    """Print what the fluid model predicts for the file EXPERIMENT. Needs no root.

    Exit status 3: a policy of another package failed, so that its fabric's figures mean nothing.
    """
    loaded = _load(experiment, settings)
    commands.check_writable(as_json)
    notes = [] if as_json == commands.STANDARD_OUTPUT else [*loaded.spec.notes()]
    for note in notes:  # before a long computation, as they may be of slips
        click.echo(wrapped(f"note: {note}"))
    predicted = loaded.predict()
    fabrics = predicted.fabrics
    faults = [f"{fabric.fabric}: {fault}" for fabric in fabrics for fault in fabric.policy_faults]
    if commands.print_json(predicted.to_json(), as_json):
        from moefabric.report import remarks, run_tables, tables
        from moefabric.report.outcome import predicted_outcome

        click.echo(f"{predicted.experiment}: prediction of the model, without packets")
        if outcome := predicted_outcome(fabrics):
            click.echo(wrapped(outcome))
        commands.print_renderable(tables.rich_table(run_tables.prediction(predicted)))
        described = (_dispatch_lines, _spine_lines, _cost_lines, _simulated_lines)
        described_lines = chain.from_iterable(lines(fabrics) for lines in described)
        others = (note for note in predicted.notes if note not in notes)
        for line in (*described_lines, *remarks.circuit_lines(fabrics), *others):
            click.echo(wrapped(line))
        if line := _duration_line(loaded):
            click.echo(wrapped(line))
        for fault in faults:
            click.echo(fault)
    if faults:
        sys.exit(commands.INVALID)


def _duration_line(experiment: "Experiment") -> str:
    try:
        duration = experiment.expected_duration
    except MoefabricError as error:  # the speed of the machine, which the prediction doesn't need
        return f"how long `run` takes is not known: {error}"
    return duration and f"`run` takes {duration} on this machine"


def _dispatch_lines(fabrics: Sequence["FabricPrediction"]) -> Iterator[str]:
    """Yield the exposed time of first all-to-alls, unless all wait for demand and circuits."""
    waiting = ("block", "known", 0.0)
    if all((f.first, f.split_demand, f.demand_error) == waiting for f in fabrics):
        return
    for entry in fabrics:
        first = entry.first_all_to_all
        if first.predicted_exposed_s is None:
            continue
        times_s = first.predicted_exposed_s, first.predicted_wait_s, first.ideal_s
        exposed, wait, ideal = map(formatting.seconds, times_s)
        times = f"exposed {exposed}, {wait} of it waiting; {ideal} if its demand were known in time"
        line = f"{entry.fabric}: first all-to-all {times}"
        foresight = first.foresight
        if foresight is not None and foresight.guessed:
            busiest = f"the {foresight.top_k} busiest experts"
            hits = f"{formatting.percentage(foresight.top_k_hits)} of {busiest}"
            cost = formatting.seconds(foresight.wrong_guess_s)
            line += f"; {hits} predicted, a prediction costs {cost}"
        yield line


def _spine_lines(fabrics: Sequence["FabricPrediction"]) -> Iterator[str]:
    """Yield the share of the bytes that cross spines, if there are any."""
    for entry in fabrics:
        if entry.spine_share is not None:
            yield f"{entry.fabric}: {entry.spine_share:.0%} of all bytes cross spines"


def _cost_lines(fabrics: Sequence["FabricPrediction"]) -> Iterator[str]:
    """Yield the price of each network, and its performance per dollar."""
    for entry in fabrics:
        cost, ratio = entry.cost, entry.cost.perf_per_dollar_vs_eps
        if cost.network_usd is not None:
            line = f"{entry.fabric}: network of {formatting.usd(cost.network_usd)}"
            relative = f"; {formatting.ratio(ratio)} the performance per dollar of eps"
            yield line + (relative if ratio else "")
    for why in sorted({entry.cost.why for entry in fabrics} - {""}):
        yield f"networks are not priced: {why}"


def _simulated_lines(fabrics: Sequence["FabricPrediction"]) -> Iterator[str]:
    """Yield how many regions stand for all, where some do."""
    for entry in fabrics:
        simulated = entry.simulated
        if simulated is None or simulated.regions == simulated.all_regions:
            continue
        line = f"{entry.fabric}: {simulated.regions} of {simulated.all_regions:,} regions simulated"
        if not simulated.is_sample:
            yield f"{line}; the others are equal to them"
            continue
        error = formatting.seconds(simulated.iteration_error_s)
        yield f"{line}, which differ at random: standard error of the iteration {error}"
