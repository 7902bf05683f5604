"""`moefabric dashboard`: the web page of running fabrics and saved results."""

from pathlib import Path

import click

from moefabric.cli.options import FILE, parse_option


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 0xFFFF:
        raise ValueError(f"{text!r} is not an address such as 127.0.0.1:8899")
    return host.strip("[]") or "127.0.0.1", int(port)


@click.command(short_help="Watch and control running fabrics in a browser.")
@click.argument("fabric", required=False)
@click.option(
    "--listen",
    default="127.0.0.1:8899",
    callback=parse_option(_address),
    metavar="HOST:PORT",
    help="Address of the page. Port 0 takes a free one.",
)
@click.option("--results", type=FILE, default=Path("out"), help="Folder of saved results to show.")
def dashboard(fabric: str | None, listen: tuple[str, int], results: Path) -> None:
    """Serve a web page of running fabrics and saved results until Ctrl-C.

    The page shows all running fabrics, or only FABRIC. The printed link contains the token that the
    page needs.
    """
    from moefabric.dashboard.fabric_source import RunningFabrics
    from moefabric.dashboard.saved_runs import SavedRuns
    from moefabric.dashboard.server import Dashboard, listening_socket, serve

    with listening_socket(*listen) as listener:
        shown = Dashboard(RunningFabrics(fabric), SavedRuns(results))
        serve(shown, listener, lambda link: click.echo(f"dashboard: {link}"))
