"""`moefabric perf`: times and bandwidths of collectives, in the columns of nccl-tests."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from moefabric.api.commands import FILE, INVALID, check_writable, write_output
from moefabric.ui.cli.options import lab_of, name_option, settings_option

if TYPE_CHECKING:
    from moefabric.api.measurements import Perf, PerfResult, PerfRow

_KINDS: Final = (
    "alltoall", "alltoallv", "allreduce", "allgather", "reducescatter", "broadcast", "reduce",
    "sendrecv", "barrier",
)  # fmt: skip
_SUFFIXES: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class _Size(click.ParamType):  # type: ignore[type-arg] # click is generic in its stubs only
    """Bytes, as nccl-tests takes them: `1M` is 1,048,576."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9]+)([KMG]?)i?B?", str(value), re.IGNORECASE)
        if not match:
            self.fail(f"{value!r} is not a size such as 1048576, 1M or 1G", param, ctx)
        return int(match[1]) * _SUFFIXES[match[2].upper()]


@click.command(short_help="Measure collectives as nccl-tests does.")
@click.argument("kind", type=click.Choice(_KINDS))
@click.option("-b", "--minbytes", type=_Size(), default="1M", help="Smallest size.")
@click.option("-e", "--maxbytes", type=_Size(), default="1G", help="Largest size.")
@click.option("-f", "--stepfactor", type=click.FloatRange(1.01), default=2.0, help="Size factor.")
@click.option("-i", "--stepbytes", type=_Size(), default=0, help="Step instead of a factor.")
@click.option("-n", "--iters", type=click.IntRange(1, 10000), default=20, help="Iterations.")
@click.option("-w", "--warmup-iters", type=click.IntRange(0, 1000), default=5, help="Before them.")
@click.option("--spec", type=FILE, help="Bring this fabric up. Default: the one that is up.")
@settings_option
@name_option
@click.option("--ranks", type=click.IntRange(1), help="Number of ranks. Default: one on each GPU.")
@click.option("--algorithm", help="A schedule: its name, or package.module:Name.")
@click.option(
    "--via",
    type=click.Choice(["eps", "light", "policy"]),
    default="eps",
    help="The EPS, the circuits that are lit, or those that --policy chooses.",
)
@click.option("--policy", default="mixnet-spill", help="The policy of --via policy.")
@click.option("--demand", type=FILE, help="Relative sizes [rank][rank] of alltoallv, JSON.")
@click.option("--root", type=click.IntRange(0), default=0, help="Root of broadcast and reduce.")
@click.option("--check/--no-check", default=True, help="Verify the results.")
@click.option("--greedy", is_flag=True, help="Let congestion control alone set rates.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.01, 600),
    help="Wall seconds of an iteration: the longer, the less the start of all agents counts.",
)
@click.option("--json", "json_file", type=FILE, help="Write the rows as JSON (- is standard out).")
def perf(
    kind: str,
    minbytes: int,
    maxbytes: int,
    stepfactor: float,
    stepbytes: int,
    iters: int,
    warmup_iters: int,
    spec: Path | None,
    settings: tuple[str, ...],
    name: str | None,
    ranks: int | None,
    algorithm: str | None,
    via: str,
    policy: str,
    demand: Path | None,
    root: int,
    check: bool,
    greedy: bool,
    seconds: float | None,
    json_file: Path | None,
) -> None:
    """Run the collective KIND with real bytes and print the columns of nccl-tests, in model time.

    `model` is the event simulation of the same steps, `bound` the time of the busiest server's
    bytes over its NICs, and `error` the difference of the measured time from the model.
    """
    if minbytes < 1 or maxbytes < minbytes:
        raise click.UsageError("--maxbytes must be at least --minbytes, and that at least 1")
    if demand is not None and kind != "alltoallv":
        raise click.UsageError("--demand is for alltoallv")
    check_writable(json_file)
    from moefabric.api.measurements import Perf, PerfOptions, sizes_between
    from moefabric.config.demand_file import read_demand

    sizes = (
        [0] if kind == "barrier" else [*sizes_between(minbytes, maxbytes, stepfactor, stepbytes)]
    )
    options = PerfOptions(
        kind,  # type: ignore[arg-type] # click has checked it
        sizes,
        iters,
        warmup_iters,
        algorithm,
        None if demand is None else read_demand(demand),
        root,
        ranks=ranks,
        via=via,  # type: ignore[arg-type]
        policy=policy,
        verify=check,
        greedy=greedy,
        wall_s=seconds,
    )
    quiet = str(json_file) == "-"
    with lab_of(spec, settings, name) as lab, lab.programs() as programs:
        measurement = Perf(programs, options)
        rows = []
        for line in () if quiet else _head(measurement):
            click.echo(line)
        for row in measurement.rows():
            rows.append(row)
            if not quiet:
                click.echo(_line(measurement, row))
    result = measurement.result(rows)
    for line in () if quiet else _tail(result):
        click.echo(line)
    write_output(json_file, json.dumps(result.to_json(), indent=1) + "\n")
    if result.wrong:
        raise SystemExit(INVALID)


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
    for rank, server in enumerate(perf.placement.servers):
        yield f"#  Rank {rank:2d} on {server:>6s} device {perf.placement.gpus[rank]}"
    yield "#"
    titles = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong")
    yield "#" + _columns((*titles, "model", "bound", "error"))[1:]
    units = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(us)", "(%)")
    yield "#" + _columns(units)[1:]


def _line(perf: "Perf", row: "PerfRow") -> str:
    kind = perf.options.kind
    reduces, rooted = kind in {"allreduce", "reducescatter", "reduce"}, kind in _ROOTED
    return _columns(
        (
            str(row.size),
            str(row.count),
            "uint32",
            "sum" if reduces else "none",
            str(perf.options.root if rooted else -1),
            f"{row.time_us:.1f}",
            f"{row.algbw_gbs:.2f}",
            f"{row.busbw_gbs:.2f}",
            "N/A" if row.wrong is None else str(row.wrong),
            f"{row.model_us:.1f}",
            f"{row.bound_us:.1f}",
            "N/A" if kind == "barrier" else f"{100 * row.error:+.1f}",
        )
    )


_ROOTED: Final = frozenset({"broadcast", "reduce"})
_WIDTHS: Final = (12, 13, 9, 7, 7, 10, 8, 8, 7, 10, 10, 7)


def _columns(texts: tuple[str, ...]) -> str:
    return " ".join(text.rjust(width) for text, width in zip(texts, _WIDTHS, strict=True))


def _tail(result: "PerfResult") -> Iterator[str]:
    yield f"# Out of bounds values : {result.wrong} {'FAILED' if result.wrong else 'OK'}"
    mean = sum(row.busbw_gbs for row in result.rows) / len(result.rows)
    yield f"# Avg bus bandwidth    : {mean:.5g}"
    yield "#"
