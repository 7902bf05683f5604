"""`moefabric trace generate`: random gating with the statistics of recorded gating."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moefabric.api.commands import FILE, check_writable, print_json
from moefabric.core.errors import SpecError
from moefabric.ui.cli.command import cli_command, json_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from moefabric import GatingParameters, GatingTrace


def _assignment(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> Any:
    changes: dict[str, float | int] = {}
    for text in texts:
        key, _, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            raise click.BadParameter(f"{text!r} is not KEY=NUMBER") from None
        changes[key] = int(number) if number.is_integer() else number
    return changes


@cli_command(
    "moefabric trace generate --presets",
    "moefabric trace generate olmoe-web --ranks 16 -o gating.npz",
    short_help="Generate gating from a preset, or fitted to a file.",
)
@click.argument("preset", required=False)
@click.option("--fit", "file", type=FILE, help="Recorded gating whose statistics are taken.")
@click.option("--first-step", type=click.IntRange(0), default=0, help="First step of the record.")
@click.option("--rank", type=click.IntRange(0), help="Only this rank of the record.")
@click.option("--alike", is_flag=True, help="The record's ranks have tokens of the same kind.")
@click.option("--output", "-o", type=FILE, help="File to write: .npz or .csv.")
@click.option("--ranks", type=click.IntRange(1), help="Ranks. Default: 8, or the record's.")
@click.option("--experts", type=click.IntRange(1), help="Experts of a layer.")
@click.option("--layers", type=click.IntRange(1), help="MoE layers. Default: 4, or the record's.")
@click.option("--iterations", type=click.IntRange(1), help="Default: 8, or the record's.")
@click.option("--tokens", type=click.IntRange(1), help="Tokens of a rank in a layer.")
@click.option("--top-k", type=click.IntRange(1), help="Experts of a token. A fit: 1.")
@click.option("--seed", type=click.IntRange(0), default=1, help="Seed of all random numbers.")
@click.option(
    "--set", "changes", multiple=True, metavar="KEY=NUMBER", callback=_assignment,
    help="Change a parameter, such as skew=0.5.",
)  # fmt: skip
@click.option(
    "--replicas", type=click.IntRange(1, 1000), default=1,
    help="Traces with successive seeds; prints the least and greatest statistics of them.",
)  # fmt: skip
@json_option
@click.option("--presets", "listed", is_flag=True, help="List the presets, and their sources.")
def generate(
    preset: str | None, file: Path | None, first_step: int, rank: int | None, alike: bool,
    output: Path | None, seed: int, changes: dict[str, float | int], replicas: int,
    as_json: Path | None, listed: bool, **sizes: int | None,
) -> None:  # fmt: skip
    """Generate gating and print its statistics. Needs no root.

    PRESET is one of those that `--presets` lists. With both PRESET and `--fit`, the preset is
    compared with the record.
    """
    from moefabric.traces.gating_files import MAX_CELLS, write_gating
    from moefabric.workload.gating import generator as gating_generator
    from moefabric.workload.gating.presets import PRESETS

    if listed:
        click.echo("\n".join(f"{name}: {known.fitted_to}" for name, known in PRESETS.items()))
        return
    if preset is None and file is None:
        raise click.UsageError("give PRESET or --fit FILE; --presets lists the presets")
    form = "" if output is None else output.suffix.removeprefix(".")
    if output is not None and form not in {"npz", "csv"}:
        raise click.UsageError(f"{output}: gating is written to .npz or .csv")
    check_writable(output)
    record = None if file is None else _record(file, first_step, rank)
    shape = (8, 4, 8) if record is None else record.tokens.shape[:3]
    shaped = {
        name: sizes.pop(name) or size
        for name, size in zip(("iterations", "layers", "ranks"), shape, strict=True)
    }
    changes |= {key: size for key, size in sizes.items() if size is not None}
    try:
        parameters = _parameters(preset, record, changes, sizes["top_k"] or 1, alike=alike)
        if (cells := math.prod((*shaped.values(), parameters.experts))) > MAX_CELLS:
            raise SpecError([(", ".join(shaped), f"{cells} counts are more than {MAX_CELLS}")])
        traces = [
            gating_generator.generate(parameters, **shaped, seed=seed + number)
            for number in range(replicas)
        ]
    except ValueError as error:
        raise SpecError([(preset or str(file), str(error))]) from error
    if output is not None:
        write_gating(traces[0], output, form)
    _print(parameters, traces, record, as_json=as_json)


def _record(file: Path, first_step: int, rank: int | None) -> "GatingTrace":
    from moefabric.traces.gating_files import load_gating
    from moefabric.workload.gating.traces import GatingTrace

    tokens = load_gating(file).tokens
    for option, first, count in (
        ("--first-step", first_step, tokens.shape[0]), ("--rank", rank or 0, tokens.shape[2]),
    ):  # fmt: skip
        if first >= count:
            raise SpecError([(option, f"{file} has {count}, numbered from 0")])
    tokens = tokens[first_step:]
    return GatingTrace(tokens if rank is None else tokens[:, :, rank : rank + 1], file.name)


def _parameters(
    preset: str | None, record: "GatingTrace | None", changes: dict[str, float | int], top_k: int,
    *, alike: bool,
) -> "GatingParameters":  # fmt: skip
    """Return the parameters of a preset or, without one, those that fit a record, changed."""
    from moefabric.workload.gating.fit import fit
    from moefabric.workload.gating.presets import preset as preset_parameters

    if preset is not None:
        return _changed(preset_parameters(preset), changes)
    assert record is not None
    fitted = fit(record, top_k, alike=alike, groups=int(changes.get("groups", 1)))
    return _changed(fitted, changes)


def _changed(parameters: "GatingParameters", changes: dict[str, float | int]) -> "GatingParameters":
    numbers = [name for name, value in vars(parameters).items() if type(value) in {int, float}]
    if unknown := [name for name in changes if name not in numbers]:
        raise SpecError([(f"--set {unknown[0]}", f"is not one of {', '.join(numbers)}")])
    return replace(parameters, **changes)  # type: ignore[arg-type]


def _print(
    parameters: "GatingParameters", generated: "Sequence[GatingTrace]",
    record: "GatingTrace | None", *,
    as_json: Path | None,
) -> None:  # fmt: skip
    from moefabric.workload.gating.statistics import gating_statistics

    statistics = [asdict(gating_statistics(trace)) for trace in generated]
    columns = {"generated": statistics[0]}
    if len(statistics) > 1:
        for name, chosen in (("least", min), ("greatest", max)):
            columns[name] = {key: chosen(row[key] for row in statistics) for key in statistics[0]}
    if record is not None:
        columns = {"recorded": asdict(gating_statistics(record)), **columns}
    document = {"parameters": asdict(parameters), "statistics": columns}
    if not print_json(_finite(document), as_json):
        return
    settings = ", ".join(f"{key} {_text(value)}" for key, value in asdict(parameters).items())
    click.echo(f"{settings}\n")
    click.echo(f"{'':22}" + "".join(f"{name:>12}" for name in columns))
    for statistic in columns["generated"]:
        cells = "".join(f"{_text(column[statistic]):>12}" for column in columns.values())
        click.echo(f"{statistic.replace('_', ' '):22}{cells}")


def _text(value: object) -> str:
    if isinstance(value, float):
        return "-" if value != value else f"{value:.4g}"  # noqa: PLR0124 - not a number
    return str(len(value)) if isinstance(value, tuple) else str(value)


def _finite(value: Any) -> Any:
    """Return a document with numbers of JSON only: null for NaN, 1e308 for infinity."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float):
        return None if value != value else min(value, 1e308)  # noqa: PLR0124 - not a number
    return value
