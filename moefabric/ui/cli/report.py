"""`moefabric report` and `compare`: a saved result as tables, page and picture, and changes."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from moefabric.api import commands
from moefabric.report import formatting
from moefabric.ui.cli.command import cli_command, json_beside_files_option
from moefabric.ui.cli.options import parse_option

if TYPE_CHECKING:
    from moefabric.report.run_changes import FabricChange, FigureChange, RunChanges

REGRESSION: Final = 4
"""Exit status of a regression beyond the threshold."""


def _share(text: str) -> float:
    number, percent, rest = text.partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if rest or not 0 <= value < 1:
        raise ValueError(f"{text!r} is not a share such as 2% or 0.02")
    return value


@cli_command(
    "moefabric report out/prototype.json",
    "moefabric report out/prototype.json --html out/prototype.html",
)
@click.argument("run", type=commands.FILE)
@click.option(
    "--html", type=commands.FILE, help="Write one self-contained HTML page instead of tables."
)
@click.option(
    "--first-all-to-alls",
    "picture",
    type=commands.FILE,
    help="Write a picture of the first all-to-alls (SVG) instead of tables.",
)
def report(run: Path, html: Path | None, picture: Path | None) -> None:
    """Show the result in the file RUN, which `moefabric run --json RUN` has written."""
    commands.check_writable(html, picture)
    from moefabric.api.result import Result
    from moefabric.report.bars import first_all_to_alls_picture

    result = Result.load(run)
    if html is not None:
        commands.write_output(html, result.page())
    if picture is not None:
        commands.write_output(picture, first_all_to_alls_picture(result))
    if html is None and picture is None:
        commands.print_tables(result)


@cli_command(
    "moefabric compare before.json after.json", "moefabric compare run.json --fabrics eps mixnet"
)
@click.argument("before", nargs=-1, type=commands.FILE, metavar="BEFORE...")
@click.argument("after", type=commands.FILE)
@click.option(
    "--fabrics", nargs=2, metavar="A B", help="Compare fabric B of the one run AFTER with its A."
)
@click.option(
    "--threshold",
    default="2%",
    callback=parse_option(_share),
    help="Change that is no regression yet: of a time, or in points of the optical share.",
)
@json_beside_files_option
def compare(
    before: tuple[Path, ...],
    after: Path,
    fabrics: tuple[str, str] | None,
    threshold: float,
    as_json: Path | None,
) -> None:
    """Compare the run in the file AFTER with the run in BEFORE, fabric by fabric.

    Several files BEFORE are runs of the same thing; they show how much runs differ by themselves.
    Exit status 4: a fabric is missing, has a worse verdict, or a figure is worse by more than the
    threshold and more than the spread of runs. 3: measurements of a run can't be trusted.
    """
    from moefabric.api.result import Result

    if bool(before) == bool(fabrics):
        raise click.UsageError("give runs BEFORE and AFTER, or one run and --fabrics A B")
    if fabrics:
        changes = Result.load(after).compare_fabrics(*fabrics, threshold=threshold)
        commands.print_result(changes.to_json(), fabric_lines(changes, *fabrics), as_json=as_json)
        sys.exit(commands.INVALID if changes.is_invalid else 0)
    changes = Result.load(after).compare(*map(Result.load, before), threshold=threshold)
    commands.print_result(changes.to_json(), changes_lines(changes), as_json=as_json)
    if changes.is_regression:
        sys.exit(REGRESSION)
    sys.exit(commands.INVALID if changes.is_invalid else 0)


def fabric_lines(changes: "RunChanges", before: str, after: str) -> list[str]:
    """Return the changes from a fabric to another one as lines of a table."""
    figures = [f"{f.figure} {_change_text(f)}" for f in changes.figures if f.is_judged]
    lead = ", ".join(figures) or "nothing could be judged"
    rows: list[tuple[str, ...]] = [
        ("figure", before, after, "change", "spread", "samples", ""),
        ("verdict", *(f"{one}" for f in changes.fabrics for one in (f.before, f.after)), *[""] * 4),
        *map(_figure_cells, changes.figures),
    ]
    words = {"regression": "worse", "improvement": "better"}
    rows = [(*row[:-1], words.get(row[-1], row[-1])) for row in rows]
    notes = [f"note: {remark}" for remark in changes.remarks]
    return [f"{after} against {before}: {lead}", *formatting.aligned(rows), *notes]


def changes_lines(changes: "RunChanges") -> list[str]:
    """Return the verdict on the changes, and these as lines of a table."""
    worse = [_worsening(fabric) for fabric in changes.fabrics if fabric.is_regression]
    verdict = f"regression of {'; '.join(worse)}" if worse else _no_regression(changes)
    rows: list[tuple[str, ...]] = [
        ("fabric", "figure", "before", "after", "change", "spread", "samples", "")
    ]
    for fabric in changes.fabrics:
        rows += [(fabric.fabric, *_verdict_cells(fabric))]
        rows += [("", *_figure_cells(figure)) for figure in fabric.figures]
    notes = [f"note: {remark}" for remark in changes.remarks]
    return [verdict, *formatting.aligned(rows), *notes]


def _worsening(fabric: "FabricChange") -> str:
    """Return a fabric with what is worse about it, such as `mixnet (iteration +20.00 %)`."""
    if fabric.after is None:
        return f"{fabric.fabric} (missing)"
    worse = [figure for figure in fabric.figures if figure.outcome == "regression"]
    parts = [f"{figure.figure} {_change_text(figure)}" for figure in worse]
    return f"{fabric.fabric} ({', '.join(parts) or f'{fabric.before} before, {fabric.after} now'})"


def _no_regression(changes: "RunChanges") -> str:
    """Return the verdict on changes without a regression, as far as figures could be judged."""
    figures = [f for f in changes.figures if f.samples_before or f.samples_after]
    judged = sum(figure.is_judged for figure in figures)
    if not judged:
        return "nothing could be judged: no figure was measured in runs that can be trusted"
    text = f"no regression beyond {changes.threshold * 100:.3g} % and the spread of runs"
    if judged < len(figures):
        text += f" in the {judged} of {len(figures)} figures that could be judged"
    return text


def _verdict_cells(fabric: "FabricChange") -> tuple[str, ...]:
    before, after = fabric.before or "-", fabric.after or "-"
    outcome = "same" if before == after else "changed"
    if fabric.before is None:
        outcome = "new"
    elif fabric.after is None:
        outcome = "regression: missing"
    elif fabric.is_regression and all(f.outcome != "regression" for f in fabric.figures):
        outcome = "regression"
    return "verdict", str(before), str(after), "", "", "", outcome


def _figure_cells(figure: "FigureChange") -> tuple[str, ...]:
    is_share = figure.figure == "optical share"
    value = formatting.percentage if is_share else lambda v: formatting.seconds(v, 4)
    spread = "unknown"
    if figure.spread is not None:
        spread = f"{figure.spread * 100:.2f}"
    values = value(figure.before), value(figure.after)
    samples = f"{figure.samples}"
    if {figure.samples_before, figure.samples_after} != {figure.samples}:
        samples += f" of {figure.samples_before} and {figure.samples_after}"
    return figure.figure, *values, _change_text(figure), spread, samples, figure.outcome


def _change_text(figure: "FigureChange") -> str:
    unit = "points" if figure.figure == "optical share" else "%"
    return "-" if figure.change is None else f"{figure.change * 100:+.2f} {unit}"
