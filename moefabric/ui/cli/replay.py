"""`moefabric replay`: a trace of any format with real bytes on a fabric."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moefabric.api.commands import FILE, INVALID, check_writable, write_output
from moefabric.core.errors import SpecError
from moefabric.ui.cli.options import lab_of, name_option, settings_option

if TYPE_CHECKING:
    from moefabric.api.measurements import ReplayResult


@click.command(short_help="Replay a trace with real bytes.")
@click.argument("trace", type=FILE)
@click.option("--form", default="", help="Format of the trace. Default: by its content.")
@click.option("--spec", type=FILE, help="Bring this fabric up. Default: the one that is up.")
@settings_option
@name_option
@click.option("--ranks", type=click.IntRange(2), help="Fold the trace onto this many ranks.")
@click.option("--operations", type=click.IntRange(1), help="The first operations of each rank.")
@click.option(
    "--schedule",
    "schedules",
    multiple=True,
    metavar="KIND=NAME",
    help="Algorithm of a collective, such as all_reduce=tree; any number of times.",
)
@click.option(
    "--via",
    type=click.Choice(["eps", "light", "policy"]),
    default="eps",
    help="The EPS, the circuits that are lit, or those that --policy chooses.",
)
@click.option("--policy", default="mixnet-spill", help="The policy of --via policy.")
@click.option("--runs", type=click.IntRange(1, 1000), default=3, help="Number of runs.")
@click.option(
    "--wall",
    type=click.FloatRange(0.1),
    metavar="SECONDS",
    help="Wall time of a run, which sets the scale. Default: by the number of steps.",
)
@click.option("--check/--no-check", default=True, help="Verify the results.")
@click.option("--greedy", is_flag=True, help="Let congestion control alone set rates.")
@click.option("--json", "json_file", type=FILE, help="Write the result (- is standard out).")
def replay(
    trace: Path,
    form: str,
    spec: Path | None,
    settings: tuple[str, ...],
    name: str | None,
    ranks: int | None,
    operations: int | None,
    schedules: tuple[str, ...],
    via: str,
    policy: str,
    runs: int,
    wall: float | None,
    check: bool,
    greedy: bool,
    json_file: Path | None,
) -> None:
    """Replay the operations of TRACE: computation as time, collectives and messages as bytes.

    TRACE is a file, a folder, or the prefix of the files of all ranks. Each operation starts when
    those that it waits for have ended. Times are those of the modelled cluster; `model` is the
    event simulation of the same steps.
    """  # fmt: skip
    check_writable(json_file)
    from moefabric.api.measurements import ReplayOptions
    from moefabric.traces.formats import read_trace
    from moefabric.workload.graphs.execution_graph import ExecutionGraph

    chosen = dict(_schedule(text) for text in schedules)
    graph = read_trace(trace, form)
    if not isinstance(graph, ExecutionGraph):
        raise SpecError([(str(trace), "is gating: use it in an experiment, gating: {trace: FILE}")])
    options = ReplayOptions(
        ranks=ranks,
        operations=operations,
        schedules=chosen,
        via=via,  # type: ignore[arg-type] # click has checked it
        policy=policy,
        runs=runs,
        wall_s=wall,
        verify=check,
        greedy=greedy,
    )
    with lab_of(spec, settings, name) as lab:
        result = lab.replay(graph, options)
    if str(json_file) != "-":
        for line in _lines(result):
            click.echo(line)
    write_output(json_file, json.dumps(result.to_json(), indent=1) + "\n")
    if result.verdict == "invalid":
        raise SystemExit(INVALID)


def _schedule(text: str) -> tuple[str, str]:
    kind, equals, name = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--schedule {text}: all_reduce=ring is an example")
    return kind, name


def _lines(result: "ReplayResult") -> list[str]:
    from moefabric.report.formatting import seconds

    total = result.bytes_by_light + result.bytes_by_eps
    lines = [f"note: {note}" for note in result.notes]
    scale = f"bytes 1:{result.byte_scale:.4g}, time {result.dilation:.4g}:1"
    place = f"{result.ranks} ranks on {result.servers} servers of {result.fabric}"
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
        f"{seconds(row.model_s):>11s} {row.error:+7.1%}"
        for row in result.operations
    ]
    wrong = "not verified" if result.wrong is None else f"{result.wrong} wrong numbers"
    lines.append(f"verdict   {result.verdict} ({wrong})")
    return lines + [f"          {reason}" for reason in result.reasons]
