"""`moefabric up`, `down`, `inspect`, `check`, `exec`, `light` and `ocs`: a fabric that stays up."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moefabric.api.commands import FILE, print_result
from moefabric.core.errors import ControlError, FabricError
from moefabric.core.fabric_description import fabric_description
from moefabric.core.topology import Fabric, Region, nic_at
from moefabric.report.formatting import aligned
from moefabric.runtime.environment import passed_environment
from moefabric.runtime.run_directory import FabricWiring
from moefabric.ui.cli.command import cli_command, is_typed, json_option, name_option, part_argument
from moefabric.ui.cli.options import (
    environment_option,
    placement_options,
    policy_option,
    running_lab,
)

if TYPE_CHECKING:
    from moefabric.api.lab import LightChange


@cli_command(
    "moefabric up examples/fabric.yaml",
    "moefabric up examples/fabric.yaml --set fabric=mine --set nics.optical=2",
)
@click.argument("fabric", type=FILE)
@placement_options
def up(fabric: Path, settings: tuple[str, ...], **placement: Any) -> None:
    """Start the fabric that the file FABRIC describes, and leave it running until `down`."""
    from moefabric.api.fabric import EmulatedFabric

    lab = EmulatedFabric.load(fabric, settings).up(**placement)
    for fault in lab.replaced:
        click.echo(f"{lab.name}: replaced, because {fault}")
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
        f"management {wiring.management.subnet}",
    )
    return ", ".join(parts)


@cli_command("moefabric down", "moefabric down lab --force")
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
@name_option
def down(name: str | None, force: bool, cluster: str | None) -> None:
    """Remove the fabric NAME and all that belongs to it.

    Nothing changes if it isn't up, so that scripts can repeat this: the line says which fabrics
    are, and the exit status is 0. Without NAME, remove the only fabric that `up` left running, and
    what is left of fabrics whose process was killed. The fabric of a `run` is removed at the end of
    the run, however it ends, or before by its NAME only.
    """
    from moefabric.api.running_fabrics import remove_fabric, running_names

    if cluster is not None:
        if name is None:
            raise click.UsageError("--cluster: give the NAME of the fabric")
        from moefabric.api.fabric import remove_fabric_of_cluster

        click.echo(remove_fabric_of_cluster(cluster, name), nl=False)
        return
    removed = remove_fabric(name, force=force)
    for chosen, was_up in removed.items():
        others = "" if was_up or not (running := running_names()) else f"; {running} up"
        click.echo(f"{chosen}: {'down' if was_up else 'was not up'}{others}")
    if not removed:
        click.echo("no fabric is up")


@cli_command("moefabric list", "moefabric list --json", name="list")
@json_option
def list_(as_json: Path | None) -> None:
    """List the fabrics that run on this machine: name, age, owner, servers, and who uses them."""
    from moefabric.api.running_fabrics import listed_fabrics

    fabrics = listed_fabrics()
    rows = [("name", "age", "owner", "servers", "in use by")]
    for fabric in fabrics:
        servers = "coming up" if fabric.servers is None else str(fabric.servers)
        user = fabric.run or ("" if fabric.pid is None else "a program")
        user += "" if fabric.pid is None else f" (process {fabric.pid})"
        rows.append((fabric.name, _age(fabric.age_s), fabric.owner, servers, user))
    lines = aligned(rows) if fabrics else ["no fabric is up"]
    lines += [f"{fabric.name}: {end}" for fabric in fabrics for end in fabric.ended]
    print_result([fabric.to_json() for fabric in fabrics], lines, as_json=as_json)


def _age(seconds: float) -> str:
    """Return a duration in its two largest units, such as `2 h 5 min`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((place for place, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count) or "0 s"


@cli_command("moefabric inspect lab", "moefabric inspect --json")
@json_option
@name_option
def inspect(as_json: Path | None, name: str | None) -> None:
    """Show a running fabric: servers, NICs, switches, circuits, rules, counters, processes.

    `s0/o0->ocs0:1/13(100Gb/s)` is a NIC with input and output at its OCS, `s0/e0->leaf0:1` one with
    its port at a leaf; `datapath` is a switch's id in OpenFlow. Counters are in the JSON only.
    """
    from moefabric.api.fabric_view import inspection_lines

    inspection = running_lab(name).inspect()
    print_result(inspection, inspection_lines(inspection), as_json=as_json)


@cli_command("moefabric check", "moefabric check lab --json=check.json")
@json_option
@name_option
@click.pass_context
def check(context: click.Context, as_json: Path | None, name: str | None) -> None:
    """Check a running fabric: every pair of servers connects, and light moves in every region.

    Every server sends a datagram to every other one. Then the controllers light two matchings one
    after the other, and packets pass each circuit in both directions. The circuits that were lit
    before are lit again afterwards. The exit status is 1 if anything fails.
    """
    result = running_lab(name).check()
    print_result(result.to_json(), result.lines(), as_json=as_json)
    context.exit(not result.passed)


@cli_command(
    "moefabric exec s0 -- ping -c 3 10.0.1.1",
    "moefabric exec lab s0 -- iperf3 -s",
    name="exec",
    context_settings={"ignore_unknown_options": True},
)
@part_argument("server", "servers")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@environment_option
@name_option
def exec_(
    server: str, command: tuple[str, ...], environment: Mapping[str, str], name: str | None
) -> None:
    """Run COMMAND on the emulated SERVER or OCS: `moefabric exec s0 -- iperf3 -c 10.0.1.1`.

    COMMAND gets variables such as PATH, PYTHONPATH, LANG and NCCL_DEBUG. Those of --env reach
    servers that are neither containers nor elsewhere: `exec s0 -- env NAME=VALUE COMMAND` works on
    all.
    """
    argv = running_lab(name).exec_argv(server, command)
    try:
        os.execvpe(argv[0], argv, {**passed_environment(), **environment})
    except OSError as error:
        raise FabricError(f"{argv[0]}: {error.strerror}") from error


@cli_command(
    "moefabric light s0~s1 s2~s3",
    "moefabric light lab --demand demand.json --policy spill",
    "moefabric light --none",
)
@part_argument("circuits", "circuits", nargs=-1, metavar="[CIRCUIT]...")
@click.option(
    "--demand",
    type=FILE,
    help="JSON file with an array of rows: bytes from the row's server to each server. "
    "Set the circuits that --policy plans for it.",
)
@policy_option(
    "With --demand: the policy, by name (`moefabric policy list`) or package.module:Name.", "mixnet"
)
@click.option("--none", "is_none", is_flag=True, help="Remove all circuits of the region.")
@click.option(
    "--region", help="Region whose circuits change. Default: that of the circuits, or the first."
)
@name_option
@json_option
@click.pass_context
def light(
    context: click.Context,
    /,
    circuits: tuple[str, ...],
    demand: Path | None,
    name: str | None,
    as_json: Path | None,
    *,
    is_none: bool,
    **choice: Any,
) -> None:
    """Set the circuits of a region to CIRCUITs such as s0/o0~s1/o0, or to those for a demand.

    s0~s1 takes free NICs of these servers. All other circuits of the region are removed. The exit
    status is 1 if a circuit stays dark.
    """
    match bool(circuits) + (demand is not None) + is_none:
        case 0:
            ways = "--demand M.json, or --none"
            raise click.UsageError(f"give circuits such as s0/o0~s1/o0, {ways}")
        case 2 | 3:
            raise click.UsageError("give either circuits, --demand or --none")
    if demand is None and is_typed(context, "policy"):
        raise click.UsageError("--policy chooses circuits for a --demand: give one")
    from moefabric.config.demand_file import read_demand

    lab = running_lab(name)
    rows = None
    if demand is not None:
        region = lab.region(choice["region"]) if choice["region"] else lab.fabric.regions[0]
        rows = read_demand(demand, len(region.servers))
    if is_none:
        change = lab.dark(region=choice["region"])
    else:
        change = lab.light(*circuits, demand=rows, **choice)
    print_result(change.to_json(), _change_lines(change), as_json=as_json)
    if change.policy_fault:
        raise ControlError(change.policy_fault)
    context.exit(bool(change.dark))


def _change_lines(change: "LightChange") -> Iterator[str]:
    yield f"lit: {' '.join(change.circuits_after) or 'no circuits'}"
    for name in change.dark:
        why = change.dark_why.get(name, "no frame came through")
        yield f"dark: {name}: {why}; its pair is on the EPS"
    total_ms, settle_ms = change.phases.total_s * 1e3, change.phases.settle_s * 1e3
    yield f"{total_ms:.1f} ms, of which {settle_ms:.1f} ms settling"


@cli_command("moefabric ocs", "moefabric ocs lab ocs1 --all")
@part_argument("ocs_name", "ocses", metavar="[OCS]", default="ocs0")
@click.option("--all", "all_ports", is_flag=True, help="Show ports without cross-connect, too.")
@name_option
@json_option
def ocs(ocs_name: str, all_ports: bool, name: str | None, as_json: Path | None) -> None:
    """Show the ports of an OCS with their state, partner and optical power.

    A port is blocked, tuning, tuned or failed; a tuned one is dark if no light arrives, for its
    partner or what is before it has failed. `from s0/o0` is the input into which that NIC sends,
    `to s0/o0` the output from which it receives.
    """
    from moefabric.api.ocs_failures import region_of_ocs

    lab = running_lab(name)
    reply = lab.ocs(ocs_name)
    fabric, region = lab.fabric, region_of_ocs(lab.fabric, ocs_name)
    identity = reply["identity"]
    device = " ".join(identity[key] for key in ("vendor", "model", "serial", "firmware"))
    lines = [f"{ocs_name}  {device}, {reply['startup']}"]
    if reply["power"]:
        lines += ocs_port_lines(reply["ports"], fabric, region, all_ports=all_ports)
    else:
        remedy = f"`moefabric fault ocs --clear --ocs {ocs_name}`"
        lines.append(f"  no power: no port has light; {remedy}")
    print_result(reply, lines, as_json=as_json)


def ocs_port_lines(
    ports: Sequence[dict[str, Any]], fabric: Fabric, region: Region, *, all_ports: bool
) -> list[str]:
    """Return the ports of an OCS as lines of a table: those in use, or all."""
    shown = [
        port
        for port in ports
        if all_ports or port["state"] != "blocked" or port["admin"] != "enabled"
    ]
    hint = f"  no cross-connects: --all lists the {len(ports)} ports"
    rows: list[tuple[str, ...]] = [("port", "fibre", "state", "to", "power", "label")]
    rows += [_port_row(port, fabric, region) for port in shown]
    return [f"  {line}" for line in aligned(rows, right=(0, 3, 4))] if shown else [hint]


def _port_row(port: dict[str, Any], fabric: Fabric, region: Region) -> tuple[str, ...]:
    state, admin, power_dbm = port["state"], port["admin"], port["power_dbm"]
    floor_dbm = fabric.ocses[region].profile.loss.floor_dbm
    is_dark = state == "tuned" and power_dbm is not None and power_dbm <= floor_dbm
    notes = [admin] * (admin not in ("enabled", state)) + ["dark"] * is_dark
    return (
        str(port["port"]),
        _fibre(port["port"], fabric, region),
        f"{state} ({', '.join(notes)})" if notes else state,
        str(port["partner"]) if port["partner"] is not None else "",
        f"{power_dbm:.1f} dBm" if power_dbm is not None else "",
        port["label"],
    )


def _fibre(port: int, fabric: Fabric, region: Region) -> str:
    """Return the fibre in an input, from a NIC, or in an output, to a NIC."""
    nic = nic_at(fabric, region, port)
    return f"{'from' if port <= fabric.ocses[region].ports else 'to'} {nic}" if nic else ""
