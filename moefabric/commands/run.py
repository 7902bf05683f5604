"""`moefabric run` and `predict`: an experiment on packets, and in the fluid model alone."""

import json
import sys
from pathlib import Path
from typing import Any, Final

import click

from moefabric.spec import load

INVALID: Final = 3
"""Exit status of a run that can't be believed."""

_PATH: Final = click.Path(path_type=Path)
_SET: Final = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a key of the file."
)


@click.command()
@click.argument("experiment", type=_PATH)
@click.option(
    "--json",
    "json_file",
    type=_PATH,
    help="Write the results here ('-': standard output, without the table).",
)
@click.option("--report", type=_PATH, help="Write one self-contained HTML page here.")
@click.option("--external", default="", help="Comma-separated services that run elsewhere: ocs, controller.")
@_SET
def run(
    experiment: Path, json_file: Path | None, report: Path | None, external: str, settings: tuple[str, ...]
) -> None:
    """Bring the fabrics of EXPERIMENT up, replay its traffic on them, judge, report, take them down."""
    from moefabric.console import reporter
    from moefabric.experiment import run as running

    spec = load.experiment(experiment, settings)
    outside = _external(external)
    for file in (json_file, report):
        _writable(file)
    with reporter(running.operations_total(spec)) as said:
        outcome = running.run(spec, experiment.parent, said, outside)
    _write(json_file, json.dumps(outcome, indent=1) + "\n")
    if report is not None:
        from moefabric.report.page import page

        _write(report, page(outcome))
    if str(json_file) != "-":
        _show(outcome)
    sys.exit(INVALID if outcome["verdict"] == "invalid" else 0)


@click.command()
@click.argument("experiment", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_SET
def predict(experiment: Path, as_json: bool, settings: tuple[str, ...]) -> None:
    """What the fluid model says of EXPERIMENT. No root, no fabric."""
    from moefabric.experiment.predict import predicted

    said = predicted(load.experiment(experiment, settings), experiment.parent)
    if as_json:
        click.echo(json.dumps(said))
        return
    _print_prediction(said)


def _external(text: str) -> frozenset[str]:
    chosen = frozenset(part for part in text.split(",") if part)
    if unknown := chosen - {"ocs", "controller"}:
        raise click.UsageError(f"--external: {', '.join(sorted(unknown))} is not one of ocs, controller")
    return chosen


def _writable(file: Path | None) -> None:
    """Before an hour of packets, not after: see that the results can be written."""
    if file is None or str(file) == "-":
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a"):
            pass
    except OSError as fault:
        raise click.UsageError(f"{file}: {fault.strerror}") from fault


def _write(file: Path | None, text: str) -> None:
    if file is None:
        return
    if str(file) == "-":
        click.echo(text, nl=False)
    else:
        file.write_text(text)


def _show(outcome: dict[str, Any]) -> None:
    from rich.console import Console

    from moefabric.report.table import table

    console = Console()
    console.print(table(outcome))


def _print_prediction(said: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    made = Table(
        title=f"{said['experiment']}: fluid prediction", title_justify="left", box=None, pad_edge=False
    )
    for heading in ("fabric", "iteration", "compute", "exposed", "all-to-all", "vs eps", "by light", "moves"):
        made.add_column(heading, justify="left" if heading == "fabric" else "right", no_wrap=True)
    for entry in said["fabrics"]:
        versus = entry["all_to_all_vs_eps"]
        made.add_row(
            entry["fabric"],
            f"{entry['iteration_s']:.3f} s",
            f"{entry['compute_s']:.3f} s",
            f"{entry['exposed_comm_s']:.3f} s",
            f"{entry['all_to_all_s'] * 1e3:.2f} ms",
            f"{versus:.2f}x" if versus else "-",
            f"{entry['light_share']:.0%}",
            str(entry["reconfigurations"]),
        )
    Console().print(made)
