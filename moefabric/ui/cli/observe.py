"""`moefabric logs`, `events`, `metrics` and `dashboard`: running fabrics, seen from outside."""

import json
from functools import partial
from pathlib import Path

import click

from moefabric.api.commands import FILE
from moefabric.api.running_fabrics import running_fabric
from moefabric.core.errors import FabricError
from moefabric.runtime.run_directory import RunDirectory
from moefabric.runtime.structured_log import LEVELS
from moefabric.ui.cli.options import json_option, listen_option, name_option, running_lab


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Go on with new lines until interrupted.")
@click.option("--process", "-p", help="Only processes of this name, such as `agents-*`.")
@click.option("--level", "-l", type=click.Choice(LEVELS), default="debug", help="The least level.")
@click.option("--run", help="Only lines of the run with this id.")
@click.option("--reconfiguration", help="Only lines of the reconfiguration with this id.")
@click.option("--collective", help="Only lines of the collective with this number.")
@name_option
@json_option
def logs(
    follow: bool,
    process: str | None,
    level: str,
    name: str | None,
    as_json: bool,
    **ids: str | None,
) -> None:
    """Print the logs of controllers, OCSes, switches, agents and runs in order of time.

    A process logs from the level of its variable MOEFABRIC_LOG on: debug, info (the default),
    warning or error. Other output of processes counts as warnings.
    """
    from moefabric.api.logs import LogFolder, line_filter

    folder = RunDirectory.of_fabric(running_fabric(name)).log_folder
    if not folder.is_dir():
        raise FabricError(f"{folder}: no such folder: {name} is not up")
    wanted = {name: value for name, value in ids.items() if value is not None}
    is_shown = line_filter(process, level, wanted)
    source = LogFolder(folder)
    for line in filter(is_shown, source.follow() if follow else source.new_lines()):
        click.echo(line.to_json() if as_json else line.text())


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Go on with new events until interrupted.")
@name_option
def events(follow: bool, name: str | None) -> None:
    """Print the events of the OCSes as JSON lines: changes, light, faults, alarms."""
    for event in running_lab(name).events(follow=follow):
        click.echo(json.dumps(event))


@click.command()
@click.argument("fabric", required=False)
@listen_option("127.0.0.1:9464")
@click.option("--once", is_flag=True, help="Print the metrics and end.")
def metrics(fabric: str | None, listen: tuple[str, int], *, once: bool) -> None:
    """Serve the metrics of FABRIC, or of all running fabrics, at `/metrics` until Ctrl-C.

    At an address that other machines reach, requests need the token of FABRIC (its file `token` in
    the run directory), as `Authorization: Bearer TOKEN`.
    """
    from prometheus_client.exposition import generate_latest

    from moefabric.ui.dashboard.server import address, listening_socket
    from moefabric.ui.metrics.collector import FabricCollector, is_loopback, serve

    collector = FabricCollector(fabric)
    if once:
        click.echo(generate_latest(collector), nl=False)
        return
    token = None
    if not is_loopback(listen[0]):
        if fabric is None:
            raise click.UsageError("--listen: name a FABRIC, whose token requests then need")
        token = RunDirectory.of_fabric(fabric).read_token()
    with listening_socket(*listen) as listener:
        click.echo(f"metrics: {address(listener)}/metrics", err=True)
        serve(collector, listener, token)


@click.command()
@click.argument("fabric", required=False)
@listen_option("127.0.0.1:8899")
@click.option("--results", type=FILE, default=Path("out"), help="Folder of saved results to show.")
def dashboard(fabric: str | None, listen: tuple[str, int], results: Path) -> None:
    """Serve a web page of running fabrics and saved results until Ctrl-C.

    The page shows all running fabrics, or only FABRIC. The printed link contains the token that the
    page needs.
    """
    from prometheus_client.exposition import generate_latest

    from moefabric.ui.dashboard.fabric_source import RunningFabrics
    from moefabric.ui.dashboard.saved_runs import SavedRuns
    from moefabric.ui.dashboard.server import Dashboard, listening_socket, serve
    from moefabric.ui.metrics.collector import FabricCollector

    with listening_socket(*listen) as listener:
        metrics = partial(generate_latest, FabricCollector(fabric))
        shown = Dashboard(RunningFabrics(fabric), SavedRuns(results), metrics)
        serve(shown, listener, lambda link: click.echo(f"dashboard: {link}"))
