"""`moefabric plan`: the planner alone. No root, no fabric."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moefabric.demand_file import read_demand
from moefabric.errors import SpecError
from moefabric.topology import Eps, Fabric, Ocs, Region
from moefabric.units import rate_bps

if TYPE_CHECKING:
    from controller.planner.plan import Plan


class RateType(click.ParamType[float]):
    """`100Gb/s` on the command line."""

    name = "rate"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Bits per second."""
        try:
            rate = rate_bps(value if isinstance(value, int | float) else str(value))
        except ValueError as fault:
            self.fail(str(fault), param, ctx)
        if rate <= 0:
            self.fail(f"{value} is not a rate above zero", param, ctx)
        return rate


def bare_fabric(
    servers: int, optical: int, electrical: int, nic_rate_bps: float, *, panel: bool = False
) -> Fabric:
    """One region of servers on a leaf and an OCS, as `plan` takes it; or on a patch panel alone."""
    names = tuple(f"s{i}" for i in range(servers))
    ocs = Ocs("ocs0", max(2, servers * optical)) if optical else None
    eps = Eps(servers) if electrical else None
    region = Region("r0", 0, names, ocs)
    return Fabric("plan", (region,), 8, optical, electrical, nic_rate_bps, eps, panel=panel and eps is None)


@click.command(short_help="What light a demand gets, and how fast it is.")
@click.option(
    "--demand",
    type=click.Path(path_type=Path),
    required=True,
    help="JSON file: an array of rows, one a server, of bytes to each server.",
)
@click.option("--degree", type=click.IntRange(0, 64), required=True, help="Optical NICs of each server.")
@click.option(
    "--electrical",
    type=click.IntRange(0, 64),
    default=1,
    show_default=True,
    help="Electrical NICs of each server.",
)
@click.option("--nic-rate", type=RateType(), default="100Gb/s", show_default=True, help="Rate of a NIC.")
@click.option(
    "--policy",
    default="mixnet",
    show_default=True,
    help="mixnet, mixnet-htsim, spill, joint, matching, round-robin, topoopt, static or eps.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(demand: Path, degree: int, electrical: int, nic_rate: float, policy: str, as_json: bool) -> None:
    """Print the circuits, the split and the predicted completion that a demand gets. No root, no fabric."""
    from controller.planner import plan as planning
    from moefabric.circuits import CircuitSet
    from moefabric.demand import DemandMatrix

    if degree + electrical == 0:
        raise SpecError([("--degree, --electrical", "a server without any NIC reaches nobody")])
    rows = read_demand(demand)
    fabric = bare_fabric(len(rows), degree, electrical, nic_rate, panel=policy == "topoopt")
    chosen = planning.policy_named(policy)
    made = planning.plan(fabric, fabric.regions[0], DemandMatrix(fabric.servers, rows), chosen, CircuitSet())
    click.echo(
        json.dumps(made.to_json())
        if as_json
        else "\n".join(_lines(made, "on by other servers" if fabric.panel else "by the EPS"))
    )


def _lines(made: "Plan", otherwise: str) -> list[str]:
    """The plan for a person; `otherwise` is how bytes go that have no light."""
    dark = {server: left for server, left in zip(made.servers, made.leftover_ports, strict=True) if left}
    lines = [
        f"{made.policy}: {len(made.circuits)} circuits, {made.predicted_s * 1e3:.3f} ms predicted, no less than {made.bound_s * 1e3:.3f} ms",
        f"  lit: {made.circuits}",
    ]
    if dark:
        lines.append("  dark: " + ", ".join(f"{left} ports of {server}" for server, left in dark.items()))
    lines += [
        f"  {s.src} to {s.dst}: {s.light_bytes:,.0f} bytes by light, {s.eps_bytes:,.0f} {otherwise}"
        for s in made.split
    ]
    return lines
