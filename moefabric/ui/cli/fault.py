"""`moefabric fault`: inject, list and clear failures of a running fabric."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from moefabric.api.commands import print_result
from moefabric.api.ocs_failures import LOSS_DB, OCS_FAULTS, number, region_of_ocs, usage_fault
from moefabric.core.failure_kinds import INJECTABLE, FailureKind
from moefabric.core.topology import Fabric, Region, nic_at
from moefabric.results.parts import Json
from moefabric.ui.cli.command import cli_group, json_option, name_option, part_argument
from moefabric.ui.cli.options import ocs_option, running_lab

_ALL: Final = "all"
_OCS_HELP: Final = "\n".join(
    [
        "Inject a fault of KIND into an OCS. Without KIND: list its faults.\n\n\b",
        *(f"{f'{kind} {args}':17}{text}" for kind, (args, text) in OCS_FAULTS.items()),
        "\nA PORT is a number, or a NIC such as s0/o1 (with both its fibres, for `port`).",
    ]
)


@cli_group(
    "moefabric fault nic s0/o0 s1/e0", "moefabric fault lab --clear", invoke_without_command=True
)
@click.option("--clear", is_flag=True, help="Clear all failures of every kind.")
@name_option
@click.pass_context
def fault(context: click.Context, clear: bool, name: str | None) -> None:
    """Inject failures into a running fabric, list them, and clear them."""
    if context.invoked_subcommand is not None:
        return
    if not clear:
        click.echo(context.get_help())
        return
    _print_faults(running_lab(name).clear())


@fault.command(
    "list",
    short_help="List the failures.",
    examples=["moefabric fault list", "moefabric fault list lab --json"],
)
@name_option
@json_option
def list_(name: str | None, as_json: Path | None) -> None:
    """List the present failures of a fabric."""
    _print_faults(running_lab(name).faults(), as_json=as_json)


def _print_faults(faults: Sequence[Json], *, as_json: Path | None = None) -> None:
    lines = [f"{entry['kind']} {' '.join(entry['what'])}" for entry in faults]
    print_result(list(faults), lines or ["no faults"], as_json=as_json)


_clear_option = click.option(
    "--clear", is_flag=True, help="Clear the failures of these components, or all of this kind."
)


def _add_hardware_command(kind: FailureKind) -> None:
    """Add the command that injects and clears failures of a kind of the hardware."""
    traits = kind.traits
    metavar = f"{traits.components.upper().removesuffix('S')}..."

    @fault.command(
        str(kind),
        short_help=traits.summary,
        help=traits.description,
        examples=[f"moefabric fault {kind} {traits.example}", f"moefabric fault {kind} --clear"],
    )
    @part_argument(traits.components, traits.components, nargs=-1, metavar=metavar)
    @_clear_option
    @name_option
    @json_option
    def change(
        clear: bool, name: str | None, as_json: Path | None, **components: tuple[str, ...]
    ) -> None:
        [names] = components.values()
        if not names and not clear:
            raise click.UsageError(f"which {kind}?")
        lab = running_lab(name)
        if clear:
            faults = lab.clear(kind, *names)
        else:
            lab.fault(kind, *names)
            faults = lab.faults()
        _print_faults(faults, as_json=as_json)


for _kind in INJECTABLE:
    if _kind.traits.summary:
        _add_hardware_command(_kind)


@fault.command(
    short_help="Let GPUs fail.",
    examples=["moefabric fault gpu s1/3", "moefabric fault gpu s1/3 --clear"],
)
@part_argument("gpus", nargs=-1, required=True, metavar="GPU...")
@click.option("--clear", is_flag=True, help="Let the GPUs work again.")
@name_option
def gpu(gpus: tuple[str, ...], clear: bool, name: str | None) -> None:
    """Let GPUs such as s1/3 fail: their ranks die, and the servers' agents report it to the job."""
    lab = running_lab(name)
    if clear:
        lab.clear("gpu", *gpus)
    else:
        lab.fault("gpu", *gpus)
    click.echo(f"gpu {' '.join(gpus)}: {'cleared' if clear else 'failed'}")


