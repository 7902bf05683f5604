"""`moefabric cost`: prices of the paper's networks at each NIC rate."""

import click

from moefabric.api.commands import print_result
from moefabric.core.network_cost import NETWORKS, PRICES, paper_network_usd
from moefabric.core.units import rate_text
from moefabric.ui.cli.options import json_option


@click.command(short_help="Compare the prices of networks.")
@click.option(
    "--servers",
    type=click.IntRange(1, 1_000_000),
    default=128,
    help="Number of servers with 8 NICs each.",
)
@json_option
def cost(servers: int, as_json: bool) -> None:
    """Print the prices of networks in USD.

    The networks are fat-tree, 3:1 oversubscribed, rail-optimised, MixNet and TopoOpt.
    """
    table = {
        rate_text(rate): {name: paper_network_usd(name, servers, rate) for name in NETWORKS}
        for rate in PRICES
    }
    print_result(table, _lines(servers, table), as_json=as_json)


def _lines(servers: int, table: dict[str, dict[str, float]]) -> list[str]:
    heading = "".join(f"{name:>16}" for name in NETWORKS) + f"{'fat-tree/mixnet':>18}"
    lines = [f"networks of {servers:,} servers of 8 NICs, thousand USD", f"{'NIC':<8}{heading}"]
    for rate, usd in table.items():
        cells = "".join(f"{usd[name] / 1e3:>16,.0f}" for name in NETWORKS)
        lines.append(f"{rate:<8}{cells}{usd['fat-tree'] / usd['mixnet']:>18.2f}")
    return lines
