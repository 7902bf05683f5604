"""The grammar that all commands share: fabrics by name, `--json`, and examples in the help.

A command on a running fabric takes the fabric's name by `--name NAME`, by the environment variable
`MOEFABRIC_FABRIC`, or as its first word. `--json` prints JSON, and `--json=FILE` writes it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from moefabric.api.commands import FILE, STANDARD_OUTPUT
from moefabric.core.errors import FabricError
from moefabric.runtime.run_directory import FABRIC_VARIABLE

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_NAME: Final = "--name"
_JSON: Final = "--json"


class CliCommand(click.Command):
    """A command with the grammar of this module.

    Args:
        examples: Whole commands, which the help shows at its end.
        *args: As of click's class.
        **keys: As of click's class.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **keys: Any) -> None:
        super().__init__(*args, **keys)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse words in which the fabric and the file of `--json` have their options."""
        return super().parse_args(ctx, _with_fabric(self, ctx, _with_json_file(self, args)))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Return completions, with the names of fabrics while none is given."""
        items = super().shell_complete(ctx, incomplete)
        if _takes_fabric(self) and not ctx.params.get("name"):
            items += completed("fabrics")(ctx, self.params[0], incomplete)
        return items

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the pieces of a usage line, with the fabric's name as first word."""
        pieces = super().collect_usage_pieces(ctx)
        if _takes_fabric(self):
            pieces.insert(int(pieces[:1] == [self.options_metavar]), "[NAME]")
        return pieces

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples at the end of the help."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{example}\n")


class CliGroup(CliCommand, click.Group):
    """A group of commands with the grammar of this module."""

    command_class = CliCommand

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the first word, behind a fabric's name; an error lists all."""
        if not (ctx.resilient_parsing or args[0].startswith("-") or args[0] in self.commands):
            ctx.fail(f"{args[0]} is none of {', '.join(self.commands)}")
        return super().resolve_command(ctx, args)


def cli_command(*examples: str, **keys: Any) -> Callable[[Callable[..., Any]], CliCommand]:
    """Return the decorator of a command whose help ends with the examples; keys are click's."""
    return click.command(cls=CliCommand, examples=examples, **keys)


def cli_group(*examples: str, **keys: Any) -> Callable[[Callable[..., Any]], CliGroup]:
    """Return the decorator of a group whose help ends with the examples; keys are click's."""
    return click.group(cls=CliGroup, examples=examples, **keys)


# --- names of fabrics ----------------------------------------------------------------------------


