"""`moefabric cost`: what the paper's networks cost at each NIC rate. No root, no fabric."""

import json

import click

from moefabric.cost import NETWORKS, PRICES, paper_network_usd
from moefabric.units import rate_text


@click.command(short_help="What networks cost, in USD.")
@click.option(
    "--servers",
    type=click.IntRange(1, 1_000_000),
    default=128,
    show_default=True,
    help="How many servers, of 8 NICs each.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cost(servers: int, as_json: bool) -> None:
    """Prices of fat-tree (1:1, and 3:1 oversubscribed), rail-optimised, MixNet's and TopoOpt's networks, in USD."""
    table = {
        rate_text(rate): {name: paper_network_usd(name, servers, rate) for name in NETWORKS}
        for rate in PRICES
    }
    click.echo(json.dumps(table) if as_json else "\n".join(_lines(servers, table)))


def _lines(servers: int, table: dict[str, dict[str, float]]) -> list[str]:
    """The table for a person."""
    heading = "".join(f"{name:>16}" for name in NETWORKS) + f"{'fat-tree/mixnet':>18}"
    lines = [f"networks of {servers:,} servers of 8 NICs, thousand USD", f"{'NIC':<8}{heading}"]
    for rate, usd in table.items():
        cells = "".join(f"{usd[name] / 1e3:>16,.0f}" for name in NETWORKS)
        lines.append(f"{rate:<8}{cells}{usd['fat-tree'] / usd['mixnet']:>18.2f}")
    return lines
