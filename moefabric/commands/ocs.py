"""`ocs`: an optical switch as it sees itself, port by port."""

import json
from typing import Any, Final

import click

from moefabric.commands.fabric import only_running, wiring_of
from moefabric.commands.fault_ocs import region_of
from moefabric.management import RunDir, Wiring
from moefabric.topology import Region

_QUIET: Final = "blocked"


@click.command(short_help="The ports of an optical switch, and their light.")
@click.argument("chosen", metavar="[OCS]", default="ocs0")
@click.option("--all", "everything", is_flag=True, help="Also ports that are joined to nothing.")
@click.option("--name", help="The fabric, where more than one is up.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ocs(chosen: str, everything: bool, name: str | None, as_json: bool) -> None:
    """Ports of an optical switch: blocked, tuning, tuned or failed, where their light goes, and how much there is of it."""
    from emulator.asking import ask

    fabric = name or only_running()
    wiring = wiring_of(fabric)
    region = region_of(wiring, chosen)
    said = ask(RunDir.named(fabric).plant(region), {"do": "show"})
    if as_json:
        click.echo(json.dumps(said))
        return
    who = said["identity"]
    click.echo(
        f"{chosen}  {who['vendor']} {who['model']} {who['serial']} {who['firmware']}, {said['startup']}"
    )
    for port in said["ports"]:
        if everything or port["state"] != _QUIET or port["admin"] != "enabled":
            click.echo(f"  {line(port, wiring, region)}")


def line(port: dict[str, Any], wiring: Wiring, region: Region) -> str:
    """A port, as a person reads it."""
    partner = f"-> {port['partner']}" if port["partner"] is not None else ""
    power = f"{port['power_dbm']:.1f} dBm" if port["power_dbm"] is not None else ""
    shut = "" if port["admin"] == "enabled" or port["admin"] == port["state"] else f"({port['admin']})"
    words = (
        str(port["port"]),
        _nic(port["port"], wiring, region),
        port["state"],
        shut,
        partner,
        power,
        port["label"],
    )
    return "  ".join(filter(None, words))


def _nic(port: int, wiring: Wiring, region: Region) -> str:
    """The NIC that sends into this input, or receives from this output."""
    assert region.ocs is not None
    number = port if port <= region.ocs.ports else port - region.ocs.ports
    if number > len(region.servers) * wiring.fabric.optical:
        return ""
    return f"{wiring.fabric.nic_at(region, number)} {'out' if port <= region.ocs.ports else 'in'}"
