"""`moefabric metrics`: metrics of running fabrics for Prometheus."""

import click

from moefabric.ui.cli.options import listen_option


@click.command(short_help="Export metrics of running fabrics to Prometheus.")
@click.argument("fabric", required=False)
@listen_option("127.0.0.1:9464")
@click.option("--once", is_flag=True, help="Print the metrics and end.")
def metrics(fabric: str | None, listen: tuple[str, int], *, once: bool) -> None:
    """Serve the metrics of FABRIC, or of all running fabrics, at `/metrics` until Ctrl-C.

    At an address that other machines reach, requests need the token of FABRIC (its file `token` in
    the run directory), as `Authorization: Bearer TOKEN`.
    """
    from prometheus_client.exposition import generate_latest
    from prometheus_client.registry import CollectorRegistry

    from moefabric.runtime.run_directory import RunDirectory
    from moefabric.ui.dashboard.server import address, listening_socket
    from moefabric.ui.metrics.collector import FabricCollector
    from moefabric.ui.metrics.exporter import is_loopback, serve

    registry = CollectorRegistry()
    registry.register(FabricCollector(fabric))
    if once:
        click.echo(generate_latest(registry), nl=False)
        return
    token = None
    if not is_loopback(listen[0]):
        if fabric is None:
            raise click.UsageError("--listen: name a FABRIC, whose token requests then need")
        token = RunDirectory.of_fabric(fabric).read_token()
    with listening_socket(*listen) as listener:
        click.echo(f"metrics: {address(listener)}/metrics", err=True)
        serve(registry, listener, token)
