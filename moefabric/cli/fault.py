"""`moefabric fault`: inject, list and clear failures of a running fabric."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from moefabric.cli.options import (
    json_option,
    name_option,
    ocs_option,
    read_wiring,
    region_of_ocs,
    run_directory,
)
from moefabric.cli.output import print_result
from moefabric.config.run_directory import FabricWiring
from moefabric.core.errors import SpecError
from moefabric.core.failures import ControllerFailureMode, Failure, FailureKind
from moefabric.core.topology import Region
from moefabric.core.units import duration_ns

_ALL: Final = "all"
_OCS_FAULTS: Final = {
    "port": ("PORT...", "no light passes these ports, and commands for them are rejected"),
    "stuck": ("PORT...", "the mirrors of these inputs do not move"),
    "loss": ("PATH", "a path (1-17, or s0/o0~s1/o0 one way) loses --db more"),
    "reject": ("", "rejects commands that change cross-connects or ports"),
    "delay": ("TIME", "reports completion this much later"),
    "drop-completion": ("", "never reports completion"),
    "reset": ("", "resets the connection before a command is done"),
    "partial-apply": ("N", "makes only N of a command's cross-connects"),
    "reboot": ("", "boots and closes all connections; circuits go if `startup: volatile`"),
    "down": ("", "has no power: no light, and no management interface"),
    "list": ("", "lists the faults"),
}
"""Arguments and meaning of each kind of OCS fault."""
_RENAMED_OCS_FAULTS: Final = {
    "deny": "reject",
    "never": "drop-completion",
    "partial": "partial-apply",
}
_OCS_HELP: Final = "\n".join(
    [
        "Inject a fault of KIND into an OCS. Without KIND: list its faults.\n\n\b",
        *(f"{f'{kind} {args}':17}{text}" for kind, (args, text) in _OCS_FAULTS.items()),
        "\nA PORT is a number, or a NIC such as s0/o1 (with both its fibres, for `port`).",
    ]
)


class _OcsFaultType(click.Choice[str]):
    """Kind of an OCS fault. The error for a former name gives the present one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if new := _RENAMED_OCS_FAULTS.get(value):
            self.fail(f"{value!r} is now called {new!r}", param, ctx)
        return super().convert(value, param, ctx)


@click.group(invoke_without_command=True, short_help="Inject and clear failures.")
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
    from moefabric.emulator.fabric import hardware_injection
    from moefabric.runner import fault_injection

    run_dir = run_directory(name)
    for failure in fault_injection.logged_failures(run_dir):
        fault_injection.clear(run_dir, failure)
    _print_faults(hardware_injection.clear(run_dir)["faults"])


@fault.command("list", short_help="List the failures.")
@name_option
@json_option
def list_(name: str | None, as_json: bool) -> None:
    """List the present failures of a fabric."""
    from moefabric.emulator.fabric import hardware_injection
    from moefabric.runner import fault_injection

    run_dir = run_directory(name)
    processes = [
        {"kind": str(failure.kind), "what": list(failure.what)}
        for failure in fault_injection.logged_failures(run_dir)
    ]
    _print_faults([*hardware_injection.injected_failures(run_dir), *processes], as_json=as_json)


def _print_faults(faults: Sequence[Mapping[str, Any]], *, as_json: bool = False) -> None:
    lines = [f"{entry['kind']} {' '.join(entry['what'])}" for entry in faults]
    print_result(list(faults), lines or ["no faults"], as_json=as_json)


_clear_option = click.option(
    "--clear", is_flag=True, help="Clear the failures of these components, or all of this kind."
)


@fault.command(short_help="Take the links of NICs down.")
@click.argument("nics", nargs=-1, metavar="NIC...")
@_clear_option
@name_option
@json_option
def nic(nics: tuple[str, ...], clear: bool, name: str | None, as_json: bool) -> None:
    """Take the links of NICs such as s0/e0 and s0/o1 down.

    Neither end of the link has carrier, and frames are dropped.
    """
    _change_hardware("nic", nics, clear=clear, name=name, as_json=as_json)


