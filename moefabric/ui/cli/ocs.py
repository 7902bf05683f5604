"""`moefabric ocs` and `moefabric events`: state and events of optical circuit switches."""

import json
from typing import Any

import click

from moefabric.api.commands import print_result
from moefabric.api.ocs_failures import region_of_ocs
from moefabric.core.ocs_ports import nic_at
from moefabric.core.topology import Region
from moefabric.runtime.run_directory import FabricWiring
from moefabric.ui.cli.options import json_option, name_option, running_lab


@click.command(short_help="Show the ports of an OCS.")
@click.argument("ocs_name", metavar="[OCS]", default="ocs0")
@click.option("--all", "all_ports", is_flag=True, help="Show ports without cross-connect, too.")
@name_option
@json_option
def ocs(ocs_name: str, all_ports: bool, name: str | None, as_json: bool) -> None:
    """Show the ports of an OCS with their state, partner and optical power.

    A port is blocked, tuning, tuned or failed.
    """
    lab = running_lab(name)
    reply = lab.ocs(ocs_name)
    wiring, region = lab.wiring, region_of_ocs(lab.wiring, ocs_name)
    identity = reply["identity"]
    device = " ".join(identity[key] for key in ("vendor", "model", "serial", "firmware"))
    ports = [
        f"  {_port_line(port, wiring, region)}"
        for port in reply["ports"]
        if all_ports or port["state"] != "blocked" or port["admin"] != "enabled"
    ]
    lines = [f"{ocs_name}  {device}, {reply['startup']}", *ports]
    print_result(reply, lines, as_json=as_json)


def _port_line(port: dict[str, Any], wiring: FabricWiring, region: Region) -> str:
    state, admin = port["state"], port["admin"]
    words = (
        str(port["port"]),
        _nic_fibre(port["port"], wiring, region),
        state,
        "" if admin in ("enabled", state) else f"({admin})",
        f"-> {port['partner']}" if port["partner"] is not None else "",
        f"{port['power_dbm']:.1f} dBm" if port["power_dbm"] is not None else "",
        port["label"],
    )
    return "  ".join(filter(None, words))


def _nic_fibre(port: int, wiring: FabricWiring, region: Region) -> str:
    """Return the NIC that sends into an input, or receives from an output."""
    assert region.ocs is not None
    is_input = port <= region.ocs.ports
    number = port if is_input else port - region.ocs.ports
    if number > len(region.servers) * wiring.fabric.optical:
        return ""
    return f"{nic_at(wiring.fabric, region, number)} {'out' if is_input else 'in'}"


@click.command(short_help="Print the events of the OCSes.")
@click.option("--follow", "-f", is_flag=True, help="Go on with new events until interrupted.")
@name_option
def events(follow: bool, name: str | None) -> None:
    """Print the events of the OCSes as JSON lines: changes, light, faults, alarms."""
    for event in running_lab(name).events(follow=follow):
        click.echo(json.dumps(event))
