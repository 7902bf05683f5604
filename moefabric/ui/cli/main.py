"""The command `moefabric`.

Exit status: 0 success, 1 an error that is reported in one line, 2 wrong usage, 3 an invalid
verdict, 4 a regression (`compare`).
"""

import sys
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, Final

import click

from moefabric.core.errors import MoefabricError

_INTERRUPTED: Final = 130
_COMMANDS: Final = "moefabric.commands"
"""Group of entry points by which other distributions add commands."""
_SHARED: Final = {
    "collectives": "perf replay",
    "fabric": "up down inspect check exec light ocs",
    "machine": "doctor calibrate",
    "launch": "hostfile mpirun torchrun",
    "observe": "logs events metrics dashboard",
    "plan": "plan policy cost",
    "report": "report compare",
    "run": "run train predict sweep",
}
"""Commands by the module that has several of them."""
_OTHERS: Final = "capture fault model schema trace"
"""Commands that have a module of their own name."""
_MODULES: Final = {name: name for name in _OTHERS.split()} | {
    name: module for module, names in _SHARED.items() for name in names.split()
}
"""The module of each command, which is imported when the command is used or listed."""
_OF_STUDIES: Final = ("frontier", "oracle", "paper", "system")
"""Commands of the distribution moefabric-studies."""


class _ErrorReportingGroup(click.Group):
    """Reports errors as lines, without tracebacks, and adds commands of other distributions.

    A command of another distribution is an entry point of the group `moefabric.commands` that
    names a `click.Command`. It is imported when it is used or listed.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_MODULES, *_others(ctx).names})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _MODULES:
            module = import_module(f"moefabric.ui.cli.{_MODULES[cmd_name]}")
            commands = (part for part in vars(module).values() if isinstance(part, click.Command))
            return next(command for command in commands if command.name == cmd_name)
        for entry in _others(ctx).select(name=cmd_name):
            return _loaded(entry)
        if cmd_name in _OF_STUDIES:
            remedy = "it comes with the studies: pip install ./studies"
            ctx.fail(f"no such command {cmd_name!r}: {remedy}")
        return super().get_command(ctx, cmd_name)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except MoefabricError as error:
            for line in str(error).splitlines():
                click.echo(f"moefabric: {line}", err=True)
        except BrokenPipeError:
            sys.stderr.close()
        sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("moefabric: interrupted; nothing is left running", err=True)
            sys.exit(_INTERRUPTED)


def _others(ctx: click.Context) -> EntryPoints:
    """Return other distributions' commands: a search of all distributions, once an invocation."""
    if _COMMANDS not in ctx.meta:
        ctx.meta[_COMMANDS] = entry_points(group=_COMMANDS)
    others: EntryPoints = ctx.meta[_COMMANDS]
    return others


def _loaded(entry: EntryPoint) -> click.Command:
    """Return another distribution's command, or one that reports why it can't be imported."""
    try:
        command: click.Command = entry.load()
    except Exception as error:  # noqa: BLE001 - code of others may raise anything
        reason = f"{entry.value} fails: {type(error).__name__}: {error}"

        def fail() -> None:
            raise MoefabricError(f"{entry.name}: {reason}")

        extra = {"ignore_unknown_options": True, "allow_extra_args": True}
        return click.Command(
            entry.name, callback=fail, context_settings=extra, short_help="Can't be used."
        )
    return command


_SETTINGS: Final = {"help_option_names": ["-h", "--help"], "show_default": True}


@click.group(cls=_ErrorReportingGroup, context_settings=_SETTINGS)
@click.version_option(package_name="moefabric")
def main() -> None:
    """Emulate optically switched networks for training Mixture-of-Experts models.

    Start with `doctor`. Then `run` an experiment such as examples/prototype.yaml, or `predict` its
    results without root. To work with a fabric yourself, start it with `up`, use `inspect`, `exec`,
    `light`, `ocs` and `fault`, and remove it with `down`.
    """
