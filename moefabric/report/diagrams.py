"""Diagrams of connections: circuits on a circle of servers, and the wiring of a fabric."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from markupsafe import Markup

from moefabric.report.chart import Panel, figure
from moefabric.report.formatting import counted, printable
from moefabric.report.marks import Axis, Box, Dot, Line, Mark, Text
from moefabric.report.summary import FabricSummary
from moefabric.results.model import EpsSummary, WiringSummary

_SIZE: Final = 354.0
"""Width and height of a diagram of circuits."""
_SPAN: Final = Axis(-1.42, 1.42)
"""Both axes of such a diagram; the circle has radius 1."""
_MOST_NICS, _MOST_NAMED = 64, 40
"""NICs up to which each is drawn, and has its name."""
_WIRING_WIDTH: Final = 520.0
_MOST_SERVERS, _MOST_LEAVES = 16, 16
_OPTICS, _SERVERS, _LEAVES, _SPINES = 0.0, 64.0, 134.0, 194.0
"""Heights of the rows of boxes in a diagram of wiring."""

Circuits = Sequence[tuple[str, str]]


# --- circuits ------------------------------------------------------------------------------------


def circuit_chords(fabric: FabricSummary) -> Markup:
    """Draw the circuits of one fabric; empty if the run doesn't tell the number of servers.

    Each NIC is drawn while its name is legible. In larger fabrics a server's NICs become one point,
    and the width of a chord stands for the number of parallel circuits.
    """
    wiring, circuits = fabric.result.wiring, fabric.result.circuits
    if (servers := wiring.servers or len(fabric.demand)) == 0:
        return Markup()
    nics = [f"o{k}" for k in range(wiring.optical_nics)]
    nics += [f"e{k}" for k in range(wiring.electrical_nics)]
    if servers * len(nics) > _MOST_NICS:
        nics = []
    angles = _angles(servers, nics)
    marks = list(_server_arcs(servers))
    if nics:
        marks += [*_nic_chords(angles, circuits), *_nics(angles, circuits)]
    else:
        marks += _pair_chords(angles, circuits, 1.2, 1.4)
    if not circuits:
        marks.append(Text(0, 0, "no circuits", "strong", "middle"))
        marks.append(Text(0, 0, "all bytes by EPS", "small", "middle", dy=22))
    return figure(f"Circuits of {fabric.name}", [Panel(_SPAN, _SPAN, marks, _SIZE)], width=_SIZE)


def region_circuits(fabric: FabricSummary) -> Markup:
    """Draw the circuits of every region; empty without several regions or without circuits."""
    if not fabric.regions or not fabric.result.circuits:
        return Markup()
    panels = []
    for region, servers in fabric.regions.items():
        angles = {server: math.tau * i / len(servers) for i, server in enumerate(servers)}
        marks = list(_pair_chords(angles, fabric.circuits_of(servers), 0.9, 1.2))
        marks += [Dot(*_point(angle), "nic unlit", server) for server, angle in angles.items()]
        panels.append(Panel(_SPAN, _SPAN, marks, 106, region))
    return figure(f"Circuits of {fabric.name} in every region", panels, columns=8)


def _point(angle: float, radius: float = 1.0) -> tuple[float, float]:
    """Return the point at an angle (0 at the top, clockwise) and a distance from the middle."""
    return radius * math.sin(angle), radius * math.cos(angle)


def _arc(servers: int) -> float:
    """Return the angle of one server's arc, without the gap beside it."""
    return math.tau / servers * (0.78 if servers <= 8 else 0.7)


def _angles(servers: int, nics: Sequence[str]) -> dict[str, float]:
    """Return the angle of each server and of each NIC that is drawn."""
    angles = {}
    for s in range(servers):
        centre = angles[f"s{s}"] = math.tau * s / servers
        for k, nic in enumerate(nics):
            angles[f"s{s}/{nic}"] = centre + _arc(servers) * ((k + 0.5) / len(nics) - 0.5)
    return angles


