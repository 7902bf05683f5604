"""`moefabric trace`: traces of other tools, and traffic in the formats of other simulators."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from moefabric.api.commands import FILE, STANDARD_OUTPUT, check_writable, print_result, write_output
from moefabric.core.errors import SpecError, TraceError
from moefabric.core.units import rate_text
from moefabric.report.formatting import aligned, counted, data_size, seconds
from moefabric.ui.cli.command import cli_group, json_beside_files_option
from moefabric.ui.cli.gating import generate
from moefabric.ui.cli.options import parse_option, positive_rate

if TYPE_CHECKING:
    from moefabric import ExecutionGraph, GatingTrace

_FORMATS: Final = ("cm", "goal")
_SUFFIXES: Final = {".goal": "goal", ".csv": "csv", ".npz": "npz", ".et": "chakra"}
"""Formats of files that `convert` writes, by the ending of their names."""
_OF_MESSAGES: Final = frozenset({"goal", "csv"})
"""Formats without collectives."""
_RATE: Final = "400Gb/s"


_format_option = click.option(
    "--from", "form", default="", metavar="FORMAT", help="Format; told from the content if absent."
)
_ranks_option = click.option(
    "--ranks", type=click.IntRange(1), help="Fold the operations onto so many ranks."
)
_rate_option = click.option(
    "--rate", default=_RATE, callback=parse_option(positive_rate),
    help="Rate of each rank's NIC, for ideal times.",
)  # fmt: skip


@cli_group("moefabric trace info trace.et", "moefabric trace generate --presets")
def trace() -> None:
    """Read, convert, export and generate traces of training jobs.

    Formats are told from the content: Chakra, PyTorch, SimAI, GOAL, NCCL's logs, counts and
    routes of gating, and those of plug-ins.
    """


def _read(path: Path, form: str, ranks: int | None) -> tuple[str, "ExecutionGraph | GatingTrace"]:
    """Return the name of a trace's format, and the trace, folded onto `ranks`."""
    from moefabric import ExecutionGraph, fold
    from moefabric.traces.formats import read_with_format

    name, content = read_with_format(path, form)
    if isinstance(content, ExecutionGraph) and (fault := next(content.faults(), "")):
        raise TraceError(path, "", fault)
    if ranks is None:
        return name, content
    if not isinstance(content, ExecutionGraph):
        raise SpecError([("--ranks", "gating isn't folded: use `gating.repeat` of an experiment")])
    return name, fold(content, ranks)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Do without the search for cycles, which would visit each of a million operations often."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@trace.command(
    short_help="Say what traces hold.",
    examples=[
        "moefabric trace info examples/data/simai-moe-9216.txt.gz --ranks 16",
        "moefabric trace info gating.npz --json",
    ],
)
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILE...")
@_format_option
@_ranks_option
@_rate_option
@json_beside_files_option
def info(
    files: tuple[Path, ...], form: str, ranks: int | None, rate: float, *, as_json: Path | None
) -> None:
    """Print the format, ranks, operations, bytes by collective and group, and times of traces.

    FILE is a file, a folder, or the prefix of the files of all ranks.
    """
    from moefabric.traces.summary import summary_document

    documents = []
    with _uncollected():
        for file in files:
            name, content = _read(file, form, ranks)
            documents.append({"file": str(file), **summary_document(content, name, rate)})
    lines = [line for document in documents for line in _info_lines(document)]
    print_result(documents if len(documents) > 1 else documents[0], lines, as_json=as_json)


def _info_lines(document: Mapping[str, Any]) -> Iterator[str]:
    if "operations" not in document:
        yield from _gating_lines(document)
        return
    yield f"{document['file']}: {document['format']}, {counted(document['ranks'], 'rank')}"
    counts = (f"{kind} {count:,}" for kind, count in document["operations"].items())
    yield f"  operations: {', '.join(counts) or 'none'}"
    sizes = (f"{count} of {counted(size, 'rank')}" for size, count in document["groups"].items())
    yield f"  groups: {', '.join(sizes)}"
    rows = [("operation", "groups", "ranks", "calls", "a rank sends", "all send")]
    for row in document["traffic"]:
        figures = str(row["ranks"]), f"{row['calls']:,}"
        sent = data_size(row["rank_bytes"]), data_size(row["total_bytes"])
        rows.append((row["operation"], _group_names(row["groups"]), *figures, *sent))
    if len(rows) > 1:
        yield from (f"  {line}" for line in aligned(rows, right=range(2, 6)))
    yield (
        f"  computation {seconds(document['compute_s'])} of the busiest rank, "
        f"{seconds(document['critical_path_s'])} on the critical path; ideal time with NICs of "
        f"{rate_text(document['rate_bps'])}: {seconds(document['ideal_s'])}"
    )
    yield from (f"  note: {note}" for note in document["notes"])


