"""`moefabric plan` and `cost`: circuits and split for a demand, and prices, without a fabric."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moefabric import Eps, Fabric, Ocs, Region, SpecError, rate_text
from moefabric.api.commands import FILE, print_result
from moefabric.config.demand_file import read_demand
from moefabric.core.network_cost import NETWORKS, PRICES, paper_network_usd
from moefabric.ui.cli.options import json_option, parse_option, positive_rate

if TYPE_CHECKING:
    from moefabric.planner.plan import Plan


@click.command(short_help="Plan circuits for a demand.")
@click.option(
    "--demand",
    type=FILE,
    required=True,
    help="JSON file with an array of rows: bytes from the row's server to each server.",
)
@click.option(
    "--degree", type=click.IntRange(0, 64), required=True, help="Optical NICs of each server."
)
@click.option(
    "--electrical", type=click.IntRange(0, 64), default=1, help="Electrical NICs of each server."
)
@click.option(
    "--nic-rate",
    default="100Gb/s",
    callback=parse_option(positive_rate),
    metavar="RATE",
    help="Rate of a NIC.",
)
@click.option(
    "--policy",
    default="mixnet",
    help="Name of a policy (`moefabric policy list`), or package.module:Name.",
)
@json_option
def plan(
    demand: Path, degree: int, electrical: int, nic_rate: float, policy: str, as_json: bool
) -> None:
    """Print circuits, split and predicted completion time for a demand. Needs no root."""
    from moefabric import CircuitSet, DemandMatrix, policy_named
    from moefabric.planner import plan as planner

    if degree + electrical == 0:
        message = "servers without NICs reach nobody: give each server a NIC"
        raise SpecError([("--degree, --electrical", message)])
    chosen = policy_named(policy)
    rows = read_demand(demand)
    servers = tuple(f"s{i}" for i in range(len(rows)))
    ocs = Ocs("ocs0", max(2, len(servers) * degree)) if degree else None
    eps = Eps(len(servers)) if electrical else None
    regions, nics = (Region("r0", 0, servers, ocs),), (degree, electrical, nic_rate)
    panel, forwards = policy == "topoopt" and eps is None, chosen.forwards
    fabric = Fabric("plan", regions, 8, *nics, eps, patch_panel=panel, forwarding=forwards)
    matrix = DemandMatrix(fabric.servers, rows)
    result = planner.plan(fabric, fabric.regions[0], matrix, chosen, CircuitSet())
    other_path = "over other servers" if fabric.patch_panel else "by the EPS"
    print_result(result.to_json(), _lines(result, other_path), as_json=as_json)


def _lines(plan: "Plan", other_path: str) -> Iterator[str]:
    """Yield the plan as text. `other_path` says how bytes travel without a circuit."""
    predicted_ms, bound_ms = plan.predicted_s * 1e3, plan.bound_s * 1e3
    times = f"{predicted_ms:.3f} ms predicted, {bound_ms:.3f} ms at least"
    yield f"{plan.policy.name}: {len(plan.circuits)} circuits, {times}"
    yield f"  lit: {plan.circuits}"
    unused = [
        f"{ports} ports of {server}"
        for server, ports in zip(plan.servers, plan.leftover_ports, strict=True)
        if ports
    ]
    if unused:
        yield f"  unused: {', '.join(unused)}"
    for share in plan.split:
        parts = f"{share.light_bytes:,.0f} bytes by light, {share.eps_bytes:,.0f} {other_path}"
        for root, size in share.forwarded:
            parts += f", {size:,.0f} by the tree of {root}"
        yield f"  {share.src} to {share.dst}: {parts}"


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
    print_result(table, _price_lines(servers, table), as_json=as_json)


def _price_lines(servers: int, table: dict[str, dict[str, float]]) -> list[str]:
    heading = "".join(f"{name:>16}" for name in NETWORKS) + f"{'fat-tree/mixnet':>18}"
    lines = [f"networks of {servers:,} servers of 8 NICs, thousand USD", f"{'NIC':<8}{heading}"]
    for rate, usd in table.items():
        cells = "".join(f"{usd[name] / 1e3:>16,.0f}" for name in NETWORKS)
        lines.append(f"{rate:<8}{cells}{usd['fat-tree'] / usd['mixnet']:>18.2f}")
    return lines
