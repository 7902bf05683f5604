"""`moefabric completion`: the script by which a shell completes commands, options and values."""

from typing import Literal

import click
from click.shell_completion import get_completion_class

from moefabric.ui.cli.command import cli_command

_PROGRAM = "moefabric"
_VARIABLE = "_MOEFABRIC_COMPLETE"
_NO_SPACE = "    [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace\n"


@cli_command(
    'eval "$(moefabric completion bash)"',
    "moefabric completion fish > ~/.config/fish/completions/moefabric.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print the script that completes commands, options and values in SHELL.

    Values are names of fabrics, servers, NICs, circuits, OCSes, policies, models and keys. bash and
    zsh: put `eval "$(moefabric completion SHELL)"` into ~/.bashrc or ~/.zshrc.
    """
    script = get_completion_class(shell)
    source = script(context.find_root().command, {}, _PROGRAM, _VARIABLE).source()
    if shell == "bash":  # the value of `--set KEY=` follows without a space
        source = source.replace("    return 0\n", f"{_NO_SPACE}    return 0\n")
    click.echo(source)
