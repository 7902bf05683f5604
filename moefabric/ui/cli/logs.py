"""`moefabric logs`: the logs of all processes of a fabric."""

from collections.abc import Mapping

import click

from moefabric.api.running_fabrics import running_fabric
from moefabric.core.errors import FabricError
from moefabric.runtime.run_directory import RunDirectory
from moefabric.runtime.structured_log import LEVELS
from moefabric.ui.cli.options import json_option, name_option


@click.command(short_help="Print the logs of a fabric's processes.")
@click.option("--follow", "-f", is_flag=True, help="Go on with new lines until interrupted.")
@click.option("--process", "-p", help="Only processes of this name, such as `agent-*`.")
@click.option("--level", "-l", type=click.Choice(LEVELS), default="debug", help="The least level.")
@click.option("--run", help="Only lines of the run with this id.")
@click.option("--reconfiguration", help="Only lines of the reconfiguration with this id.")
@click.option("--collective", help="Only lines of the collective with this number.")
@name_option
@json_option
def logs(
    follow: bool, process: str | None, level: str, name: str | None, as_json: bool, **ids: str
) -> None:
    """Print the logs of controllers, OCSes, switches, agents and runs in order of time.

    A process logs from the level of its variable MOEFABRIC_LOG on: debug, info (the default),
    warning or error. Other output of processes counts as warnings.
    """
    from moefabric.api.logs import LogFolder, line_filter

    folder = RunDirectory.of_fabric(running_fabric(name)).log_folder
    if not folder.is_dir():
        raise FabricError(f"{folder}: no such folder: {name} is not up")
    is_shown = line_filter(process, level, _given(ids))
    source = LogFolder(folder)
    for line in filter(is_shown, source.follow() if follow else source.new_lines()):
        click.echo(line.to_json() if as_json else line.text())


def _given(ids: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in ids.items() if value is not None}
