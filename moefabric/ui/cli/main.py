"""The command `moefabric`.

Exit status: 0 success, 1 an error that is reported in one line, 2 wrong usage, 3 an invalid
verdict, 4 a regression (`compare`).
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import click

from moefabric.core.errors import MoefabricError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

    from click.shell_completion import CompletionItem

_INTERRUPTED: Final = 130
_COMMANDS: Final = "moefabric.commands"
"""Group of entry points by which other distributions add commands."""
_SUMMARIES: Final = {
    "capture": {"capture": "Capture frames of a running fabric as pcapng."},
    "collectives": {
        "perf": "Measure collectives as nccl-tests does.",
        "replay": "Replay a trace with real bytes.",
    },
    "fabric": {
        "up": "Start a fabric and leave it running.",
        "down": "Remove a fabric.",
        "inspect": "Show a running fabric.",
        "check": "Check that a running fabric carries packets and moves light.",
        "exec": "Run a command on an emulated server.",
        "light": "Set the circuits of a region.",
        "ocs": "Show the ports of an OCS.",
    },
    "fault": {"fault": "Inject and clear failures."},
    "launch": {
        "hostfile": "Print OpenMPI's hostfile.",
        "mpirun": "Run an MPI program on the servers.",
        "torchrun": "Run a PyTorch program on the servers.",
    },
    "machine": {
        "calibrate": "Measure this machine and the emulated hardware.",
        "doctor": "Check what this machine can do.",
    },
    "mininet": {"mininet": "Run Mininet's command line on a running fabric."},
    "model": {"model": "Show sizes, FLOPs and bytes of models."},
    "observe": {
        "dashboard": "Watch and control running fabrics in a browser.",
        "events": "Print the events of the OCSes.",
        "logs": "Print the logs of a fabric's processes.",
        "metrics": "Export metrics of running fabrics to Prometheus.",
    },
    "plan": {
        "cost": "Compare the prices of networks.",
        "plan": "Plan circuits for a demand.",
        "policy": "List, write and check policies.",
    },
    "report": {
        "compare": "Say what changed between runs.",
        "report": "Show the results of runs from their JSON.",
    },
    "run": {
        "predict": "Predict the results of an experiment.",
        "run": "Run an experiment on emulated fabrics.",
        "sweep": "Run an experiment under many changes.",
        "train": "Train a model on emulated fabrics.",
    },
    "schema": {"schema": "Print the JSON Schema of a kind of file."},
    "trace": {"trace": "Read, convert, draw and generate traces."},
}
"""Commands by their module, which is imported when one of them is used, with what lists say."""
_MODULES: Final = {name: module for module, names in _SUMMARIES.items() for name in names}
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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self._summaries(ctx))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        listed = self._summaries(ctx, incomplete)
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [CompletionItem(name, help=text) for name, text in listed] + options

    def _summaries(self, ctx: click.Context, start: str = "") -> list[tuple[str, str]]:
        """Return the commands whose names begin with `start`, and what lists say of each."""
        others = (name for name in _others(ctx).names if name not in _MODULES)
        loaded = ((name, self.get_command(ctx, name)) for name in others)
        summaries = {name: command.get_short_help_str() for name, command in loaded if command}
        for names in _SUMMARIES.values():
            summaries |= names
        return [(name, text) for name, text in sorted(summaries.items()) if name.startswith(start)]

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


def _others(ctx: click.Context) -> "EntryPoints":
    """Return other distributions' commands: a search of all distributions, once an invocation."""
    from importlib.metadata import entry_points

    if _COMMANDS not in ctx.meta:
        ctx.meta[_COMMANDS] = entry_points(group=_COMMANDS)
    others: EntryPoints = ctx.meta[_COMMANDS]
    return others


def _loaded(entry: "EntryPoint") -> click.Command:
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
@click.pass_context
def main(context: click.Context) -> None:
    """Emulate optically switched networks for training Mixture-of-Experts models.

    Start with `doctor`. Then `run` an experiment such as examples/prototype.yaml, or `predict` its
    results without root. To work with a fabric yourself, start it with `up`, use `inspect`, `exec`,
    `light`, `ocs` and `fault`, and remove it with `down`.
    """
    from moefabric.config.plugins import installed_modules_only

    context.with_resource(installed_modules_only())
