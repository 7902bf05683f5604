"""`up`, `down`, `inspect`, `exec` and `light`: a fabric that stays, and what one does with it."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from moefabric.commands.ending import ended_in_order
from moefabric.errors import FabricError, SpecError
from moefabric.kinds import in_words
from moefabric.management import RunDir, Wiring
from moefabric.spec import load
from moefabric.topology import Region

_PATH = click.Path(path_type=Path)


@click.command(short_help="Start a fabric and leave it running.")
@click.argument("fabric", type=_PATH)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a key of the file.")
@ended_in_order()
def up(fabric: Path, settings: tuple[str, ...]) -> None:
    """Start the fabric that the file FABRIC describes and leave it running, until `down`."""
    spec = load.fabric(fabric, settings)
    from controller.client import await_controllers
    from emulator import lifecycle
    from moefabric.experiment.programs import UP_TIMEOUT_S, processes

    was_up = spec.fabric in lifecycle.running()
    wiring = lifecycle.up(spec.wired(), processes, UP_TIMEOUT_S, switch=spec.switch)
    await_controllers(wiring, UP_TIMEOUT_S)
    click.echo(f"{spec.fabric}: {'was up already' if was_up else 'up'}, {_words(wiring)}")


def _words(wiring: Wiring) -> str:
    fabric = wiring.fabric
    nics = f"{fabric.optical} optical + {fabric.electrical} electrical NICs"
    if fabric.panel:
        nics = f"{fabric.optical} patched NICs"
    switch = f"{wiring.switch} ({wiring.switch_why})" if wiring.switch_why else wiring.switch
    return f"{len(fabric.servers)} servers of {nics}, {in_words(fabric)}, {switch}, {wiring.crossbar}, management {wiring.management.subnet}"


@click.command(short_help="Take a fabric away.")
@click.argument("name", required=False)
def down(name: str | None) -> None:
    """Take a fabric away, with all that belongs to it: NAME, or the only one that `up` has left running.

    The fabric of a `run` goes with its run; before, it is taken away by its name alone.
    """
    from emulator import lifecycle

    running = lifecycle.running()
    if name is None and not running:
        click.echo("no fabric is up")
        return
    chosen = name or left_running(running, lifecycle.serving())
    click.echo(f"{chosen}: {'down' if lifecycle.down(chosen) else 'was not up'}")


def left_running(running: Sequence[str], serving: Mapping[str, int]) -> str:
    """The only one of those that run which serves no process. SpecError where there are others, or none."""
    told = [f"{name} (of process {serving[name]})" if name in serving else name for name in running]
    match [name for name in running if name not in serving]:
        case [only]:
            return only
        case []:
            remedy = "left to the run; `moefabric down NAME` takes it all the same"
        case _:
            remedy = "say which, `moefabric down NAME`"
    raise SpecError([("", f"{', '.join(told)} {'is' if len(told) == 1 else 'are'} up: {remedy}")])


def only_running() -> str:
    """The one fabric that runs. SpecError where there is none, or several."""
    from emulator import lifecycle

    running = lifecycle.running()
    if not running:
        raise SpecError([("", "no fabric is up: start one with `moefabric up FABRIC.yaml`")])
    if len(running) > 1:
        raise SpecError([("", f"{', '.join(running)} are up: say which, `--name NAME`")])
    return running[0]


@click.command(short_help="Show all of a running fabric.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--name", help="The fabric, where more than one is up.")
def inspect(as_json: bool, name: str | None) -> None:
    """Show a running fabric: servers, NICs, switches, circuits lit, rules, counters, processes."""
    from moefabric.experiment.inspection import inspected, lines

    seen = inspected(name or only_running())
    click.echo(json.dumps(seen) if as_json else "\n".join(lines(seen)))


@click.command(
    name="exec",
    short_help="Run a command on an emulated server.",
    context_settings={"ignore_unknown_options": True},
)
@click.argument("server")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--name", help="The fabric, where more than one is up.")
def exec_(server: str, command: tuple[str, ...], name: str | None) -> None:
    """Run COMMAND on the emulated SERVER, or OCS: `moefabric exec s0 -- iperf3 -c 10.0.1.1`."""
    from emulator import lifecycle

    argv = lifecycle.argv_on(name or only_running(), server, command)
    try:
        os.execvp(argv[0], argv)
    except OSError as fault:
        raise FabricError(f"{argv[0]}: {fault.strerror}") from fault


@click.command(short_help="Light circuits, or those that a demand deserves.")
@click.argument("circuits", nargs=-1, metavar="[CIRCUIT]...")
@click.option(
    "--demand",
    type=_PATH,
    help="JSON file: an array of rows, one a server, of bytes to each server. Light what it deserves.",
)
@click.option(
    "--policy",
    default="mixnet",
    show_default=True,
    help="With --demand: the policy that decides, one of those of `plan`.",
)
@click.option("--region", default="r0", show_default=True, help="The region whose light moves.")
@click.option("--name", help="The fabric, where more than one is up.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def light(
    circuits: tuple[str, ...], demand: Path | None, policy: str, region: str, name: str | None, as_json: bool
) -> None:
    """Light these CIRCUITs (such as s0/o0~s1/o0) of a region and no others; or those that a demand deserves."""
    if demand is not None and circuits:
        raise click.UsageError("give either circuits or --demand")
    if demand is None and not circuits:
        raise click.UsageError("give circuits such as s0/o0~s1/o0, or --demand M.json")
    said = _light(name or only_running(), region, circuits, demand, policy)
    if as_json:
        click.echo(json.dumps(said))
        return
    phases = said["phases"]
    click.echo("lit: " + (" ".join(said["circuits_after"]) or "no light"))
    if said["dark"]:
        click.echo(
            f"dark: {' '.join(said['dark'])}: joined, and no frame came through; taken out, on the EPS"
        )
    click.echo(f"{phases['total_s'] * 1e3:.1f} ms, of which {phases['settle_s'] * 1e3:.1f} ms settling")


def _light(
    name: str, region: str, circuits: tuple[str, ...], demand: Path | None, policy: str
) -> dict[str, Any]:
    from controller.client import ControllerClient
    from moefabric.demand_file import read_demand

    wiring = wiring_of(name)
    chosen = _region(wiring, region)
    with ControllerClient(wiring.management.northbound(chosen)) as client:
        if demand is not None:
            return client.demand(read_demand(demand, len(chosen.servers)), policy)
        return client.light(circuits)


def wiring_of(name: str) -> Wiring:
    """What is known of the fabric of that name. FabricError if it isn't up."""
    try:
        return Wiring.from_json(RunDir.named(name).wiring.read_text())
    except FileNotFoundError as fault:
        raise FabricError(f"{name} is not up: start it with `moefabric up FABRIC.yaml`") from fault


def _region(wiring: Wiring, name: str) -> Region:
    for region in wiring.fabric.regions:
        if region.name == name:
            return region
    names = ", ".join(region.name for region in wiring.fabric.regions)
    raise SpecError([("--region", f"{name} is not one of {names}")])