def _server_arcs(servers: int) -> Iterator[Mark]:
    distance, class_ = (1.34, "strong") if servers <= 8 else (1.2, "small")
    for s in range(servers):
        centre = math.tau * s / servers
        points = [_point(centre + _arc(servers) * (n / 12 - 0.5)) for n in range(13)]
        yield Line(points, "server")
        yield Text(*_point(centre, distance), f"s{s}", class_, "middle")


def _nics(angles: Mapping[str, float], circuits: Circuits) -> Iterator[Mark]:
    lit = {end for circuit in circuits for end in circuit}
    names = [name for name in angles if "/" in name]
    for name in names:
        nic = name.split("/")[1]
        state, text = ("lit", "lit") if name in lit else ("unlit", "dark")
        if nic.startswith("e"):
            state, text = "electrical", "on the EPS"
        yield Dot(*_point(angles[name]), f"nic {state}", f"{name}: {text}", 4.0)
        if len(names) <= _MOST_NAMED:
            yield Text(*_point(angles[name], 1.16), nic, "faint", "middle")


def _nic_chords(angles: Mapping[str, float], circuits: Circuits) -> Iterator[Mark]:
    pairs = Counter(_pair(circuit) for circuit in circuits)
    for a, b in circuits:
        if a in angles and b in angles:
            width = 1.8 + 0.8 * (pairs[_pair((a, b))] - 1)
            yield _chord(angles[a], angles[b], width, f"{a}~{b}")


def _pair_chords(
    angles: Mapping[str, float], circuits: Circuits, width: float, more: float
) -> Iterator[Mark]:
    """Yield a chord per pair of servers, `more` wider for each circuit after the first."""
    for (a, b), count in sorted(Counter(_pair(circuit) for circuit in circuits).items()):
        if a in angles and b in angles:
            title = f"{a} and {b}: {counted(count, 'circuit')}"
            yield _chord(angles[a], angles[b], width + more * (count - 1), title)


def _pair(circuit: tuple[str, str]) -> tuple[str, str]:
    a, b = sorted(end.split("/")[0] for end in circuit)
    return a, b


def _chord(angle_a: float, angle_b: float, width: float, title: str) -> Line:
    """Return a curve that bends towards the middle, away from the circle."""
    ends = np.array([_point(angle_a, 0.95), _point(angle_b, 0.95)])
    t = np.linspace(0.0, 1.0, 17)[:, None]
    start, end, middle = *ends, ends.sum(axis=0) / 8
    bezier = (1 - t) ** 2 * start + 2 * t * (1 - t) * middle + t**2 * end
    return Line(bezier.tolist(), "circuit", title, width)


# --- wiring --------------------------------------------------------------------------------------


def wirings(fabrics: Sequence[FabricSummary]) -> dict[str, WiringSummary]:
    """Return each different wiring that runs tell, by the names of the fabrics that have it."""
    groups: dict[str, list[FabricSummary]] = {}
    for fabric in fabrics:
        if fabric.result.wiring.kind:
            groups.setdefault(repr(fabric.result.wiring), []).append(fabric)
    return {
        ", ".join(fabric.name for fabric in group): group[0].result.wiring
        for group in groups.values()
    }


def wiring_diagrams(fabrics: Sequence[FabricSummary]) -> list[tuple[str, str, Markup]]:
    """Draw each different wiring once, after names of its fabrics and its description."""
    shown = ((names, wiring) for names, wiring in wirings(fabrics).items() if wiring.regions)
    return [(names, printable(wiring.kind), _wiring(wiring, names)) for names, wiring in shown]


def _shown_regions(wiring: WiringSummary) -> list[list[str]]:
    """Return the servers of the regions that fit; the first region is cut if it must be."""
    shown: list[list[str]] = []
    room = _MOST_SERVERS
    for servers in wiring.regions.values():
        if shown and len(servers) > room:
            break
        shown.append(servers[:room])
        room -= len(shown[-1])
    return shown


