"""Files that commands write: seen to be writable before long work, written after it."""

from pathlib import Path

import click

STANDARD_OUTPUT = Path("-")


def writable(*files: Path | None) -> None:
    """Before an hour of packets, not after: see that what comes of it can be written. UsageError where it can't."""
    for file in files:
        if file is None or file == STANDARD_OUTPUT:
            continue
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a"):
                pass
        except OSError as fault:
            raise click.UsageError(f"{file}: {fault.strerror}") from fault


def write(file: Path | None, text: str) -> None:
    """Write it where it was wanted, if it was."""
    if file == STANDARD_OUTPUT:
        click.echo(text, nl=False)
    elif file is not None:
        file.write_text(text)
