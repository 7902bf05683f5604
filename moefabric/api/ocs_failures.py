"""Faults of an OCS as requests to its process, with ports named by numbers or NICs."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from moefabric.config.input_file import did_you_mean
from moefabric.core.errors import SpecError
from moefabric.core.topology import Fabric, Region, ocs_port
from moefabric.core.units import DURATIONS, LONGEST_NS, duration_ns

OCS_FAULTS: Final = {
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
LOSS_DB: Final = 30.0
"""Additional loss of a path, in dB, unless another one is given."""


def usage_fault(kind: str | None, arguments: Sequence[str]) -> str:
    """Return how the arguments differ from those of a kind of fault; empty if they fit."""
    parameters = OCS_FAULTS[kind][0] if kind else ""
    if arguments and not parameters:
        return f"{kind} takes no arguments"
    if parameters and (not arguments or (len(arguments) > 1 and not parameters.endswith("..."))):
        return f"{kind} needs its arguments: {kind} {parameters}"
    return ""


def ocs_request(
    kind: str | None,
    arguments: Sequence[str],
    fabric: Fabric,
    region: Region,
    *,
    times: int | None = None,
    db: float | None = None,
    after: bool = False,
) -> dict[str, Any]:
    """Return the request to the process of a region's OCS that injects a fault.

    Args:
        kind: A kind of OCS_FAULTS; None, `list` and `down` list the faults.
        arguments: Ports (numbers or NICs), a path, a time or a number, as the kind needs.
        region: The region of the OCS.
        times: Number of commands that are affected; None for all.
        db: With `loss`: additional loss in dB; None for LOSS_DB.
        after: With `reset`: once the command is done, before the reply.

    Raises:
        SpecError: If the kind is unknown, or an argument doesn't fit it.
    """
    if kind is not None and kind not in OCS_FAULTS:
        kinds = [known for known in OCS_FAULTS if known != "list"]
        message = f"{kind!r} is not one of {', '.join(kinds)}{did_you_mean(kind, kinds)}"
        raise SpecError([("", message)])
    if fault := usage_fault(kind, arguments):
        raise SpecError([("", fault)])
    if db is not None and kind != "loss":
        raise SpecError([("db", f"only loss takes it, not {kind or 'a list of faults'}")])
    if after and kind != "reset":
        raise SpecError([("after", f"only reset takes it, not {kind or 'a list of faults'}")])
    if times is not None and kind in (None, "list", "reboot", "down"):
        raise SpecError([("times", f"{kind or 'a list of faults'} affects no commands")])
    if kind in (None, "list", "reboot", "down"):
        return {"do": "reboot" if kind == "reboot" else "list"}
    ports: list[int] = []
    value = 0.0
    match kind:
        case "port" | "stuck":
            both = kind == "port"
            words = [_ports(word, fabric, region, both=both) for word in arguments]
            ports = list(dict.fromkeys(chain.from_iterable(words)))
        case "loss":
            ports = _path(arguments[0], fabric, region)
            value = LOSS_DB if db is None else db
        case "delay":
            value = _seconds(arguments[0])
        case "partial-apply":
            value = number(arguments[0], kind)
        case "reset":
            value = float(after)
    return {"do": "inject", "fault": {"kind": kind, "ports": ports, "value": value, "times": times}}


def number(word: str, place: str) -> int:
    """Return the number in a word.

    Raises:
        SpecError: If it isn't one; `place` says where.
    """
    try:
        return int(word)
    except ValueError as error:
        raise SpecError([(place, f"{word!r} is not a number")]) from error


def region_of_ocs(fabric: Fabric, ocs: str) -> Region:
    """Return the region whose OCS has this name.

    Raises:
        SpecError: If there is no such OCS, or it isn't emulated, so that it can't be asked.
    """
    regions = {known.name: region for region, known in fabric.ocses.items()}
    if ocs in regions:
        region = regions[ocs]
        if address := fabric.ocses[region].control.address:
            remedy = "ask the device itself, and see `moefabric inspect` for its circuits"
            raise SpecError([("", f"{ocs} is not emulated, but at {address}: {remedy}")])
        return region
    reason = f" is not one of {', '.join(regions)}" if regions else ": the fabric has no OCS"
    raise SpecError([("", f"{ocs}{reason}")])


def _seconds(word: str) -> float:
    try:
        delay_ns = duration_ns(word)
    except ValueError as error:
        raise SpecError([("delay", str(error))]) from error
    if not 0 <= delay_ns <= LONGEST_NS:
        raise SpecError([("delay", f"{word!r} is not within {DURATIONS}")])
    return delay_ns / 1e9


def _ports(word: str, fabric: Fabric, region: Region, *, both: bool) -> list[int]:
    """Return a port by its number, or the input of a NIC and, with `both`, its output."""
    if word.isdecimal():
        return [int(word)]
    port = _port_of_nic(word, fabric, region)
    return [port, fabric.ocses[region].ports + port] if both else [port]


def _port_of_nic(name: str, fabric: Fabric, region: Region) -> int:
    nics = {str(nic): nic for server in region.servers for nic in fabric.optical_nics(server)}
    if name not in nics:
        message = f"{name!r} is neither the number of a port nor one of {', '.join(nics)}"
        raise SpecError([("", message)])
    return ocs_port(fabric, nics[name])


def _path(word: str, fabric: Fabric, region: Region) -> list[int]:
    """Return the input and the output of a path: `1-17`, or `s0/o0~s1/o0`."""
    source, tilde, destination = word.partition("~")
    if tilde:
        output = fabric.ocses[region].ports + _port_of_nic(destination, fabric, region)
        return [_port_of_nic(source, fabric, region), output]
    source, dash, destination = word.partition("-")
    if not dash:
        raise SpecError([("loss", f"{word!r} is no path such as 1-17 or s0/o0~s1/o0")])
    return [number(source, "loss"), number(destination, "loss")]