@fault.command(short_help="Suspend servers.")
@click.argument("servers", nargs=-1, metavar="SERVER...")
@_clear_option
@name_option
@json_option
def server(servers: tuple[str, ...], clear: bool, name: str | None, as_json: bool) -> None:
    """Suspend servers such as s3: stop their agents' processes and take all their NICs down."""
    _change_hardware("server", servers, clear=clear, name=name, as_json=as_json)


def _change_hardware(
    kind: str, names: tuple[str, ...], *, clear: bool, name: str | None, as_json: bool
) -> None:
    from moefabric.emulator.fabric import hardware_injection

    if not names and not clear:
        raise click.UsageError(f"which {kind}?")
    change = hardware_injection.clear if clear else hardware_injection.inject
    _print_faults(change(run_directory(name), kind, names)["faults"], as_json=as_json)


@fault.command(short_help="Let GPUs fail.")
@click.argument("gpus", nargs=-1, required=True, metavar="GPU...")
@click.option("--clear", is_flag=True, help="Let the GPUs work again.")
@name_option
def gpu(gpus: tuple[str, ...], clear: bool, name: str | None) -> None:
    """Let GPUs such as s1/3 fail: their ranks die, and the servers' agents report it to the job."""
    from moefabric.runner import fault_injection

    failure = Failure(FailureKind.GPU, gpus)
    change = fault_injection.clear if clear else fault_injection.inject
    change(run_directory(name), failure)
    click.echo(f"{failure}: {'cleared' if clear else 'failed'}")


@fault.command(short_help="Kill or suspend a controller.")
@click.argument("region")
@click.option(
    "--kill", "action", flag_value="killed", help="Kill its process, which is started again."
)
@click.option("--stop", "action", flag_value="stopped", help="Suspend its process.")
@click.option("--continue", "action", flag_value="continued", help="Resume its process.")
@name_option
def controller(region: str, action: str | None, name: str | None) -> None:
    """Kill or suspend the controller of REGION: r0, or eps for the EPS controller."""
    from moefabric.runner import fault_injection

    if action is None:
        raise click.UsageError("give --kill, --stop or --continue")
    mode = ControllerFailureMode.KILL if action == "killed" else ControllerFailureMode.STOP
    change = fault_injection.clear if action == "continued" else fault_injection.inject
    change(run_directory(name), Failure(FailureKind.CONTROLLER, (region,), mode))
    click.echo(f"controller of {region}: {action}")


@fault.command(help=_OCS_HELP, short_help="Inject one of many faults into an OCS.")
@click.argument("kind", required=False, type=_OcsFaultType(list(_OCS_FAULTS)), metavar="[KIND]")
@click.argument("arguments", nargs=-1)
@click.option("--times", type=click.IntRange(min=1), help="Number of commands that are affected.")
@click.option(
    "--db", type=click.FloatRange(min=0), default=30.0, help="With loss: additional loss in dB."
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
    times: int | None,
    db: float,
    after: bool,
    clear: str | None,
    ocs_name: str,
    name: str | None,
    as_json: bool,
) -> None:
    """Inject a fault into an OCS, or clear it."""
    from moefabric.emulator.fabric import hardware_injection
    from moefabric.emulator.ocs.client import request

    run_dir = run_directory(name)
    wiring = read_wiring(run_dir)
    region = region_of_ocs(wiring, ocs_name)
    command = ocs_command(kind, arguments, times, db, after, clear, wiring, region)
    if kind == "down":
        hardware_injection.inject(run_dir, "ocs", [ocs_name])
    elif kind == "port" and times is None and not any(map(str.isdecimal, arguments)):
        hardware_injection.inject(run_dir, hardware_injection.PORT, arguments)
        command = {"do": "list"}
    elif clear == _ALL:
        for entry in hardware_injection.injected_failures(run_dir):
            affected = (entry.get("ocs"), *entry["what"])
            if entry["kind"] in ("ocs", hardware_injection.PORT) and ocs_name in affected:
                hardware_injection.clear(run_dir, entry["kind"], entry["what"])
    reply = request(run_dir.ocs_socket(region), command)
    without_power = hardware_injection.lacks_power(run_dir, ocs_name)
    lines = [f"{ocs_name}: no power"] * without_power + [*map(_fault_line, reply["faults"])]
    result = reply | {"power": not without_power}
    print_result(result, lines or [f"{ocs_name}: no faults"], as_json=as_json)


