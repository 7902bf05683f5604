"""Chord diagram of circuits: servers on a circle with their NICs, and the circuits between them.

Each NIC is drawn while its name is legible. In larger fabrics a server's NICs become one point, and
the width of a chord stands for the number of parallel circuits.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from moefabric.report import formatting, svg
from moefabric.report.summary import FabricSummary

_SIZE = 354.0
_MIDDLE, _RADIUS = _SIZE / 2, 122.0
_MOST_NICS, _MOST_NAMED = 64, 40

Circuits = Sequence[tuple[str, str]]


def circuit_chords(fabric: FabricSummary) -> Markup:
    """Draw the circuits of one fabric; empty if the run doesn't tell the number of servers."""
    wiring, circuits = fabric.result.wiring, fabric.result.circuits
    servers = wiring.servers or len(fabric.demand)
    if servers == 0:
        return Markup()
    nics = [f"o{k}" for k in range(wiring.optical_nics)]
    nics += [f"e{k}" for k in range(wiring.electrical_nics)]
    if servers * len(nics) > _MOST_NICS:
        nics = []
    angles = _angles(servers, nics)
    drawn = _servers(servers)
    if nics:
        drawn += _nic_chords(angles, circuits) + _nics(angles, circuits)
    else:
        drawn += _pair_chords(angles, circuits, 1.2, 1.4)
    if not circuits:
        drawn.append(svg.label(_MIDDLE, _MIDDLE - 4, "no circuits", "strong", "middle"))
        drawn.append(svg.label(_MIDDLE, _MIDDLE + 14, "all bytes by EPS", "small", "middle"))
    return svg.picture(_SIZE, _SIZE, f"Circuits of {fabric.name}", drawn)


def small_chords(servers: Sequence[str], circuits: Circuits, side: float) -> Markup:
    """Draw the circuits of one region without names, in a square of `side` pixels."""
    angles = {server: math.tau * i / len(servers) for i, server in enumerate(servers)}
    drawn = _pair_chords(angles, circuits, 2.4, 3.2)
    for server, angle in angles.items():
        drawn.append(svg.circle(*_point(angle, _RADIUS), 9, "nic unlit", server))
    return svg.tag("g", *drawn, transform=f"scale({side / _SIZE:.4f})")


def _point(angle: float, radius: float) -> tuple[float, float]:
    """Return the point at an angle (0 at the top, clockwise) and a distance from the middle."""
    return _MIDDLE + radius * math.sin(angle), _MIDDLE - radius * math.cos(angle)


def _arc(servers: int) -> float:
    """Return the angle of one server's arc, without the gap beside it."""
    return math.tau / servers * (0.78 if servers <= 8 else 0.7)


def _angles(servers: int, nics: Sequence[str]) -> dict[str, float]:
    """Return the angle of each server and of each NIC that is drawn."""
    angles = {}
    for s in range(servers):
        centre = math.tau * s / servers
        angles[f"s{s}"] = centre
        for k, nic in enumerate(nics):
            angles[f"s{s}/{nic}"] = centre + _arc(servers) * ((k + 0.5) / len(nics) - 0.5)
    return angles


def _servers(servers: int) -> list[Markup]:
    drawn, half = [], _arc(servers) / 2
    large_arc = 1 if 2 * half > math.pi else 0
    distance, class_ = (42, "strong") if servers <= 8 else (24, "small")
    for s in range(servers):
        centre = math.tau * s / servers
        (x1, y1), (x2, y2) = _point(centre - half, _RADIUS), _point(centre + half, _RADIUS)
        arc = f"M{x1:.2f} {y1:.2f}A{_RADIUS:g} {_RADIUS:g} 0 {large_arc} 1 {x2:.2f} {y2:.2f}"
        drawn.append(svg.tag("path", d=arc, class_="server"))
        x, y = _point(centre, _RADIUS + distance)
        drawn.append(svg.label(x, y + 5, f"s{s}", class_, "middle"))
    return drawn


def _nics(angles: Mapping[str, float], circuits: Circuits) -> list[Markup]:
    lit = {end for circuit in circuits for end in circuit}
    names = [name for name in angles if "/" in name]
    drawn = []
    for name in names:
        nic, (x, y) = name.split("/")[1], _point(angles[name], _RADIUS)
        if nic.startswith("e"):
            title = f"{name}: on the EPS"
            drawn.append(
                svg.rect(x - 3.5, y - 3.5, 7, 7, "nic electrical", title=title, radius=1.5)
            )
        else:
            state, text = ("lit", "lit") if name in lit else ("unlit", "dark")
            drawn.append(svg.circle(x, y, 4, f"nic {state}", f"{name}: {text}"))
        if len(names) <= _MOST_NAMED:
            x, y = _point(angles[name], _RADIUS + 19)
            drawn.append(svg.label(x, y + 4, nic, "faint", "middle"))
    return drawn


def _nic_chords(angles: Mapping[str, float], circuits: Circuits) -> list[Markup]:
    pairs = Counter(_pair(circuit) for circuit in circuits)
    return [
        _chord(angles[a], angles[b], 1.8 + 0.8 * (pairs[_pair((a, b))] - 1), f"{a}~{b}")
        for a, b in circuits
        if a in angles and b in angles
    ]


def _pair_chords(
    angles: Mapping[str, float], circuits: Circuits, width: float, more: float
) -> list[Markup]:
    """Draw a chord per pair of servers, `more` wider for each circuit after the first."""
    pairs = sorted(Counter(_pair(circuit) for circuit in circuits).items())
    return [
        _chord(
            angles[a],
            angles[b],
            width + more * (count - 1),
            f"{a} and {b}: {formatting.counted(count, 'circuit')}",
        )
        for (a, b), count in pairs
        if a in angles and b in angles
    ]


def _pair(circuit: tuple[str, str]) -> tuple[str, str]:
    a, b = sorted(end.split("/")[0] for end in circuit)
    return a, b


def _chord(angle_a: float, angle_b: float, width: float, title: str) -> Markup:
    """Draw a curve that bends towards the middle, so that short chords don't follow the circle."""
    (x1, y1), (x2, y2) = _point(angle_a, _RADIUS - 6), _point(angle_b, _RADIUS - 6)
    cx, cy = (_MIDDLE + ((p + q) / 2 - _MIDDLE) * 0.25 for p, q in ((x1, x2), (y1, y2)))
    curve = f"M{x1:.2f} {y1:.2f}Q{cx:.2f} {cy:.2f} {x2:.2f} {y2:.2f}"
    return svg.shape("path", title, d=curve, class_="circuit", stroke_width=width)
