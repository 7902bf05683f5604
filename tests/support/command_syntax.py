"""Whether a `moefabric` command of a document can work: its name, options and files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from moefabric.api.commands import STANDARD_OUTPUT
from moefabric.ui.cli.main import main

OUTPUTS: Final = {"--json", "--report", "--html", "--gating", "--out", "-o"}


def check_moefabric(arguments: Sequence[str]) -> None:
    """Raise an error if a command can't work in the current folder; make the files it writes.

    Args:
        arguments: Words after `moefabric`.

    Raises:
        click.UsageError: There is no such command, option or value.
        AssertionError: A file that it reads does not exist.
    """
    command: click.Command = main
    context = click.Context(main)
    rest = list(arguments)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None, name
        command = found
        if isinstance(command, click.Group):
            context = click.Context(command, parent=context)
    context = command.make_context(command.name, list(rest), parent=context)
    for parameter in command.params:
        value = context.params.get(str(parameter.name))
        is_file = OUTPUTS & set(parameter.opts) and not getattr(parameter, "is_flag", False)
        if value and is_file and Path(value) != STANDARD_OUTPUT:
            Path(value).touch()
        if isinstance(parameter, click.Argument) and isinstance(parameter.type, click.Path):
            for path in value if isinstance(value, tuple) else (value,):
                assert path is None or Path(path).exists(), path
