"""`moefabric logs`, `events`, `metrics`, `top` and `dashboard`: running fabrics, from outside."""

import json
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import click

from moefabric.api.commands import FILE, STANDARD_OUTPUT, check_writable
from moefabric.api.running_fabrics import check_up, not_up, running_fabric, running_fabrics
from moefabric.core.errors import FabricError, MoefabricError
from moefabric.runtime.atomic_file import output_error
from moefabric.runtime.run_directory import RunDirectory
from moefabric.runtime.structured_log import LEVELS
from moefabric.ui.cli.command import cli_command, is_typed, json_option, name_option
from moefabric.ui.cli.options import listen_option, running_lab


@cli_command(
    "moefabric logs --follow --level warning", "moefabric logs lab --process 'agents-*' --json"
)
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
    as_json: Path | None,
    **ids: str | None,
) -> None:
    """Print the logs of controllers, OCSes, switches, agents and runs in order of time.

    A process logs from the level of its variable MOEFABRIC_LOG on: debug, info (the default),
    warning or error. Other output of processes counts as warnings.
    """
    from moefabric.api.logs import LogFolder, line_filter

    fabric = running_fabric(name)
    folder = RunDirectory.of_fabric(fabric).log_folder
    if not folder.is_dir():
        folders = [RunDirectory.of_fabric(name).log_folder for name in running_fabrics()]
        is_process = any(fabric in LogFolder(one).processes() for one in folders)
        hint = f"; --process {fabric} shows this process" if is_process else ""
        raise FabricError(not_up(fabric) + hint)
    fields = {name: value for name, value in ids.items() if value is not None}
    source = LogFolder(folder)
    if process is not None:
        source.check_process(process)
    if not follow:
        source.check_ids(fields)
    is_shown = line_filter(process, level, fields)
    lines = filter(is_shown, source.follow() if follow else source.new_lines())
    print_lines((line.text() if as_json is None else line.to_json() for line in lines), as_json)


def print_lines(lines: Iterable[str], file: Path | None) -> None:
    """Print lines as they come, or write them to a file."""
    if file is None or file == STANDARD_OUTPUT:
        for line in lines:
            click.echo(line)
        return
    check_writable(file)
    try:
        with file.open("w") as written:
            for line in lines:
                print(line, file=written, flush=True)
    except OSError as error:
        raise output_error(file, error) from error


@cli_command("moefabric events --follow", "moefabric events lab --json")
@click.option("--follow", "-f", is_flag=True, help="Go on with new events until interrupted.")
@json_option
@name_option
def events(follow: bool, as_json: Path | None, name: str | None) -> None:
    """Print the events of the OCSes (changes, light, faults, alarms) and the fabric's failures.

    A line has the time of day (UTC) and words; with --json it is JSON.
    """
    from moefabric.api.fabric_events import fabric_events
    from moefabric.api.ocs_events import event_line

    lab = running_lab(name)
    lines = (
        event_line(event, lab.fabric) if as_json is None else json.dumps(event)
        for event in fabric_events(lab, follow=follow)
    )
    print_lines(lines, as_json)


@cli_command("moefabric metrics", "moefabric metrics lab --once")
@listen_option("127.0.0.1:9464")
@click.option("--once", is_flag=True, help="Print the metrics and end.")
@name_option
def metrics(name: str | None, listen: tuple[str, int], *, once: bool) -> None:
    """Serve the metrics of the fabric NAME, or of all that run, at `/metrics` until Ctrl-C.

    At an address that other machines reach, requests need the token of the fabric (its file `token`
    in the run directory), as `Authorization: Bearer TOKEN`.
    """
    from prometheus_client.exposition import generate_latest

    from moefabric.ui.dashboard.server import address, listening_socket
    from moefabric.ui.metrics.collector import FabricCollector, is_loopback, serve

    if name is not None:
        check_up(name)
    collector = FabricCollector(name)
    if once:
        click.echo(generate_latest(collector), nl=False)
        return
    token = None
    if not is_loopback(listen[0]):
        if name is None:
            raise click.UsageError("--listen: give the NAME of a fabric, whose token requests need")
        token = RunDirectory.of_fabric(name).read_token()
    with listening_socket(*listen) as listener:
        click.echo(f"metrics: {address(listener)}/metrics", err=True)
        serve(collector, listener, token)


@cli_command("moefabric top", "moefabric top lab --once")
@click.option("--once", is_flag=True, help="Print the picture of a second and end.")
@name_option
def top(name: str | None, *, once: bool) -> None:
    """Watch the rates, circuits, failures and run of a fabric in the terminal until Ctrl-C.

    Rates are those of the modelled cluster: the payload that NICs send and receive, by light and by
    packet switches. It ends with the fabric.
    """
    from rich.live import Live

    from moefabric.ui.dashboard.fabric_source import FabricSource
    from moefabric.ui.dashboard.terminal import print_once, watch

    lab = running_lab(name)
    source = FabricSource(lab)
    try:
        if once:
            print_once(source)
            return
        with Live(screen=sys.stdout.isatty(), auto_refresh=False) as live:
            watch(source, live)
    except KeyboardInterrupt:
        pass
    except MoefabricError:
        if lab.name in running_fabrics():
            raise
        click.echo(f"{lab.name} has ended", err=True)
    finally:
        source.close()


@cli_command("moefabric dashboard", "moefabric dashboard lab --listen 127.0.0.1:0")
@listen_option("127.0.0.1:8899")
@click.option("--results", type=FILE, default=Path("out"), help="Folder of saved results to show.")
@name_option
@click.pass_context
def dashboard(
    context: click.Context, /, name: str | None, listen: tuple[str, int], results: Path
) -> None:
    """Serve a web page of running fabrics and saved results until Ctrl-C.

    The page shows all running fabrics, or only the fabric NAME. The printed link contains the token
    that the page needs.
    """
    from prometheus_client.exposition import generate_latest

    from moefabric.ui.dashboard.fabric_source import RunningFabrics
    from moefabric.ui.dashboard.saved_runs import SavedRuns
    from moefabric.ui.dashboard.server import Dashboard, listening_socket, serve
    from moefabric.ui.metrics.collector import FabricCollector, is_loopback

    if is_typed(context, "results") and not results.is_dir():
        raise click.UsageError(f"--results: there is no folder {results}: name that of results")
    if name is not None:
        check_up(name)
    with listening_socket(*listen) as listener:
        metrics = partial(generate_latest, FabricCollector(name))
        shown = Dashboard(RunningFabrics(name), SavedRuns(results), metrics)
        if not is_loopback(listen[0]):
            remedy = "`ssh -L` to a dashboard at 127.0.0.1 hides it"
            click.echo(f"plain HTTP: who sees packets can read the token; {remedy}", err=True)
        serve(shown, listener, lambda link: click.echo(f"dashboard: {link}"))