def _wiring(wiring: WiringSummary, names: str) -> Markup:
    """Draw spines over leaves over servers, and the OCS or patch panel beneath."""
    shown = _shown_regions(wiring)
    x_of = _row([server for servers in shown for server in servers])
    marks = [*_electrical(wiring.eps, x_of)] if wiring.eps else []
    if wiring.optical_nics:
        marks += _optical(wiring, shown, x_of)
    width = min(44.0 / _WIRING_WIDTH, 0.8 / len(x_of))
    marks += [_box(x, _SERVERS, width, server, "machine") for server, x in x_of.items()]
    if hidden := wiring.servers - len(x_of):
        marks.append(Text(1.0, _SERVERS + 20, f"and {hidden} more", "small", "end"))
    highest = _SERVERS if wiring.eps is None else _SPINES if wiring.eps.spines else _LEAVES
    low, high = (_OPTICS if wiring.optical_nics else _SERVERS) - 14, highest + 14
    panel = Panel(Axis(), Axis(low, high), marks, high - low, right=0)
    return figure(f"Wiring of {names}", [panel], width=_WIRING_WIDTH)


def _row(names: Sequence[str]) -> dict[str, float]:
    """Return the horizontal middle of each of these boxes side by side."""
    return {name: (i + 0.5) / len(names) for i, name in enumerate(names)}


def _electrical(eps: EpsSummary, x_of: Mapping[str, float]) -> Iterator[Mark]:
    """Yield leaves, spines and their links; links first, so that boxes cover their ends."""
    nics_below = {
        leaf: Counter(nic.partition("/")[0] for nic in nics) for leaf, nics in eps.leaves.items()
    }
    shown = [leaf for leaf, servers in nics_below.items() if servers.keys() & x_of.keys()]
    leaf_x, spine_x = _row(shown[:_MOST_LEAVES]), _row(eps.spines)
    rate = f", {eps.uplink_rate_bps / 1e9:.0f} Gb/s" if eps.uplink_rate_bps else ""
    for leaf, x in leaf_x.items():
        for server, nics in nics_below[leaf].items():
            if server in x_of:
                title = f"{server} to {leaf}: {counted(nics, 'NIC')}"
                yield _link((x_of[server], _SERVERS), (x, _LEAVES), nics, "wire", title)
        for spine, end in spine_x.items():
            yield _link((x, _LEAVES), (end, _SPINES), 2, "wire", f"{leaf} to {spine}{rate}")
    if spine_x and eps.oversubscription > 1:
        yield Text(0.0, (_SPINES + _LEAVES) / 2, f"{eps.oversubscription:g}:1", "strong")
    width = min(64.0 / _WIRING_WIDTH, 0.8 / max(1, len(leaf_x)))
    for row, y in ((leaf_x, _LEAVES), (spine_x, _SPINES)):
        yield from (_box(x, y, width, switch, "switch") for switch, x in row.items())


def _optical(
    wiring: WiringSummary, shown: Sequence[Sequence[str]], x_of: Mapping[str, float]
) -> Iterator[Mark]:
    """Yield the OCS of each region, or the patch panel, and its fibres."""
    nics = wiring.optical_nics
    for number, servers in enumerate(shown):
        left, right = x_of[servers[0]], x_of[servers[-1]]
        middle = (left + right) / 2
        for server in servers:
            end = middle + (x_of[server] - middle) * 0.72
            title = f"{server}: {counted(nics, 'fibre pair')}"
            yield _link((x_of[server], _SERVERS), (end, _OPTICS), nics, "fibre", title)
        name = "patch panel" if wiring.panel else f"ocs{number}"
        title, width = f"{name}: {nics * len(servers)} ports", max(0.12, (right - left) * 0.8)
        yield _box(middle, _OPTICS, width, name, "optics", title)


def _link(
    start: tuple[float, float], end: tuple[float, float], links: int, class_: str, title: str
) -> Line:
    return Line([start, end], class_, title, 0.8 + 0.4 * links)


def _box(x: float, y: float, width: float, name: str, class_: str, title: str = "") -> Box:
    """Return a box with its name, or only with its number if the name doesn't fit."""
    texts = name, name.lstrip("abcdefghijklmnopqrstuvwxyz")
    sides, ends = (x - width / 2, x + width / 2), (y - 13, y + 13)
    return Box(sides, ends, class_, title or name, texts=[t for t in texts if t], radius=4)