def ocs_command(
    kind: str | None,
    arguments: Sequence[str],
    times: int | None,
    db: float,
    after: bool,
    clear: str | None,
    wiring: FabricWiring,
    region: Region,
) -> dict[str, Any]:
    """Return the request to the process of a region's OCS.

    Raises:
        click.UsageError: if the arguments don't fit the kind of fault.
        SpecError: if an argument is neither a number nor a NIC of the region.
    """
    if clear is not None:
        if kind is not None:
            raise click.UsageError("give either a kind of fault or --clear")
        return {"do": "clear", "number": None if clear == _ALL else _number(clear, "--clear")}
    parameters = _OCS_FAULTS[kind][0] if kind else ""
    if arguments and not parameters:
        raise click.UsageError(f"{kind} takes no arguments")
    if parameters and (not arguments or (len(arguments) > 1 and not parameters.endswith("..."))):
        raise click.UsageError(f"{kind} {parameters}")
    if kind in (None, "list", "reboot", "down"):
        return {"do": "reboot" if kind == "reboot" else "list"}
    ports: list[int] = []
    value = 0.0
    match kind:
        case "port" | "stuck":
            both = kind == "port"
            ports = [port for word in arguments for port in _ports(word, wiring, region, both=both)]
        case "loss":
            ports, value = _path(arguments[0], wiring, region), db
        case "delay":
            value = duration_ns(arguments[0]) / 1e9
        case "partial-apply":
            value = _number(arguments[0], kind)
        case "reset":
            value = float(after)
    return {"do": "inject", "fault": {"kind": kind, "ports": ports, "value": value, "times": times}}


def _number(word: str, place: str) -> int:
    try:
        return int(word)
    except ValueError as error:
        raise SpecError([(place, f"{word!r} is not a number")]) from error


def _ports(word: str, wiring: FabricWiring, region: Region, *, both: bool) -> list[int]:
    """Return a port by its number, or the input of a NIC and, with `both`, its output."""
    if word.isdecimal():
        return [int(word)]
    port = _port_of_nic(word, wiring, region)
    assert region.ocs is not None
    return [port, region.ocs.ports + port] if both else [port]


def _port_of_nic(name: str, wiring: FabricWiring, region: Region) -> int:
    nics = {
        str(nic): nic for server in region.servers for nic in wiring.fabric.optical_nics(server)
    }
    if name not in nics:
        message = f"{name!r} is neither the number of a port nor one of {', '.join(nics)}"
        raise SpecError([("", message)])
    return wiring.fabric.ocs_port(nics[name])


def _path(word: str, wiring: FabricWiring, region: Region) -> list[int]:
    """Return the input and the output of a path: `1-17`, or `s0/o0~s1/o0`."""
    assert region.ocs is not None
    source, tilde, destination = word.partition("~")
    if tilde:
        output = region.ocs.ports + _port_of_nic(destination, wiring, region)
        return [_port_of_nic(source, wiring, region), output]
    source, _, destination = word.partition("-")
    return [_number(source, "loss"), _number(destination, "loss")]


def _fault_line(entry: dict[str, Any]) -> str:
    ports = ",".join(map(str, entry["ports"]))
    value = f"{entry['value']:g}" if entry["value"] else ""
    times = f"{entry['times']} times more" if entry["times"] is not None else ""
    return " ".join(filter(None, [f"{entry['number']}:", entry["kind"], ports, value, times]))
