"""`moefabric up`, `down`, `inspect`, `exec` and `light`: a fabric that stays up."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from moefabric.cli.options import (
    FILE,
    json_option,
    name_option,
    read_wiring,
    run_directory,
    running_fabric,
    settings_option,
)
from moefabric.cli.output import print_result
from moefabric.cli.signals import graceful_shutdown
from moefabric.config.loader import load_fabric
from moefabric.config.run_directory import FabricWiring
from moefabric.core.errors import FabricError, SpecError
from moefabric.core.topology import fabric_description


@click.command(short_help="Start a fabric and leave it running.")
@click.argument("fabric", type=FILE)
@settings_option
@graceful_shutdown()
def up(fabric: Path, settings: tuple[str, ...]) -> None:
    """Start the fabric that the file FABRIC describes, and leave it running until `down`."""
    spec = load_fabric(fabric, settings)
    from moefabric.controller.client import wait_for_controllers
    from moefabric.emulator.fabric import lifecycle
    from moefabric.runner.fabric_processes import UP_TIMEOUT_S, fabric_processes

    was_up = spec.fabric in lifecycle.running_fabrics()
    wiring = lifecycle.up(spec.build(), fabric_processes, UP_TIMEOUT_S, switch=spec.switch)
    wait_for_controllers(wiring, UP_TIMEOUT_S)
    state = "was up already" if was_up else "up"
    click.echo(f"{spec.fabric}: {state}, {_summary(wiring)}")


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


@click.command(short_help="Remove a fabric.")
@click.argument("name", required=False)
def down(name: str | None) -> None:
    """Remove the fabric NAME and all that belongs to it.

    Without NAME, remove the only fabric that `up` left running. The fabric of a `run` is removed at
    the end of the run, or before by its NAME only.
    """
    from moefabric.emulator.fabric import lifecycle

    running = lifecycle.running_fabrics()
    if name is None and not running:
        click.echo("no fabric is up")
        return
    chosen = name or fabric_to_remove(running, lifecycle.fabrics_in_use())
    click.echo(f"{chosen}: {'down' if lifecycle.down(chosen) else 'was not up'}")


def fabric_to_remove(running: Sequence[str], users: Mapping[str, int]) -> str:
    """Return the only running fabric that no run uses.

    Args:
        running: names of the running fabrics.
        users: process ids of the runs that use a fabric, by its name.

    Raises:
        SpecError: if there are several such fabrics, or none.
    """
    fabrics = [f"{name} (of process {users[name]})" if name in users else name for name in running]
    match [name for name in running if name not in users]:
        case [only]:
            return only
        case []:
            remedy = "left to the run; `moefabric down NAME` removes it nevertheless"
        case _:
            remedy = "choose one with `moefabric down NAME`"
    verb = "is" if len(fabrics) == 1 else "are"
    raise SpecError([("", f"{', '.join(fabrics)} {verb} up: {remedy}")])


@click.command(short_help="Show a running fabric.")
@json_option
@name_option
def inspect(as_json: bool, name: str | None) -> None:
    """Show a running fabric: servers, NICs, switches, circuits, rules, counters, processes."""
    from moefabric.runner.inspection import inspect_fabric, inspection_lines

    inspection = inspect_fabric(running_fabric(name))
    print_result(inspection, inspection_lines(inspection), as_json=as_json)


@click.command(
    name="exec",
    short_help="Run a command on an emulated server.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("server")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@name_option
def exec_(server: str, command: tuple[str, ...], name: str | None) -> None:
    """Run COMMAND on the emulated SERVER or OCS: `moefabric exec s0 -- iperf3 -c 10.0.1.1`."""
    from moefabric.emulator.fabric import lifecycle

    argv = lifecycle.exec_argv(running_fabric(name), server, command)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        raise FabricError(f"{argv[0]}: {error.strerror}") from error


@click.command(short_help="Set the circuits of a region.")
@click.argument("circuits", nargs=-1, metavar="[CIRCUIT]...")
@click.option(
    "--demand",
    type=FILE,
    help="JSON file with an array of rows: bytes from the row's server to each server. "
    "Set the circuits that --policy plans for it.",
)
@click.option(
    "--policy", default="mixnet", help="With --demand: the policy, one of those of `plan`."
)
@click.option("--region", "region_name", default="r0", help="Region whose circuits change.")
@name_option
@json_option
def light(
    circuits: tuple[str, ...],
    demand: Path | None,
    policy: str,
    region_name: str,
    name: str | None,
    as_json: bool,
) -> None:
    """Set the circuits of a region to CIRCUITs such as s0/o0~s1/o0, or to those for a demand.

    All other circuits of the region are removed.
    """
    if demand is not None and circuits:
        raise click.UsageError("give either circuits or --demand")
    if demand is None and not circuits:
        raise click.UsageError("give circuits such as s0/o0~s1/o0, or --demand M.json")
    from moefabric.config.demand_file import read_demand
    from moefabric.controller.client import ControllerClient

    wiring = read_wiring(run_directory(name))
    regions = {region.name: region for region in wiring.fabric.regions}
    if region_name not in regions:
        raise SpecError([("--region", f"{region_name} is not one of {', '.join(regions)}")])
    region = regions[region_name]
    with ControllerClient(wiring.management.northbound_endpoint(region)) as client:
        if demand is not None:
            reply = client.demand(read_demand(demand, len(region.servers)), policy)
        else:
            reply = client.light(circuits)
    print_result(reply, _reply_lines(reply), as_json=as_json)


def _reply_lines(reply: Mapping[str, Any]) -> Iterator[str]:
    yield f"lit: {' '.join(reply['circuits_after']) or 'no circuits'}"
    if reply["dark"]:
        yield f"dark: {' '.join(reply['dark'])}: no frame came through; removed, on the EPS"
    phases = reply["phases"]
    total_ms, settle_ms = phases["total_s"] * 1e3, phases["settle_s"] * 1e3
    yield f"{total_ms:.1f} ms, of which {settle_ms:.1f} ms settling"
