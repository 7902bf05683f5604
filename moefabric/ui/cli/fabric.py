"""`moefabric up`, `down`, `inspect`, `check`, `exec`, `light` and `ocs`: a fabric that stays up."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moefabric.api.commands import FILE, print_result
from moefabric.core.errors import FabricError
from moefabric.core.fabric_description import fabric_description
from moefabric.core.topology import Fabric, Region, nic_at
from moefabric.runtime.environment import named_variables, passed_environment
from moefabric.runtime.run_directory import FabricWiring
from moefabric.ui.cli.options import json_option, name_option, placement_options, running_lab

if TYPE_CHECKING:
    from moefabric.api.lab import LightChange


@click.command()
@click.argument("fabric", type=FILE)
@placement_options
def up(fabric: Path, settings: tuple[str, ...], **placement: Any) -> None:
    """Start the fabric that the file FABRIC describes, and leave it running until `down`."""
    from moefabric.api.fabric import EmulatedFabric

    lab = EmulatedFabric.load(fabric, settings).up(**placement)
    state = "was up already" if lab.was_up else "up"
    click.echo(f"{lab.name}: {state}, {_summary(lab.wiring)}")


def _summary(wiring: FabricWiring) -> str:
    fabric = wiring.fabric
    kind = "patch-panel" if fabric.patch_panel else "optical"
    nics = f"{fabric.optical} {kind} + {fabric.electrical} electrical NICs"
    reason = f" ({wiring.switch_why})" if wiring.switch_why else ""
    parts = (
        f"{len(fabric.servers)} servers of {nics}",
        fabric_description(fabric),
        f"{wiring.switch}{reason}",
        wiring.crossbar,
        f"management {wiring.management.subnet}",
    )
    return ", ".join(parts)


@click.command()
@click.argument("name", required=False)
@click.option(
    "--force",
    is_flag=True,
    help="Kill the fabric's process, if it is silent or of another version.",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Remove a fabric whose head is any node of this Ray cluster: HOST:PORT, or auto.",
)
def down(name: str | None, force: bool, cluster: str | None) -> None:
    """Remove the fabric NAME and all that belongs to it.

    Without NAME, remove the only fabric that `up` left running, and what is left of fabrics whose
    process was killed. The fabric of a `run` is removed at the end of the run, however it ends, or
    before by its NAME only.
    """
    from moefabric.api.running_fabrics import remove_fabric

    if cluster is not None:
        if name is None:
            raise click.UsageError("--cluster: give the NAME of the fabric")
        from moefabric.api.fabric import remove_fabric_of_cluster

        click.echo(remove_fabric_of_cluster(cluster, name), nl=False)
        return
    removed = remove_fabric(name, force=force)
    for chosen, was_up in removed.items():
        click.echo(f"{chosen}: {'down' if was_up else 'was not up'}")
    if not removed:
        click.echo("no fabric is up")


@click.command()
@json_option
@name_option
def inspect(as_json: bool, name: str | None) -> None:
    """Show a running fabric: servers, NICs, switches, circuits, rules, counters, processes."""
    from moefabric.api.fabric_view import inspection_lines

    inspection = running_lab(name).inspect()
    print_result(inspection, inspection_lines(inspection), as_json=as_json)


@click.command()
@json_option
@name_option
@click.pass_context
def check(context: click.Context, as_json: bool, name: str | None) -> None:
    """Check a running fabric: every pair of servers connects, and light moves in every region.

    Every server sends a datagram to every other one. Then the controllers light two matchings one
    after the other, and packets pass each circuit in both directions. The circuits that were lit
    before are lit again afterwards. The exit status is 1 if anything fails.
    """
    result = running_lab(name).check()
    print_result(result.to_json(), result.lines(), as_json=as_json)
    context.exit(not result.passed)


@click.command(name="exec", context_settings={"ignore_unknown_options": True})
@click.argument("server")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--env",
    "variables",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="Give COMMAND this variable too; without a value, the caller's. Only on servers that are "
    "neither containers nor elsewhere: `exec s0 -- env NAME=VALUE COMMAND` works on all.",
)
@name_option
def exec_(
    server: str, command: tuple[str, ...], variables: tuple[str, ...], name: str | None
) -> None:
    """Run COMMAND on the emulated SERVER or OCS: `moefabric exec s0 -- iperf3 -c 10.0.1.1`.

    COMMAND gets variables such as PATH, PYTHONPATH, LANG and NCCL_DEBUG, and those of --env.
    """
    try:
        environment = {**passed_environment(), **named_variables(variables)}
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--env") from error
    argv = running_lab(name).exec_argv(server, command)
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        raise FabricError(f"{argv[0]}: {error.strerror}") from error


@click.command()
@click.argument("circuits", nargs=-1, metavar="[CIRCUIT]...")
@click.option(
    "--demand",
    type=FILE,
    help="JSON file with an array of rows: bytes from the row's server to each server. "
    "Set the circuits that --policy plans for it.",
)
@click.option(
    "--policy",
    default="mixnet",
    help="With --demand: the policy, by name (`moefabric policy list`) or package.module:Name.",
)
@click.option(
    "--region", help="Region whose circuits change. Default: that of the circuits, or the first."
)
@name_option
@json_option
def light(
    circuits: tuple[str, ...], demand: Path | None, name: str | None, as_json: bool, **choice: Any
) -> None:
    """Set the circuits of a region to CIRCUITs such as s0/o0~s1/o0, or to those for a demand.

    s0~s1 takes free NICs of these servers. All other circuits of the region are removed.
    """
    if demand is not None and circuits:
        raise click.UsageError("give either circuits or --demand")
    if demand is None and not circuits:
        raise click.UsageError("give circuits such as s0/o0~s1/o0, or --demand M.json")
    from moefabric.config.demand_file import read_demand

    lab = running_lab(name)
    rows = None
    if demand is not None:
        region = lab.region(choice["region"]) if choice["region"] else lab.fabric.regions[0]
        rows = read_demand(demand, len(region.servers))
    change = lab.light(*circuits, demand=rows, **choice)
    print_result(change.to_json(), _change_lines(change), as_json=as_json)


def _change_lines(change: "LightChange") -> Iterator[str]:
    yield f"lit: {' '.join(change.circuits_after) or 'no circuits'}"
    if change.policy_fault:
        yield change.policy_fault
    if change.dark:
        yield f"dark: {' '.join(change.dark)}: no frame came through; removed, on the EPS"
    total_ms, settle_ms = change.phases.total_s * 1e3, change.phases.settle_s * 1e3
    yield f"{total_ms:.1f} ms, of which {settle_ms:.1f} ms settling"


@click.command()
@click.argument("ocs_name", metavar="[OCS]", default="ocs0")
@click.option("--all", "all_ports", is_flag=True, help="Show ports without cross-connect, too.")
@name_option
@json_option
def ocs(ocs_name: str, all_ports: bool, name: str | None, as_json: bool) -> None:
    """Show the ports of an OCS with their state, partner and optical power.

    A port is blocked, tuning, tuned or failed.
    """
    from moefabric.api.ocs_failures import region_of_ocs

    lab = running_lab(name)
    reply = lab.ocs(ocs_name)
    fabric, region = lab.fabric, region_of_ocs(lab.fabric, ocs_name)
    identity = reply["identity"]
    device = " ".join(identity[key] for key in ("vendor", "model", "serial", "firmware"))
    ports = [
        f"  {_port_line(port, fabric, region)}"
        for port in reply["ports"]
        if all_ports or port["state"] != "blocked" or port["admin"] != "enabled"
    ]
    lines = [f"{ocs_name}  {device}, {reply['startup']}", *ports]
    print_result(reply, lines, as_json=as_json)


def _port_line(port: dict[str, Any], fabric: Fabric, region: Region) -> str:
    state, admin = port["state"], port["admin"]
    words = (
        str(port["port"]),
        _nic_fibre(port["port"], fabric, region),
        state,
        "" if admin in ("enabled", state) else f"({admin})",
        f"-> {port['partner']}" if port["partner"] is not None else "",
        f"{port['power_dbm']:.1f} dBm" if port["power_dbm"] is not None else "",
        port["label"],
    )
    return "  ".join(filter(None, words))


def _nic_fibre(port: int, fabric: Fabric, region: Region) -> str:
    """Return the NIC that sends into an input, or receives from an output."""
    nic = nic_at(fabric, region, port)
    return f"{nic} {'out' if port <= fabric.ocses[region].ports else 'in'}" if nic else ""
