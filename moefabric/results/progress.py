"""Progress of long work."""

import sys
from typing import Protocol


class ProgressReporter(Protocol):
    """Shows the progress of work with a known number of steps."""

    def show_message(self, text: str) -> None:
        """Show one line that stays."""

    def advance(self, text: str) -> None:
        """Complete one step; `text` names the next one."""


class PlainProgressReporter:
    """Writes messages to standard error, and doesn't show single steps."""

    def show_message(self, text: str) -> None:
        """Write a line."""
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - writing to the terminal is its task

    def advance(self, text: str) -> None:
        """Do nothing: a log doesn't need every step."""