def _fabric_name(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Return the name that is given to the command or to its group, before that of the variable."""
    of_group = context.parent.params.get("name") if context.parent is not None else None
    return value if is_typed(context, option.name or "") else of_group or value


def is_typed(context: click.Context, option: str) -> bool:
    """Return whether an option was given on the command line."""
    return context.get_parameter_source(option) is click.core.ParameterSource.COMMANDLINE


def completed(kind: str) -> "Callable[[click.Context, click.Parameter, str], list[CompletionItem]]":
    """Return the completer of a kind of values of `moefabric.ui.cli.values`.

    It is imported while a shell completes.
    """

    def complete(
        context: click.Context, _parameter: click.Parameter, incomplete: str
    ) -> "list[CompletionItem]":
        from moefabric.ui.cli.values import completions

        return completions(kind, context, incomplete)

    return complete


name_option = click.option(
    _NAME,
    envvar=FABRIC_VARIABLE,
    is_eager=True,  # parts are those of this fabric
    callback=_fabric_name,
    shell_complete=completed("fabrics"),
    help=f"The fabric, if several are up; also the first word, or {FABRIC_VARIABLE}.",
)


def part_argument(name: str, kind: str = "", **keys: Any) -> Callable[[Any], Any]:
    """Return an argument that is a part of a running fabric, such as a server.

    Args:
        name: Of the argument.
        kind: That of the values which a shell completes; empty for none.
        **keys: As of `click.argument`.
    """
    completer = completed(kind) if kind else None
    return click.argument(name, callback=_part, shell_complete=completer, **keys)


def _part(context: click.Context, argument: click.Parameter, value: Any) -> Any:
    """Return the part or parts, the first of which may be a mistyped name of a fabric.

    Raises:
        FabricError: If no fabric is named, and it can't be a part of any that runs.
    """
    words = [value] if isinstance(value, str) else value
    if words and context.params.get("name") is None and is_typed(context, argument.name or ""):
        from moefabric.ui.cli.values import fault_of_part

        if message := fault_of_part(words[0]):
            raise FabricError(message)
    return value


def _takes_fabric(command: click.Command) -> bool:
    return any(_NAME in parameter.opts for parameter in command.params)


def _with_fabric(command: click.Command, ctx: click.Context, args: list[str]) -> list[str]:
    """Return the arguments with the first word as `--name`, if it is a fabric's name.

    It always is one if the command takes no other words. Else a fabric of that name has to run,
    and `--name` must not be given.

    Raises:
        click.UsageError: If the command takes no other words, and `--name` is given, too.
        click.UsageError: Or if a group has no such command, and no such fabric runs.
        FabricError: If no fabric has the name before a group's command, or before the words of a
            command that takes fewer; a word that names a file is left to it.
    """
    place, is_named = _first_word(command, ctx, args) if _takes_fabric(command) else (None, False)
    if place is None:
        return args
    from moefabric.api import running_fabrics

    word, rest = args[place], [*args[:place], *args[place + 1 :]]
    if isinstance(command, click.Group):
        if word in command.commands:
            return args
        is_name = word in running_fabrics.running_fabrics()
        if not (is_name or is_named or ctx.resilient_parsing):
            if not command.commands.keys().isdisjoint(args[place + 1 : place + 2]):
                raise FabricError(running_fabrics.not_up(word))
            raise click.UsageError(running_fabrics.neither(word, [*command.commands]), ctx)
        takes_words = True
    else:
        arguments = [one for one in command.params if isinstance(one, click.Argument)]
        takes_words = bool(arguments)
        is_name = not takes_words or word in running_fabrics.running_fabrics()
        if not (is_name or is_named or ctx.resilient_parsing or arguments[0].callback is _part):
            surplus = command.make_parser(ctx).parse_args([*args])[1]
            if surplus and not Path(word).exists():
                raise FabricError(running_fabrics.not_up(word))
    if is_named:
        if not takes_words:
            raise click.UsageError(f"the fabric is named twice: {word}, and by {_NAME}", ctx)
        return args
    return [_NAME, word, *rest] if is_name else args


def _first_word(
    command: click.Command, ctx: click.Context, args: list[str]
) -> tuple[int | None, bool]:
    """Return the position of the first word that is no option and no option's value, if any.

    The second value says whether `--name` is given.
    """
    valued = {
        flag
        for option in command.get_params(ctx)
        if isinstance(option, click.Option) and not option.is_flag and not option.count
        for flag in option.opts
    }
    options = args[: args.index("--")] if "--" in args else args
    place = 0
    while place < len(options) and options[place].startswith("-") and options[place] != "-":
        place += 2 if options[place] in valued else 1
    if place >= len(options):
        return None, False
    searched = options if ctx.allow_interspersed_args else options[:place]
    is_named = any(word == _NAME or word.startswith(f"{_NAME}=") for word in searched)
    return place, is_named


# --- JSON ----------------------------------------------------------------------------------------


class JsonOption(click.Option):
    """`--json`, whose value, a file, may be left out: standard output is it then.

    Args:
        *args: As of `click.Option`.
        ending: End of a word behind `--json` that is its file; None if only `--json=FILE` gives a
            file, because the command reads JSON files.
        **keys: As of `click.Option`.
    """

    def __init__(self, *args: Any, ending: str | None, **keys: Any) -> None:
        super().__init__(*args, **keys)
        self.ending = ending

    def takes(self, word: str) -> bool:
        """Return whether a word behind `--json` is its file."""
        if self.ending is None or not word.endswith(self.ending):
            return False
        return not word.startswith("-") if word and word != str(STANDARD_OUTPUT) else bool(word)


def _with_json_file(command: click.Command, args: list[str]) -> list[str]:
    """Return the arguments with a file behind each `--json`."""
    option = next((one for one in command.params if isinstance(one, JsonOption)), None)
    end = args.index("--") if "--" in args else len(args)
    if option is None or _JSON not in args[:end]:
        return args
    place = args.index(_JSON)
    word = args[place + 1] if place + 1 < end else ""
    taken = option.takes(word)
    value = f"{_JSON}={word if taken else STANDARD_OUTPUT}"
    return [*args[:place], value, *args[place + 1 + taken :]]


def _json_option(name: str, ending: str | None, text: str) -> Callable[[Any], Any]:
    return click.option(
        _JSON, name, cls=JsonOption, ending=ending, type=FILE, metavar="[FILE]", help=text
    )


_TEXT: Final = "Print JSON instead of text; with FILE, write it there."
json_option = _json_option("as_json", ".json", _TEXT)
"""`--json`, `--json=FILE`, or `--json FILE.json`: the value is a path, or None."""
json_beside_files_option = _json_option(
    "as_json", None, "Print JSON instead of text; --json=FILE writes it to FILE."
)
"""The same for commands that read JSON files: a word behind `--json` is one of these."""


def json_file_option(what: str) -> Callable[[Any], Any]:
    """Return `--json` of long work, which usually writes a file: any word behind it is the file."""
    return _json_option("json_file", "", f"Print {what} as JSON; with FILE, write it there.")