@fault.command(
    short_help="Kill or suspend a controller.",
    examples=["moefabric fault controller r0 --kill", "moefabric fault controller eps --stop"],
)
@part_argument("region")
@click.option("--kill", is_flag=True, help="Kill its process, which is started again.")
@click.option("--stop", is_flag=True, help="Suspend its process.")
@click.option("--continue", "continue_", is_flag=True, help="Resume its process.")
@name_option
def controller(region: str, name: str | None, **actions: bool) -> None:
    """Kill or suspend the controller of REGION: r0, or eps for the EPS controller."""
    chosen = [action for action, is_given in actions.items() if is_given]
    if len(chosen) != 1:
        raise click.UsageError(f"give {'one of ' * bool(chosen)}--kill, --stop or --continue")
    action = {"kill": "killed", "stop": "stopped", "continue_": "continued"}[chosen[0]]
    lab = running_lab(name)
    hit: Sequence[str] = ()
    if action == "continued":
        lab.clear("controller", region)
    else:
        mode = "kill" if action == "killed" else "stop"
        hit = lab.fault("controller", region, mode=mode).failure.what
    shared = f", with all that share its process ({', '.join(hit)})" if len(hit) > 1 else ""
    click.echo(f"controller of {region}: {action}{shared}")


@fault.command(
    help=_OCS_HELP,
    short_help="Inject one of many faults into an OCS.",
    examples=["moefabric fault ocs port s0/o1", "moefabric fault ocs reject --times 2"],
)
@click.argument("kind", required=False, type=click.Choice(list(OCS_FAULTS)), metavar="[KIND]")
@click.argument("arguments", nargs=-1)
@click.option("--times", type=click.IntRange(min=1), help="Number of commands that are affected.")
@click.option(
    "--db",
    type=click.FloatRange(min=0),
    help=f"With loss: additional loss in dB. Default: {LOSS_DB:g}.",
)
@click.option(
    "--after", is_flag=True, help="With reset: once the command is done, before the reply."
)
@click.option(
    "--clear",
    is_flag=False,
    flag_value=_ALL,
    metavar="[NUMBER]",
    help="Clear the fault with this number, or all.",
)
@ocs_option
@name_option
@json_option
def ocs(
    kind: str | None,
    arguments: tuple[str, ...],
    clear: str | None,
    ocs_name: str,
    name: str | None,
    as_json: Path | None,
    **effect: Any,
) -> None:
    """Inject a fault into an OCS, or clear it."""
    if clear is not None and kind is not None:
        raise click.UsageError("give either a kind of fault or --clear")
    if wrong := usage_fault(kind, arguments):
        raise click.UsageError(wrong)
    lab = running_lab(name)
    reply: Json
    if clear is None:
        reply = lab.ocs_fault(kind, *arguments, ocs=ocs_name, **effect)
    else:
        reply = lab.ocs_clear(None if clear == _ALL else number(clear, "--clear"), ocs=ocs_name)
    region = region_of_ocs(lab.fabric, ocs_name)
    lines = [f"{ocs_name}: no power"] * (not reply["power"])
    lines += [fault_line(entry, lab.fabric, region) for entry in reply["faults"]]
    print_result(reply, lines or [f"{ocs_name}: no faults"], as_json=as_json)


def fault_line(entry: dict[str, Any], fabric: Fabric, region: Region) -> str:
    """Return a fault of a region's OCS as a line, with the NICs at its ports."""
    ports = ",".join(map(str, entry["ports"]))
    found = (nic_at(fabric, region, port) for port in entry["ports"])
    if nics := ", ".join(dict.fromkeys(str(nic) for nic in found if nic)):
        ports += f" ({nics} at {fabric.ocses[region].name})"
    value = f"{entry['value']:g}" if entry["value"] else ""
    times = f"{entry['times']} times more" if entry["times"] is not None else ""
    return " ".join(filter(None, [f"{entry['number']}:", entry["kind"], ports, value, times]))
