"""`fault ocs`: make an optical switch suffer, and clear it again."""

import json
from collections.abc import Sequence
from typing import Any, Final

import click

from moefabric.commands.fabric import only_running, wiring_of
from moefabric.errors import SpecError
from moefabric.management import RunDir, Wiring
from moefabric.topology import Nic, Region
from moefabric.units import duration_ns

_KINDS: Final = (
    "port", "stuck", "loss", "deny", "delay", "never", "reset", "partial", "reboot", "down", "list",
)  # fmt: skip
_ALL: Final = "all"
_HELP: Final = """Make an optical switch fail in a way, KIND; without KIND: list what it suffers from.

\b
port PORT...   no light through these ports, and no commands for them
stuck PORT...  the mirrors of these inputs stay where they are
loss PATH      a path (1-17, or s0/o0~s1/o0 one way) loses --db more
deny           commands are refused
delay TIME     completion is told so much later
never          completion is never told
reset          the connection breaks off before a command is done
partial N      of a command's cross-connects only N are made
reboot         it boots, and hangs up; circuits go if `startup: volatile`
down           it has no power: no light, and nobody answers
list           what it suffers from now

A PORT is a number, or a NIC such as s0/o1 (with both its fibres, for `port`).
"""


@click.command(help=_HELP, short_help="Make an optical switch fail, in one of many ways.")
@click.argument("kind", required=False, type=click.Choice(_KINDS), metavar="[KIND]")
@click.argument("words", nargs=-1)
@click.option("--times", type=click.IntRange(min=1), help="So many commands suffer from it, then it is over.")
@click.option(
    "--db", type=click.FloatRange(min=0), default=30.0, show_default=True, help="With loss: decibels."
)
@click.option("--after", is_flag=True, help="With reset: break off when the command is done, unanswered.")
@click.option(
    "--clear",
    is_flag=False,
    flag_value=_ALL,
    metavar="[NUMBER]",
    help="Clear the fault of this number, or all.",
)
@click.option("--ocs", "chosen", default="ocs0", show_default=True, help="The optical switch.")
@click.option("--name", help="The fabric, where more than one is up.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ocs(
    kind: str | None,
    words: tuple[str, ...],
    times: int | None,
    db: float,
    after: bool,
    clear: str | None,
    chosen: str,
    name: str | None,
    as_json: bool,
) -> None:
    """Take something from an optical switch, and give it back."""
    from emulator import injection
    from emulator.asking import ask

    fabric = name or only_running()
    wiring, run_dir = wiring_of(fabric), RunDir.named(fabric)
    region = region_of(wiring, chosen)
    asked = _asked(kind, words, times, db, after, clear, wiring, region)
    if kind == "down":
        injection.inject(run_dir, "ocs", [chosen])
    elif kind == "port" and times is None and not any(map(str.isdecimal, words)):
        injection.inject(run_dir, injection.PORT, words)
        asked = {"do": "list"}
    elif clear == _ALL:
        for one in injection.injected(run_dir):
            if one["kind"] in ("ocs", injection.PORT) and chosen in (one.get("ocs"), *one["what"]):
                injection.clear(run_dir, one["kind"], one["what"])
    said = ask(run_dir.plant(region), asked)
    without_power = injection.powerless(run_dir, chosen)
    if as_json:
        click.echo(json.dumps(said | {"power": not without_power}))
        return
    lines = [f"{chosen}: no power"] * without_power + [_line(one) for one in said["faults"]]
    for line in lines or [f"{chosen}: no faults"]:
        click.echo(line)


def _asked(
    kind: str | None,
    words: Sequence[str],
    times: int | None,
    db: float,
    after: bool,
    clear: str | None,
    wiring: Wiring,
    region: Region,
) -> dict[str, Any]:
    """What the switch's process is asked."""
    if clear is not None:
        if kind is not None:
            raise click.UsageError("give either a kind of fault or --clear")
        return {"do": "heal", "number": None if clear == _ALL else _number(clear, "--clear")}
    if kind in (None, "list", "reboot", "down"):
        if words:
            raise click.UsageError(f"{kind} takes nothing more")
        return {"do": "reboot" if kind == "reboot" else "list"}
    assert kind is not None
    ports: list[int] = []
    value = 0.0
    match kind:
        case "port" | "stuck":
            ports = [port for word in words for port in _ports(word, wiring, region, both=kind == "port")]
            _some(ports, f"{kind} PORT...")
        case "loss":
            ports, value = _path(_one(words, "loss PATH"), wiring, region), db
        case "delay":
            value = duration_ns(_one(words, "delay TIME")) / 1e9
        case "partial":
            value = _number(_one(words, "partial N"), "partial")
        case "reset":
            value = float(after)
    return {"do": "inject", "fault": {"ill": kind, "ports": ports, "value": value, "times": times}}


def _some(found: Sequence[object], usage: str) -> None:
    if not found:
        raise click.UsageError(usage)


def _one(words: Sequence[str], usage: str) -> str:
    if len(words) != 1:
        raise click.UsageError(usage)
    return words[0]


def _number(word: str, place: str) -> int:
    try:
        return int(word)
    except ValueError as wrong:
        raise SpecError([(place, f"{word!r} is not a number")]) from wrong


def _ports(word: str, wiring: Wiring, region: Region, *, both: bool) -> list[int]:
    """A port as a number, or a NIC's input (and output)."""
    if word.isdecimal():
        return [int(word)]
    number = _port_of(word, wiring, region)
    assert region.ocs is not None
    return [number, region.ocs.ports + number] if both else [number]


def _port_of(word: str, wiring: Wiring, region: Region) -> int:
    known = {str(nic): nic for server in region.servers for nic in wiring.fabric.optical_nics(server)}
    nic: Nic | None = known.get(word)
    if nic is None:
        raise SpecError([("", f"{word!r} is neither a port's number nor one of {', '.join(known)}")])
    return wiring.fabric.ocs_port(nic)


def _path(word: str, wiring: Wiring, region: Region) -> list[int]:
    """An input and an output: `1-17`, or `s0/o0~s1/o0`."""
    assert region.ocs is not None
    a, tilde, b = word.partition("~")
    if tilde:
        return [_port_of(a, wiring, region), region.ocs.ports + _port_of(b, wiring, region)]
    a, _, b = word.partition("-")
    return [_number(a, "loss"), _number(b, "loss")]


def _line(one: dict[str, Any]) -> str:
    ports = ",".join(map(str, one["ports"]))
    value = f"{one['value']:g}" if one["value"] else ""
    times = f"{one['times']} times more" if one["times"] is not None else ""
    return " ".join(filter(None, [f"{one['number']}:", one["ill"], ports, value, times]))


def region_of(wiring: Wiring, chosen: str) -> Region:
    """The region whose switch is called so."""
    found = {region.ocs.name: region for region in wiring.fabric.regions if region.ocs is not None}
    if chosen not in found:
        said = f" is not one of {', '.join(found)}" if found else ": the fabric has no optical switch"
        raise SpecError([("", f"{chosen}{said}")])
    return found[chosen]
