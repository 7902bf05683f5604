"""`moefabric dashboard`: the web page of running fabrics and saved results."""

from functools import partial
from pathlib import Path

import click

from moefabric.api.commands import FILE
from moefabric.ui.cli.options import listen_option


@click.command(short_help="Watch and control running fabrics in a browser.")
@click.argument("fabric", required=False)
@listen_option("127.0.0.1:8899")
@click.option("--results", type=FILE, default=Path("out"), help="Folder of saved results to show.")
def dashboard(fabric: str | None, listen: tuple[str, int], results: Path) -> None:
    """Serve a web page of running fabrics and saved results until Ctrl-C.

    The page shows all running fabrics, or only FABRIC. The printed link contains the token that the
    page needs.
    """
    from prometheus_client.exposition import generate_latest
    from prometheus_client.registry import CollectorRegistry

    from moefabric.ui.dashboard.fabric_source import RunningFabrics
    from moefabric.ui.dashboard.saved_runs import SavedRuns
    from moefabric.ui.dashboard.server import Dashboard, listening_socket, serve
    from moefabric.ui.metrics.collector import FabricCollector

    registry = CollectorRegistry()
    registry.register(FabricCollector(fabric))
    with listening_socket(*listen) as listener:
        metrics = partial(generate_latest, registry)
        shown = Dashboard(RunningFabrics(fabric), SavedRuns(results), metrics)
        serve(shown, listener, lambda link: click.echo(f"dashboard: {link}"))
