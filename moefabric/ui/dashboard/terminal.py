"""View of a running fabric for a terminal: rates, circuits, failures and the run."""

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from moefabric.core.units import rate_text
from moefabric.report.formatting import printable
from moefabric.report.tables import VERDICT_STYLES, Cell, Table, rich_table
from moefabric.results.model import Verdict
from moefabric.ui.dashboard.fabric_source import FabricSource
from moefabric.ui.dashboard.monitor import FabricMonitor

_PERIOD_S: Final = 1.0
_UNBOUNDED: Final = 1_000_000
_EVENTS: Final = 5
"""Last events that are shown."""
_MBPS: Final = 1e6
State = Mapping[str, Any]
"""Last value of each topic of a `FabricMonitor`."""


def watch(source: FabricSource, live: Live) -> None:
    """Show a fabric until it ends, of which a MoefabricError tells."""
    for state in _readings(source):
        live.update(view(state, live.console.height), refresh=True)


def print_once(source: FabricSource) -> None:
    """Print the picture of a second, with all servers."""
    _, state = islice(_readings(source), 2)
    Console().print(view(state, _UNBOUNDED))


def _readings(source: FabricSource) -> Iterator[State]:
    """Yield the state of a fabric, each second."""
    monitor, state = FabricMonitor(source), dict[str, Any]()
    while True:
        state |= monitor.poll().state
        yield state
        time.sleep(_PERIOD_S)  # rates are means of this time


def view(state: State, rows: int) -> RenderableType:
    """Return the picture of a fabric.

    Args:
        state: What is known of it.
        rows: Lines of the terminal. The busiest servers are shown if there is no room for all.
    """
    lines = [*_head(state), *_run(state), *_failures(state)]
    events = [_event(event) for event in state.get("events", [])[-_EVENTS:]]
    room = max(1, rows - len(lines) - len(events) - 6)
    servers = _servers(state)
    shown = sorted(servers, key=lambda row: -row[1])[:room]
    order = [row[0] for row in servers]
    shown.sort(key=lambda row: order.index(row[0]))
    table = Table(
        ("server", "light sent", "received", "EPS sent", "received", "circuits to"),
        [[name, *map(_rate, rates), peers] for name, _, rates, peers in shown],
        texts=("circuits to",),
    )
    hidden = len(servers) - len(shown)
    rest = [Text(f"{hidden} servers with less traffic", style="dim")] if hidden else []
    return Group(*lines, Text(), rich_table(table), *rest, Text(), *events)


def _head(state: State) -> Iterator[Text]:
    fabric = state["fabric"]
    servers = sum(len(region["servers"]) for region in fabric["regions"])
    what = f"{servers} servers, NICs of {fabric['nic_rate']}, {fabric['description']}"
    yield Text.assemble((fabric["name"], "bold"), f"  {what}")


def _run(state: State) -> Iterator[Text]:
    """Yield what the run does and its verdict so far."""
    if not (run := state.get("run")):
        yield Text("no run uses it", style="dim")
        return
    verdict, doing = Verdict(run["verdict"]), run["operation"] or {}
    words = [
        f"{key} {doing[key]}" for key in ("layer", "micro_batch") if doing.get(key) is not None
    ]
    what = " ".join(filter(None, (doing.get("direction"), doing.get("kind"))))
    yield Text.assemble(
        f"run {run['experiment']}, {run['fabric']} ({run['policy']}), ",
        f"iteration {run['iteration'] + 1} of {run['iterations']}, ",
        ", ".join(filter(None, (what, *words))).replace("_", "-"),
        "  verdict so far ",
        (verdict.value, VERDICT_STYLES[verdict]),
    )
    for reason in run["reasons"][:2]:
        yield Text(f"  {printable(reason)}", style="dim")
    for iteration in run["done"][-1:]:
        error = iteration["measured_s"] / iteration["predicted_s"] - 1
        yield Text(
            f"last iteration {iteration['measured_s']:.3f} s, {error:+.1%} against its prediction, "
            f"{iteration['bytes_by_light'] / max(1, iteration['bytes']):.0%} of the bytes by light"
        )


def _failures(state: State) -> Iterator[Text]:
    for failure in state.get("failures", ()):
        yield Text(f"failed: {failure['kind']} {', '.join(failure['what'])}", style="bold red")
    for region, circuits in state.get("circuits", {}).items():
        if circuits["dark"]:
            yield Text(f"dark in {region}: {', '.join(circuits['dark'])}", style="bold red")


def _servers(state: State) -> list[tuple[str, int, Sequence[int], str]]:
    """Return of each server its name, the sum of its rates, its four rates and its circuits."""
    regions = state["fabric"]["regions"]
    lit = chain.from_iterable(region["lit"] for region in state.get("circuits", {}).values())
    peers: dict[str, list[str]] = {}
    for circuit in lit:
        ends = [end.partition("/")[0] for end in circuit.split("~")]
        for server, peer in (ends, reversed(ends)):
            peers.setdefault(server, []).append(peer)
    servers = [server for region in regions for server in region["servers"]]
    nics = [nic for server in servers for nic in server["nics"]]
    load = state.get("load") or {"sent": [0] * len(nics), "received": [0] * len(nics)}
    sums = {server["name"]: [0, 0, 0, 0] for server in servers}
    for nic, sent, received in zip(nics, load["sent"], load["received"], strict=True):
        name, _, port = nic.partition("/")
        first = 0 if port.startswith("o") else 2
        sums[name][first] += sent
        sums[name][first + 1] += received
    return [
        (name, sum(rates), rates, " ".join(peers.get(name, []))) for name, rates in sums.items()
    ]


def _rate(mbps: int) -> Cell:
    return Cell(rate_text(mbps * _MBPS) if mbps else "-", style="" if mbps else "dim")


def _event(event: Mapping[str, Any]) -> Text:
    at = time.strftime("%H:%M:%S", time.gmtime(float(event["at"])))
    what = f"{event.get('ocs', ''):6} {event['kind']:14} {event['text']}".strip()
    return Text(f"{at} {printable(what)}", style="dim", overflow="ellipsis", no_wrap=True)
