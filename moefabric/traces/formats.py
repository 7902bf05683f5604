"""Protocols of readers and writers of traces, and the choice of a reader by the content."""

from collections.abc import Container, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from moefabric.config.file_kinds import refuse_other_kind
from moefabric.config.plugins import TRACE_READERS, TRACE_WRITERS, load_plugin, plugin_names
from moefabric.core.errors import SpecError, TraceError
from moefabric.traces.files import first_file, read_head
from moefabric.workload.gating.traces import GatingTrace
from moefabric.workload.graphs.execution_graph import WORLD, ExecutionGraph


class TraceReader(Protocol):
    """Reader of one format; plug-ins of the group `moefabric.trace_readers`.

    Example:
        class EmptyReader:
            name = "empty"

            def matches(self, path: Path, head: bytes) -> bool:
                return not head

            def read(self, path: Path) -> ExecutionGraph:
                return ExecutionGraph({0: ()}, name=path.stem)
    """

    name: str

    def matches(self, path: Path, head: bytes) -> bool:
        """Return whether a trace is in this format.

        Args:
            path: A file, a folder, or the prefix of the files of all ranks.
            head: The first 64 KiB of its first file, decompressed.
        """
        ...

    def read(self, path: Path) -> ExecutionGraph | GatingTrace:
        """Read a trace.

        Args:
            path: A file, a folder, or the prefix of the files of all ranks.

        Raises:
            TraceError: If a file is broken; the error has the file, the place and the reason.
        """
        ...


class TraceWriter(Protocol):
    """Writer of one format; plug-ins of the group `moefabric.trace_writers`.

    Example:
        class RankCountWriter:
            name = "rank-count"

            def write(self, graph: ExecutionGraph, path: Path) -> None:
                path.write_text(str(len(graph.ranks)))
    """

    name: str

    def write(self, graph: ExecutionGraph, path: Path) -> None:
        """Write a trace.

        Args:
            graph: The operations of all ranks.
            path: The file, or the prefix of the files of all ranks if the format has one each.

        Raises:
            SpecError: If the format can't express the graph.
        """
        ...


def read_trace(
    path: str | Path, form: str = "", readers: Iterable[TraceReader] | None = None
) -> ExecutionGraph | GatingTrace:
    """Read a trace in the format that its content shows.

    Args:
        path: A file, a folder, or the prefix of the files of all ranks.
        form: Name of the format, or `package.module:Name` of a reader; empty to tell it by the
            content.
        readers: The readers to choose from by content; by default all that are registered.

    Raises:
        TraceError: If no reader or more than one knows the content, or the trace is broken.
        SpecError: If there is no such format.
    """
    return read_with_format(Path(path), form, readers)[1]


def read_with_format(
    path: Path, form: str = "", readers: Iterable[TraceReader] | None = None
) -> tuple[str, ExecutionGraph | GatingTrace]:
    """Return the name of a trace's format and the trace, as `read_trace` reads it."""
    reader = named_reader(form) if form else trace_reader(path, readers)
    try:
        return reader.name, reader.read(path)
    except TraceError as error:
        if form and (content := _content_form(path)) not in ("", reader.name):
            raise TraceError(path, "", f"the content is {content}, not {form}") from error
        raise


def _content_form(path: Path) -> str:
    """Return the name of the format that the content shows; empty if it shows none."""
    with suppress(SpecError):
        return trace_reader(path).name
    return ""


def trace_reader(
    path: Path, readers: Iterable[TraceReader] | None = None, suited: Container[str] | None = None
) -> TraceReader:
    """Return the reader of a trace by its content.

    Args:
        path: A file, a folder, or the prefix of the files of all ranks.
        readers: The readers to choose from; by default all that are registered.
        suited: Formats that the error of an unknown one lists; by default all.

    Raises:
        TraceError: If no reader or more than one knows the content.
        SpecError: If it is no trace, but another file of moefabric.
    """
    choice, broken = _registered_readers() if readers is None else (list(readers), [])
    head = read_head(first_file(path))
    matching = [reader for reader in choice if reader.matches(path, head)]
    if len(matching) == 1:
        return matching[0]
    if not matching and path.is_file():
        refuse_other_kind(path, "trace")
    listed = [one.name for one in choice if suited is None or one.name in suited]
    known = ", ".join([reader.name for reader in matching] or listed)
    fault = "could be any of" if matching else "the content is in no known format; known are"
    raise TraceError(path, "", "; ".join([f"{fault} {known}", *([] if matching else broken)]))


def _registered_readers() -> tuple[list[TraceReader], list[str]]:
    """Return all readers that can be loaded, and why others can't, which may not matter."""
    choice: list[TraceReader] = []
    broken: list[str] = []
    for name in plugin_names(TRACE_READERS):
        try:
            choice.append(named_reader(name))
        except SpecError as error:
            broken.append(str(error))
    return choice, broken


def named_reader(form: str) -> TraceReader:
    """Return the reader of a format.

    Args:
        form: Name of the format, or `package.module:Name`.

    Raises:
        SpecError: If there is no such reader.
    """
    reader: TraceReader = load_plugin(TRACE_READERS, form, TraceReader)
    return reader


def named_writer(form: str) -> TraceWriter:
    """Return the writer of a format.

    Args:
        form: Name of the format, or `package.module:Name`.

    Raises:
        SpecError: If there is no such writer.
    """
    writer: TraceWriter = load_plugin(TRACE_WRITERS, form, TraceWriter)
    return writer


def checked_graph(graph: ExecutionGraph, source: object) -> ExecutionGraph:
    """Return a graph that was read from a file, which is its `source`.

    Raises:
        TraceError: If the graph can't run.
    """
    if fault := next(graph.faults(), ""):
        raise TraceError(source, "", fault)
    return graph


def group_numbers(graph: ExecutionGraph) -> dict[str, str]:
    """Return the decimal name of each group; groups that have one keep it.

    ASTRA-sim takes process groups with decimal names only.

    Args:
        graph: A graph, whose group of all ranks is left out unless it has another order.
    """
    everybody = tuple(sorted(graph.ranks))
    names = [name for name, ranks in graph.groups.items() if name != WORLD or ranks != everybody]
    numbers = {name: name for name in names if name.isdecimal() and name.isascii()}
    numbers.pop("0", None)
    free = (str(n) for n in range(1, len(names) + len(numbers) + 1) if str(n) not in numbers)
    return {name: numbers.get(name) or next(free) for name in names}
