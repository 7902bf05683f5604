"""`moefabric run` and `predict`: an experiment on packets, and in the fluid model alone."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from moefabric.commands.ending import ended_in_order
from moefabric.commands.files import STANDARD_OUTPUT, writable, write
from moefabric.spec import load

INVALID: Final = 3
"""Exit status of a run that can't be believed."""

_PATH: Final = click.Path(path_type=Path)
_SET: Final = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a key of the file."
)


@click.command(short_help="Run an experiment on packets, judge it and report.")
@click.argument("experiment", type=_PATH)
@click.option(
    "--json",
    "json_file",
    type=_PATH,
    help="Write the results here ('-': standard output, without the table).",
)
@click.option("--report", type=_PATH, help="Write one self-contained HTML page here.")
@click.option(
    "--external",
    default="",
    help="What is started elsewhere, as in docker compose: ocs, controller, or both with a comma.",
)
@_SET
@ended_in_order()
def run(
    experiment: Path, json_file: Path | None, report: Path | None, external: str, settings: tuple[str, ...]
) -> None:
    """Bring the fabrics of the file EXPERIMENT up, one after the other, replay its traffic on them, judge, report, and take them down.

    Exit status 3: it ran, but its measurements can't be believed.
    """
    from moefabric.console import reporter
    from moefabric.experiment import run as running

    spec = load.experiment(experiment, settings)
    outside = _external(external)
    writable(json_file, report)
    with reporter(running.operations_total(spec)) as said:
        outcome = running.run(spec, experiment.parent, said, outside)
    write(json_file, json.dumps(outcome, indent=1) + "\n")
    if report is not None:
        from moefabric.report.page import page

        write(report, page(outcome))
    if json_file != STANDARD_OUTPUT:
        _show(outcome)
    sys.exit(INVALID if outcome["verdict"] == "invalid" else 0)


@click.command(short_help="Predict an experiment, without root and packets.")
@click.argument("experiment", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_SET
def predict(experiment: Path, as_json: bool, settings: tuple[str, ...]) -> None:
    """Print what the fluid model says of the file EXPERIMENT. No root, no fabric."""
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
    for line in [*_firsts(said["fabrics"]), *_costs(said["fabrics"])]:
        Console().print(line, highlight=False)


def _firsts(entries: list[dict[str, Any]]) -> Iterator[str]:
    """What the first all-to-alls of each fabric are exposed to, where some do otherwise than to wait for their light."""
    from moefabric.report import words

    if all(entry["first"] == "block" for entry in entries):
        return
    for entry in entries:
        if seen := entry["first_all_to_all"]:
            exposed, wait, ideal = (
                words.seconds(seen[key]) for key in ("predicted_exposed_s", "predicted_wait_s", "ideal_s")
            )
            line = f"{entry['fabric']}: first all-to-all exposed {exposed}, {wait} of it waiting; {ideal} with the right light in time"
            foresight = seen.get("foresight") or {}
            if foresight.get("guessed"):
                hits, cost = words.share(foresight["top_k_hits"]), words.seconds(foresight["wrong_guess_s"])
                line += f"; {hits} of the {foresight['top_k']} busiest experts foreseen, a guess costs {cost}"
            yield line


def _costs(entries: list[dict[str, Any]]) -> Iterator[str]:
    """What each network costs, and what a dollar of it buys."""
    from moefabric.report import words

    for entry in entries:
        cost = entry["cost"]
        if cost["network_usd"] is not None:
            buys = (
                f"; a dollar buys {words.ratio(cost['to_eps'])} what one of eps does"
                if cost["to_eps"]
                else ""
            )
            yield f"{entry['fabric']}: network of {words.usd(cost['network_usd'])}{buys}"
    for why in sorted({entry["cost"]["why"] for entry in entries} - {""}):
        yield f"networks are not priced: {why}"
