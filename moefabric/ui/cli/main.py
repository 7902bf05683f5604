"""The command `moefabric`.

Exit status: 0 success, 1 an error that is reported in one line, 2 wrong usage, 3 an invalid
verdict, 4 a regression (`compare`).
"""

import errno
import os
import sys
from collections.abc import Mapping
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
SECTIONS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Experiments": {
        "run": ("run", "Run an experiment on emulated fabrics."),
        "predict": ("run", "Predict the results of an experiment."),
        "sweep": ("run", "Run an experiment under many changes."),
        "train": ("run", "Train a model on emulated fabrics."),
        "report": ("report", "Show the results of runs from their JSON."),
        "compare": ("report", "Say what changed between runs."),
    },
    "Fabrics": {
        "up": ("fabric", "Start a fabric and leave it running."),
        "list": ("fabric", "List the fabrics that run."),
        "inspect": ("fabric", "Show a running fabric."),
        "check": ("fabric", "Check that a running fabric carries packets and moves light."),
        "light": ("fabric", "Set the circuits of a region."),
        "ocs": ("fabric", "Show the ports of an OCS."),
        "fault": ("fault", "Inject and clear failures."),
        "down": ("fabric", "Remove a fabric."),
        "dashboard": ("observe", "Watch and control running fabrics in a browser."),
        "top": ("observe", "Watch a running fabric in the terminal."),
        "logs": ("observe", "Print the logs of a fabric's processes."),
        "events": ("observe", "Print the events of the OCSes, and failures."),
        "metrics": ("observe", "Export metrics of running fabrics to Prometheus."),
        "capture": ("capture", "Capture frames of a running fabric as pcapng."),
    },
    "Traffic": {
        "exec": ("fabric", "Run a command on an emulated server."),
        "mininet": ("launch", "Run Mininet's command line on a running fabric."),
        "mpirun": ("launch", "Run an MPI program on the servers."),
        "torchrun": ("launch", "Run a PyTorch program on the servers."),
        "hostfile": ("launch", "Print OpenMPI's hostfile."),
        "perf": ("collectives", "Measure collectives as nccl-tests does."),
        "replay": ("collectives", "Replay a trace with real bytes."),
    },
    "Inputs": {
        "explain": ("explain", "Explain a key of a file."),
        "schema": ("schema", "Print the JSON Schema of a kind of file."),
        "model": ("model", "Show sizes, FLOPs and bytes of models."),
        "trace": ("trace", "Read, convert, export and generate traces."),
        "policy": ("plan", "List, write and check policies."),
        "plan": ("plan", "Plan circuits for a demand."),
        "cost": ("plan", "Compare the prices of networks."),
    },
    "This machine": {
        "doctor": ("machine", "Check what this machine can do."),
        "calibrate": ("machine", "Measure this machine and the emulated hardware."),
        "completion": ("completion", "Print the script that completes words in a shell."),
    },
}
"""Commands by section of the help, with their module, which is imported when one of them is used,
and with what lists say."""
_MODULES: Final = {
    name: module for names in SECTIONS.values() for name, (module, _) in names.items()
}
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
_OF_STUDIES: Final = ("frontier", "oracle", "paper", "system")
"""Commands of the distribution moefabric-studies."""
_STUDIES: Final = "Studies, in moefabric's repository"
_OTHERS: Final = "Of other packages"


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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not (ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name)):
            from moefabric.config.input_file import close_matches

            alike = " or ".join(map(repr, close_matches(name, self.list_commands(ctx))))
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {alike}?" if alike else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, names in self._sections(ctx).items():
            with formatter.section(title):
                formatter.write_dl(list(names.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        listed = dict(pair for part in self._sections(ctx).values() for pair in part.items())
        items = [
            CompletionItem(name, help=listed[name])
            for name in sorted(listed)
            if name.startswith(incomplete)
        ]
        return items + click.Command.shell_complete(self, ctx, incomplete)

    def _sections(self, ctx: click.Context) -> dict[str, dict[str, str]]:
        """Return the commands of each section of the help, and what lists say of each."""
        sections = {
            title: {name: text for name, (_, text) in names.items()}
            for title, names in SECTIONS.items()
        }
        for name in sorted(_others(ctx).names - _MODULES.keys()):
            if command := self.get_command(ctx, name):
                title = _STUDIES if name in _OF_STUDIES else _OTHERS
                sections.setdefault(title, {})[name] = command.get_short_help_str()
        return sections

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except MoefabricError as error:
            for line in str(error).splitlines():
                click.echo(f"moefabric: {line}", err=True)
        except BrokenPipeError:
            sys.stderr.close()
        except OSError as error:
            if error.errno not in _FULL or error.filename is not None:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the last flush
            click.echo(f"moefabric: standard output: {error.strerror}", err=True)
        sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo(
                "moefabric: interrupted; nothing that this command started runs on", err=True
            )
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


def _show_version(context: click.Context, _option: click.Parameter, is_asked: bool) -> None:
    from importlib.metadata import version

    if is_asked and not context.resilient_parsing:
        click.echo(f"{context.find_root().info_name}, version {version('moefabric')}")
        context.exit()


_SETTINGS: Final = {"help_option_names": ["-h", "--help"], "show_default": True}


@click.group(cls=_ErrorReportingGroup, context_settings=_SETTINGS)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.pass_context
def main(context: click.Context) -> None:
    """Emulate optically switched networks for training Mixture-of-Experts models.

    Start with `doctor`. Then `run` an experiment such as examples/prototype.yaml, or `predict` its
    results without root. To work with a fabric yourself, start it with `up`, use `inspect`, `exec`,
    `light`, `ocs` and `fault`, and remove it with `down`.

    Commands on a running fabric take its name as their first word (`moefabric inspect lab`), by
    `--name`, or from the variable MOEFABRIC_FABRIC; one that runs alone needs none. `--json` prints
    JSON, `--json=FILE` writes it.
    """
    from moefabric.config.plugins import modules_in_files
    from moefabric.runtime.structured_log import LEVEL_VARIABLE, LEVELS

    level = os.environ.get(LEVEL_VARIABLE)
    if level and level.lower() not in LEVELS:
        raise click.UsageError(f"{LEVEL_VARIABLE}: {level!r} is not one of {', '.join(LEVELS)}")
    context.with_resource(modules_in_files(installed_only=True))
