"""Parts of commands: files, exit status, progress on the console, and output as text or JSON.

Commands of other packages, entry points of `moefabric.commands`, use them as moefabric's do.

Example:
    A command that reports its progress and writes a file::

        @click.command(short_help="Count the servers of fabrics.")
        @click.argument("files", type=FILE, nargs=-1)
        @click.option("--output", type=FILE, default=STANDARD_OUTPUT)
        def count(files: tuple[Path, ...], output: Path) -> None:
            check_writable(output)
            with progress_reporter(len(files)) as reporter:
                ...
            write_output(output, text)
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from errno import EISDIR
from os import strerror
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Final

import click

from moefabric.config.plugins import modules_in_files
from moefabric.core.errors import JournalInUseError, MoefabricError
from moefabric.results.progress import PlainProgressReporter, ProgressReporter
from moefabric.runtime.atomic_file import no_folder, write_fault, write_whole

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress

    from moefabric.api.result import Result
    from moefabric.results.model import RunResult

FILE: Final = click.Path(path_type=Path)
"""Type of arguments and options that name files."""
STANDARD_OUTPUT: Final = Path("-")
INVALID: Final = 3
"""Exit status of figures that can't be trusted."""
_UNBOUNDED: Final = 10_000


def _choose_plugins(context: click.Context, _option: click.Parameter, choice: str) -> None:
    if choice == "any":
        context.with_resource(modules_in_files(installed_only=False))


plugins_option = click.option(
    "--plugins",
    type=click.Choice(["installed", "any"]),
    default="installed",
    callback=_choose_plugins,
    expose_value=False,
    help="Modules that the file may name, each of which runs as a program. --set names any.",
)
"""Option of a command that reads files which name plug-ins."""


def print_result(result: object, lines: Iterable[str], *, as_json: Path | bool | None) -> None:
    """Print a result as lines of text, unless its JSON takes their place.

    Args:
        lines: The result as text.
        as_json: File of the JSON; `-`, or True, for standard output.
    """
    if print_json(result, STANDARD_OUTPUT if as_json is True else as_json or None):
        click.echo("\n".join(lines))


def print_json(result: object, file: Path | None) -> bool:
    """Write a result as JSON, and return whether text is to be printed beside it.

    Args:
        file: The file; `-` for standard output, None for no JSON.
    """
    if file is not None:
        check_writable(file)
        write_output(file, json.dumps(result) + "\n")
    return file != STANDARD_OUTPUT


class BarReporter:
    """Shows a bar with what happens now; messages stay above it."""

    def __init__(self, progress: "Progress", total: int) -> None:
        self._progress, self._task = progress, progress.add_task("", total=total)

    def show_message(self, text: str) -> None:
        """Show a line that stays, and say so beside the bar until the next step ends."""
        self._progress.console.print(text, highlight=False)
        self._progress.update(self._task, description=text)

    def advance(self, text: str) -> None:
        """Complete one step; `text` names the next one."""
        self._progress.update(self._task, advance=1, description=text)


