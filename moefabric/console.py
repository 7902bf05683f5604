"""The console: progress for a person at a terminal, plain lines for everything else."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class Reporter(Protocol):
    """What long work says of itself."""

    def say(self, text: str) -> None:
        """One line that stays."""

    def step(self, text: str) -> None:
        """One of the announced steps is done; `text` says what comes."""


class PlainReporter:
    """Lines on standard error, steps not shown one by one."""

    def say(self, text: str) -> None:
        """A line."""
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - this is the door

    def step(self, text: str) -> None:
        """Nothing: a log doesn't need every step."""


class _BarReporter:
    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._task = progress, progress.add_task("", total=total)

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False)

    def step(self, text: str) -> None:
        self._progress.update(self._task, advance=1, description=text)


@contextmanager
def reporter(total: int) -> Iterator[Reporter]:
    """A progress bar of `total` steps on a terminal, plain lines elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield PlainReporter()
        return
    columns = (BarColumn(bar_width=30), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        yield _BarReporter(progress, total)
