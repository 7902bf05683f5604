"""`moefabric perf` and `replay`: collectives and traces with real bytes on a fabric."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from moefabric.api.commands import FILE, INVALID, STANDARD_OUTPUT, check_writable, write_output
from moefabric.core.errors import SpecError
from moefabric.report.formatting import counted, seconds
from moefabric.ui.cli.command import cli_command, json_file_option
from moefabric.ui.cli.options import (
    SecondsType,
    lab_options,
    pacing_options,
    parse_option,
    via_options,
)

if TYPE_CHECKING:
    from moefabric.api.lab import Lab
    from moefabric.api.measurements import JudgedResult, Perf, PerfResult, PerfRow, ReplayResult

_KINDS: Final = (
    "alltoall", "alltoallv", "allreduce", "allgather", "reducescatter", "broadcast", "reduce",
    "sendrecv", "barrier",
)  # fmt: skip
_SUFFIXES: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _size(text: str) -> int:
    """Return bytes, as nccl-tests takes them: `1M` is 1,048,576.

    Raises:
        ValueError: If the text is no size.
    """
    match = re.fullmatch(r"([0-9]+)([KMG]?)i?B?", text, re.IGNORECASE)
    if not match:
        raise ValueError(f"{text!r} is not a size such as 1048576, 1M or 1G")
    return int(match[1]) * _SUFFIXES[match[2].upper()]


_size_option: Final = partial(click.option, metavar="SIZE", callback=parse_option(_size))


@cli_command(
    "moefabric perf alltoall -b 1M -e 64M",
    "moefabric perf allreduce --spec examples/fabric.yaml --algorithm ring --json perf.json",
)
@click.argument("kind", type=click.Choice(_KINDS))
@_size_option("-b", "--minbytes", default="1M", help="Smallest size.")
@_size_option("-e", "--maxbytes", default="1G", help="Largest size.")
@click.option("-f", "--stepfactor", type=click.FloatRange(1.01), default=2.0, help="Size factor.")
@_size_option("-i", "--stepbytes", default="0", help="Step instead of a factor.")
@click.option(
    "-n", "--iters", "iterations", type=click.IntRange(1, 10000), default=20, help="Iterations."
)
@click.option(
    "-w", "--warmup-iters", "warm_up", type=click.IntRange(0, 1000), default=5, help="Before them."
)
@lab_options
@click.option("--ranks", type=click.IntRange(1), help="Number of ranks. Default: one on each GPU.")
@click.option("--algorithm", help="A schedule: its name, or package.module:Name.")
@via_options
@click.option("--demand", type=FILE, help="Relative sizes [rank][rank] of alltoallv, JSON.")
@click.option("--root", type=click.IntRange(0), default=0, help="Root of broadcast and reduce.")
@pacing_options
@click.option(
    "--seconds",
    "wall_s",
    type=SecondsType(0.01, 600),
    metavar="SECONDS",
    help="Wall seconds of an iteration: the longer, the less the start of all agents counts.",
)
@json_file_option("the rows")
def perf(
    kind: str,
    minbytes: int,
    maxbytes: int,
    stepfactor: float,
    stepbytes: int,
    lab: "Callable[[], Lab]",
    demand: Path | None,
    json_file: Path | None,
    **options: Any,
) -> None:
    """Run the collective KIND with real bytes and print the columns of nccl-tests, in model time.

    `model` is the event simulation of the same steps, `bound` the time of the busiest server's
    bytes over its NICs, and `error` the difference of the measured time from the model. The
    verdict says whether the times can be believed.
    """
    if minbytes < 1 or maxbytes < minbytes:
        raise click.UsageError("--maxbytes must be at least --minbytes, and that at least 1")
    if demand is not None and kind != "alltoallv":
        raise click.UsageError("--demand is for alltoallv")
    if options["root"] and kind not in _ROOTED:
        raise click.UsageError("--root is for broadcast and reduce")
    check_writable(json_file)
    from moefabric.api.measurements import Perf, PerfOptions, sizes_between
    from moefabric.config.demand_file import read_demand

    bounds = minbytes, maxbytes, stepfactor, stepbytes
    sizes = [0] if kind == "barrier" else [*sizes_between(*bounds)]
    options["weights"] = None if demand is None else read_demand(demand)
    chosen = PerfOptions(kind, sizes, **options)  # type: ignore[arg-type] # click has checked it
    show = click.echo if json_file != STANDARD_OUTPUT else _discard
    with lab() as running, running.programs() as programs:
        measurement = Perf(programs, chosen)
        rows = []
        show("\n".join(_head(measurement)))
        for row in measurement.rows():
            rows.append(row)
            show(_line(measurement, row))
    result = measurement.result(rows)
    show("\n".join(perf_tail(result)))
    write_output(json_file, json.dumps(result.to_json(), indent=1) + "\n")
    if result.verdict == "invalid":
        raise SystemExit(INVALID)


def _discard(_text: str) -> None:
    """Print nothing, as standard output is the file of the JSON."""


def _head(perf: "Perf") -> Iterator[str]:
    options = perf.options
    servers = len(set(perf.placement.servers))
    ranks = len(perf.placement.servers)
    yield f"# moefabric perf {options.kind}: {perf.algorithm.name}, fabric {perf.fabric.name}"
    yield (
        f"# nThread 1 nGpus {ranks // servers} minBytes {options.sizes[0]} "
        f"maxBytes {options.sizes[-1]} warmup iters: {options.warm_up} "
        f"iters: {options.iterations} agg iters: 1 validation: {int(options.verify)} graph: 0"
    )
    yield "#"
    yield "# Using devices"
    here = list(zip(perf.placement.servers, perf.placement.gpus, strict=True))
    for first in range(0, ranks, ranks // servers):
        (server, gpu), (_, last) = here[first], here[first + ranks // servers - 1]
        ends = first, first + ranks // servers - 1
        yield f"#  Rank {_span(*ends)} on {server} device {_span(gpu, last)}"
    yield "#"
    titles = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong")
    yield "#" + _columns(*titles, "model", "bound", "error")[1:]
    units = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)", "(%)")
    yield "#" + _columns(*units)[1:]


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _line(perf: "Perf", row: "PerfRow") -> str:
    kind = perf.options.kind
    reduces, rooted = kind in {"allreduce", "reducescatter", "reduce"}, kind in _ROOTED
    return _columns(
        row.size,
        row.count,
        "uint32",
        "sum" if reduces else "none",
        perf.options.root if rooted else -1,
        f"{row.time_us:.1f}",
        f"{row.algbw_gbs:.2f}",
        f"{row.busbw_gbs:.2f}",
        "N/A" if row.wrong is None else row.wrong,
        f"{row.model_us:.1f}",
        f"{row.bound_us:.1f}",
        "N/A" if kind == "barrier" else f"{100 * row.error:+.1f}",
    )


_MOST_PERCENT: Final = 10.0
"""Error from which a replay prints the ratio to the model, as fits the column."""
_ROOTED: Final = frozenset({"broadcast", "reduce"})
_WIDTHS: Final = (12, 13, 9, 7, 7, 10, 8, 8, 7, 10, 10, 7)


def _columns(*cells: object) -> str:
    return " ".join(str(cell).rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True))


def perf_tail(result: "PerfResult") -> Iterator[str]:
    """Yield the lines behind the rows: sums, and the verdict."""
    yield f"# Out of bounds values : {result.wrong} {'FAILED' if result.wrong else 'OK'}"
    mean = sum(row.busbw_gbs for row in result.rows) / len(result.rows)
    yield f"# Avg bus bandwidth    : {mean:.5g}"
    yield f"# Verdict              : {result.verdict}"
    yield from (f"#   {line}" for line in _explanations(result))
    yield "#"


def _explanations(result: "JudgedResult") -> Iterator[str]:
    """Yield the reasons of a verdict, and their remedies."""
    yield from result.reasons
    yield from (f"remedy: {remedy}" for remedy in result.fidelity.remedies)


@cli_command(
    "moefabric replay examples/data/simai-moe-9216.txt.gz --ranks 4 --operations 60",
    "moefabric replay trace.et --via policy --policy mixnet --json replay.json",
)
@click.argument("trace", type=FILE)
@click.option("--form", default="", help="Format of the trace. Default: by its content.")
@lab_options
@click.option("--ranks", type=click.IntRange(2), help="Fold the trace onto this many ranks.")
@click.option("--operations", type=click.IntRange(1), help="The first operations of each rank.")
@click.option(
    "--schedule",
    "schedules",
    multiple=True,
    metavar="KIND=NAME",
    help="Algorithm of a collective, such as all_reduce=tree; any number of times.",
)
@via_options
@click.option("--runs", type=click.IntRange(1, 1000), default=3, help="Number of runs.")
@click.option(
    "--wall",
    "wall_s",
    type=SecondsType(0.1),
    metavar="SECONDS",
    help="Wall time of a run, which sets the scale. Default: by the number of steps.",
)
@pacing_options
@json_file_option("the result")
def replay(
    trace: Path,
    form: str,
    lab: "Callable[[], Lab]",
    schedules: tuple[str, ...],
    json_file: Path | None,
    **options: Any,
) -> None:
    """Replay the operations of TRACE: computation as time, collectives and messages as bytes.

    TRACE is a file, a folder, or the prefix of the files of all ranks. Each operation starts when
    those that it waits for have ended. Times are those of the modelled cluster; `model` is the
    event simulation of the same steps.
    """  # fmt: skip
    check_writable(json_file)
    from moefabric import ExecutionGraph, read_trace
    from moefabric.api.measurements import ReplayOptions

    graph = read_trace(trace, form)
    if not isinstance(graph, ExecutionGraph):
        raise SpecError([(str(trace), "is gating: use it in an experiment, gating: {trace: FILE}")])
    ranks = options["ranks"]
    if ranks is not None and ranks > len(graph.ranks):
        fault = f"{ranks} is not 2 to {len(graph.ranks)}, the ranks of the trace"
        raise SpecError([("--ranks", fault)])
    chosen = ReplayOptions(schedules=dict(map(_schedule, schedules)), **options)
    with lab() as running:
        result = running.replay(graph, chosen)
    if str(json_file) != "-":
        for line in replay_lines(result):
            click.echo(line)
    write_output(json_file, json.dumps(result.to_json(), indent=1) + "\n")
    if result.verdict == "invalid":
        raise SystemExit(INVALID)


def _schedule(text: str) -> tuple[str, str]:
    kind, equals, name = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--schedule {text}: all_reduce=ring is an example")
    return kind, name


def _error(error: float) -> str:
    """Return an error as text; one of steps that take longer than their bytes is a ratio."""
    return f"{error:+.1%}" if error < _MOST_PERCENT else f"{1 + error:.3g}x"


def replay_lines(result: "ReplayResult") -> list[str]:
    """Return a replay as text."""
    total = result.bytes_by_light + result.bytes_by_eps
    lines = [f"note: {note}" for note in result.notes]
    smaller = result.byte_scale
    size = f"1:{smaller:.4g}" if smaller >= 1 else f"{1 / smaller:.4g}:1"
    scale = f"bytes {size}, time {result.dilation:.4g}:1"
    ranks, servers = counted(result.ranks, "rank"), counted(result.servers, "server")
    place = f"{ranks} on {servers} of {result.fabric}"
    sent = f"{total / 1e9:.3f} GB between servers"
    lines += [
        f"{result.trace or 'trace'}: {place}, {scale}",
        f"runs      {', '.join(seconds(one) for one in result.seconds)}",
        f"model     {seconds(result.model_s)}; measured {result.error:+.2%}",
        f"light     {result.bytes_by_light / total if total else 0:.1%} of {sent}",
        "operation         count        GB    measured       model   error",
    ]
    lines += [
        f"{row.kind:16s} {row.count:6d} {row.bytes / 1e9:9.3f} {seconds(row.measured_s):>11s} "
        f"{seconds(row.model_s):>11s} {_error(row.error):>7s}"
        for row in result.operations
    ]
    wrong = "not verified" if result.wrong is None else f"{result.wrong} wrong numbers"
    lines.append(f"verdict   {result.verdict} ({wrong})")
    return lines + [f"          {line}" for line in _explanations(result)]