@contextmanager
def progress_reporter(total: int) -> Iterator[ProgressReporter]:
    """Report progress of `total` steps: a bar on a terminal, plain lines elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield PlainProgressReporter()
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(bar_width=20),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield BarReporter(progress, total)


def check_writable(*files: Path | None) -> None:
    """Check that results can be written: before long work, or before they are.

    The folder of a file is created if the folder around it exists, and is the current one or in it.

    Raises:
        click.UsageError: if a file can't be written, or the command line names it twice.
    """
    for file in files:
        if file is None or file == STANDARD_OUTPUT:
            continue
        _check_named_once(file)
        folder = file.absolute().parent
        try:
            if folder.exists() and not folder.is_dir():
                raise click.UsageError(f"{file}: {folder} is no folder")
            is_here = folder.parent.resolve().is_relative_to(Path.cwd())
            missing = folder.parent if not folder.parent.is_dir() else folder
            if not missing.exists() and not (is_here and missing == folder):
                raise click.UsageError(f"{file}: {no_folder(missing, file.parent)}")
            file.parent.mkdir(exist_ok=True)
            if file.is_dir():
                raise IsADirectoryError(EISDIR, strerror(EISDIR))
            if not file.exists() or file.is_file():
                with TemporaryFile(dir=file.resolve().parent):
                    pass
        except OSError as error:
            raise click.UsageError(f"{file}: {write_fault(error)}") from error


def _check_named_once(file: Path) -> None:
    """Refuse an output that another word of the command line names, as its input or its output."""
    context = click.get_current_context(silent=True)
    if context is None:
        return
    named = [
        parameter.human_readable_name if isinstance(parameter, click.Argument) else option
        for parameter in context.command.params
        for path in _paths(context.params.get(parameter.name or ""))
        for option in parameter.opts[:1]
        if path != STANDARD_OUTPUT and path.resolve() == file.resolve()
    ]
    if len(named) > 1:
        raise click.UsageError(f"{file}: {' and '.join(named)} name it; give another file")


def _paths(value: object) -> Iterator[Path]:
    for part in value if isinstance(value, tuple) else (value,):
        if isinstance(part, Path):
            yield part


def write_output(file: Path | None, text: str) -> None:
    """Write text to a file or to standard output; None discards it."""
    if file == STANDARD_OUTPUT:
        click.echo(text, nl=False)
    elif file is not None:
        write_whole(file, text)


def write_result(result: "Result", json_file: Path | None, report: Path | None) -> None:
    """Write the result of an experiment as JSON and as a page, and print its tables."""
    write_output(json_file, result.json_text())
    if report is not None:
        write_output(report, result.page())
    if json_file != STANDARD_OUTPUT:
        print_tables(result)


@contextmanager
def journalled(
    json_file: Path | None, report: Path | None, command: str = "run"
) -> Iterator[Path | None]:
    """Yield the path of a run's journal; write its partial result if the run is interrupted.

    A run that is refused before it has written to its journal changes no file: the journal, if
    there is one, is an earlier run's, or that of a run under way.

    Args:
        json_file: File of the run's JSON, next to which the journal is; None for no journal.
        report: File of the run's page.
        command: The command that goes on with a run that is interrupted.
    """
    from moefabric.results.journal import JOURNAL_SUFFIX, is_in_use

    journal = None
    if json_file is not None and json_file != STANDARD_OUTPUT:
        name = json_file.name if json_file.suffix == JOURNAL_SUFFIX else json_file.stem
        journal = json_file.with_name(name + JOURNAL_SUFFIX)
    before = _version(journal)
    try:
        yield journal
    except JournalInUseError:  # what it has is the other run's
        raise
    except (KeyboardInterrupt, MoefabricError):
        if journal is not None and _version(journal) != before and not is_in_use(journal):
            _write_interrupted(journal, json_file, report, command)
        raise


def _version(journal: Path | None) -> tuple[int, int, int] | None:
    """Return a value that changes whenever the journal is written; None without a journal."""
    try:
        status = journal.stat() if journal is not None else None
    except OSError:
        return None
    return status and (status.st_ino, status.st_size, status.st_mtime_ns)


def _write_interrupted(
    journal: Path, json_file: Path | None, report: Path | None, command: str
) -> None:
    from moefabric.api.result import Result

    try:
        result = Result.load(journal)
        if not any(fabric.iterations for fabric in result.results):
            journal.unlink()  # nothing was measured
            return
        write_output(json_file, result.json_text())
        if report is not None:
            write_output(report, result.page())
    except MoefabricError as error:
        click.echo(f"moefabric: {error}", err=True)
    else:
        click.echo(f"moefabric: incomplete: {result.incomplete}", err=True)
    remedy = f"`moefabric {command} --resume` goes on"
    click.echo(f"moefabric: {journal} has what was measured; {remedy}", err=True)


def print_tables(run: "RunResult") -> None:
    """Print the tables of a run."""
    from moefabric.report.table import RunTables

    print_renderable(RunTables(run))


def is_narrow(table: "RenderableType") -> bool:
    """Return whether a table fits into the terminal, or into 80 columns of a file or a pipe."""
    from rich.console import Console

    console = Console()
    unbounded = console.options.update(max_width=_UNBOUNDED)
    return console.measure(table, options=unbounded).maximum <= console.width


def print_renderable(renderable: "RenderableType") -> None:
    """Print a table in the width of the terminal; a file or a pipe gets all of its columns."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if isinstance(renderable, Table) and not console.is_terminal:
        unbounded = console.options.update(max_width=_UNBOUNDED)
        whole = console.measure(renderable, options=unbounded).maximum
        console.width = max(console.width, whole)
    console.print(renderable)