def _group_names(names: Sequence[str]) -> str:
    if len(names) <= 2:
        return ", ".join(names)
    return f"{names[0]} ... {names[-1]} ({len(names)})"


def _gating_lines(document: Mapping[str, Any]) -> Iterator[str]:
    sizes = ", ".join(
        f"{document[key]:,} {key}" for key in ("iterations", "layers", "ranks", "experts")
    )
    yield f"{document['file']}: {document['format']}, {sizes}"
    least, median, most = document["row_tokens"]
    yield (
        f"  choices of experts: {document['tokens']:,}; a rank in a layer {least:,} to {most:,}, "
        f"median {median:,.0f}"
    )
    for name, value in document["statistics"].items():
        if value is not None:
            yield f"  {name.replace('_', ' ')}: {value:.4g}"
    yield from (f"  note: {note}" for note in document["notes"])


@trace.command(
    short_help="Write a trace in another format.",
    examples=["moefabric trace convert trace.et trace.goal", "moefabric trace convert g.csv g.npz"],
)
@click.argument("file", type=FILE)
@click.argument("output", type=FILE)
@_format_option
@click.option("--to", metavar="FORMAT", help="Format; by default that of the ending of OUTPUT.")
@_ranks_option
def convert(file: Path, output: Path, form: str, to: str | None, ranks: int | None) -> None:
    """Write the trace FILE as OUTPUT; what is lost or assumed is printed.

    OUTPUT of operations ends in .goal, .csv or .et (Chakra; the prefix of the ranks' files), that
    of gating in .csv or .npz, or --to gives the format. Formats without collectives get their
    messages.
    """
    from moefabric.traces.formats import named_writer
    from moefabric.traces.gating_files import write_gating
    from moefabric.traces.messages import lowered
    from moefabric.workload.graphs.execution_graph import ExecutionGraph

    form_to = to or _SUFFIXES.get(output.suffix)
    if form_to is None:
        message = f"{output.suffix or 'no ending'} is not one of {', '.join(_SUFFIXES)}: give --to"
        raise SpecError([(str(output), message)])
    name, content = _read(file, form, ranks)
    check_writable(output)
    if not isinstance(content, ExecutionGraph):
        write_gating(content, output, form_to)
        click.echo(f"{file} ({name}) -> {output} ({form_to})")
        return
    if form_to == "npz":
        fault = "npz is a format of gating, and these are operations: .goal, .csv or .et, or --to"
        raise SpecError([(str(output), fault)])
    writer = named_writer(form_to)
    if form_to in _OF_MESSAGES:  # here rather than in the writer, for the note on schedules
        content = lowered(content)
    writer.write(content, output)
    click.echo(f"{file} ({name}) -> {output} ({form_to}), {counted(len(content.ranks), 'rank')}")
    for note in content.notes:
        click.echo(f"note: {note}", err=True)


trace.add_command(generate)


@trace.command(
    short_help="Write an all-to-all for htsim or LogGOPSim.",
    examples=[
        "moefabric trace export examples/prototype.yaml --format cm -o dispatch.cm",
        "moefabric trace export demand.json --format goal",
    ],
)
@click.argument("file", type=FILE)
@click.option(
    "--format", "kind", type=click.Choice(_FORMATS), required=True,
    help="cm: connection matrix of htsim. goal: program of LogGOPSim.",
)  # fmt: skip
@click.option("--iteration", type=click.IntRange(0), default=0, help="Iteration of the experiment.")
@click.option("--layer", type=click.IntRange(0), default=0, help="Layer of the model.")
@click.option(
    "--collective", type=click.Choice(("dispatch", "combine")), default="dispatch",
    help="Tokens on their way to experts, or back.",
)  # fmt: skip
@click.option("--output", "-o", type=FILE, default=STANDARD_OUTPUT, help="File to write.")
def export(
    file: Path, kind: str, iteration: int, layer: int, collective: str, output: Path
) -> None:
    """Write the bytes between servers of one all-to-all. Needs no root.

    FILE is an experiment, or a demand: a JSON array of rows.
    """
    from moefabric import DemandMatrix, Experiment
    from moefabric.config.demand_file import read_demand
    from moefabric.traces.connection_matrix import matrix_text
    from moefabric.traces.goal import goal_text
    from moefabric.traces.messages import demand_graph

    check_writable(output)
    if file.suffix == ".json":
        rows = read_demand(file)
        demand = DemandMatrix([f"s{n}" for n in range(len(rows))], rows)
    else:
        demand = Experiment.load(file).demand(iteration, layer)
        demand = demand if collective == "dispatch" else demand.combine()
    text = matrix_text(demand) if kind == "cm" else goal_text(demand_graph(demand))
    write_output(output, text)
