"""The ring: servers on a circle with their NICs, and the circuits lit between them.

Each NIC is drawn while its name can be read. In larger fabrics a server's NICs become one point, and the thickness of
a line says how many circuits run in parallel.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from moefabric.report import svg, words
from moefabric.report.result import Result

SIZE = 354.0
_MIDDLE, _RADIUS = SIZE / 2, 122.0
_MOST_NICS, _MOST_NAMED = 64, 40


@dataclass(frozen=True)
class _Place:
    """A point of the ring: its angle, 0 at the top and clockwise."""

    angle: float

    def at(self, radius: float) -> tuple[float, float]:
        """Its position at a distance from the middle."""
        return _MIDDLE + radius * math.sin(self.angle), _MIDDLE - radius * math.cos(self.angle)


def ring(result: Result) -> Markup:
    """The circuits of one fabric. Empty where the run doesn't say how many servers there are."""
    servers = _count(result, "servers") or len(result.demand)
    if servers == 0:
        return Markup()
    nics = [f"o{k}" for k in range(_count(result, "optical_nics"))] + [
        f"e{k}" for k in range(_count(result, "electrical_nics"))
    ]
    singly = bool(nics) and servers * len(nics) <= _MOST_NICS
    places = _places(servers, nics if singly else [])
    drawn = _servers(servers)
    drawn += _circuits(result, places, singly=singly)
    if singly:
        drawn += _nics(result, places)
    if not result.circuits:
        drawn.append(svg.label(_MIDDLE, _MIDDLE - 4, "no light", "strong", "middle"))
        drawn.append(svg.label(_MIDDLE, _MIDDLE + 14, "every byte by the EPS", "small", "middle"))
    return svg.picture(SIZE, SIZE, f"Circuits of {words.printable(result.name)}", drawn)


def small(servers: Sequence[str], circuits: Sequence[tuple[str, str]], side: float) -> list[Markup]:
    """A ring of `side` without names: a dot a server, a line a pair with light, the thicker the more circuits."""
    places = {server: _Place(math.tau * i / len(servers)) for i, server in enumerate(servers)}
    pairs = Counter(_pair(circuit) for circuit in circuits)
    drawn = [
        _chord(places, a, b, 2.4 + 3.2 * (count - 1), f"{a} and {b}: {words.counted(count, 'circuit')}")
        for (a, b), count in sorted(pairs.items())
        if a in places and b in places
    ]
    for server, place in places.items():
        x, y = place.at(_RADIUS)
        drawn.append(svg.tag("circle", svg.tag("title", server), cx=x, cy=y, r=9, class_="nic unlit"))
    return [svg.tag("g", *drawn, transform=f"scale({side / SIZE:.4f})")]


def _count(result: Result, key: str) -> int:
    value = result.wiring.get(key)
    return value if isinstance(value, int) and value > 0 else 0


def _span(servers: int) -> float:
    """The angle that one server takes, the gap beside it left out."""
    return math.tau / servers * (0.78 if servers <= 8 else 0.7)


def _places(servers: int, nics: list[str]) -> Mapping[str, _Place]:
    """Where each NIC sits, or each server when no NICs are drawn."""
    places = {}
    for s in range(servers):
        centre = math.tau * s / servers
        places[f"s{s}"] = _Place(centre)
        for k, nic in enumerate(nics):
            places[f"s{s}/{nic}"] = _Place(centre + _span(servers) * ((k + 0.5) / len(nics) - 0.5))
    return places


def _servers(servers: int) -> list[Markup]:
    drawn = []
    half = _span(servers) / 2
    for s in range(servers):
        centre = math.tau * s / servers
        (x1, y1), (x2, y2) = _Place(centre - half).at(_RADIUS), _Place(centre + half).at(_RADIUS)
        large = 1 if 2 * half > math.pi else 0
        arc = f"M{x1:.2f} {y1:.2f}A{_RADIUS:g} {_RADIUS:g} 0 {large} 1 {x2:.2f} {y2:.2f}"
        drawn.append(svg.tag("path", d=arc, class_="server"))
        x, y = _Place(centre).at(_RADIUS + 42 if servers <= 8 else _RADIUS + 24)
        drawn.append(svg.label(x, y + 5, f"s{s}", "strong" if servers <= 8 else "small", "middle"))
    return drawn


def _nics(result: Result, places: Mapping[str, _Place]) -> list[Markup]:
    lit = {end for circuit in result.circuits for end in circuit}
    drawn, named = [], sum("/" in name for name in places) <= _MOST_NAMED
    for name, place in places.items():
        if "/" not in name:
            continue
        nic = name.split("/")[1]
        x, y = place.at(_RADIUS)
        state = "lit" if name in lit else "unlit" if nic.startswith("o") else "electrical"
        title = svg.tag(
            "title", f"{name}: {'by light' if state == 'lit' else 'on the EPS' if nic[0] == 'e' else 'dark'}"
        )
        if state == "electrical":
            drawn.append(
                svg.tag(
                    "rect", title, x=x - 3.5, y=y - 3.5, width=7, height=7, rx=1.5, class_="nic electrical"
                )
            )
        else:
            drawn.append(svg.tag("circle", title, cx=x, cy=y, r=4, class_=f"nic {state}"))
        if named:
            x, y = place.at(_RADIUS + 19)
            drawn.append(svg.label(x, y + 4, nic, "faint", "middle"))
    return drawn


def _circuits(result: Result, places: Mapping[str, _Place], *, singly: bool) -> list[Markup]:
    pairs = Counter(_pair(circuit) for circuit in result.circuits)
    if singly:
        return [
            _chord(places, a, b, 1.8 + 0.8 * (pairs[_pair((a, b))] - 1), f"{a}~{b}")
            for a, b in result.circuits
            if a in places and b in places
        ]
    return [
        _chord(places, a, b, 1.2 + 1.4 * (count - 1), f"{a} and {b}: {words.counted(count, 'circuit')}")
        for (a, b), count in sorted(pairs.items())
        if a in places and b in places
    ]


def _pair(circuit: tuple[str, str]) -> tuple[str, str]:
    a, b = sorted(end.split("/")[0] for end in circuit)
    return a, b


def _chord(places: Mapping[str, _Place], a: str, b: str, width: float, title: str) -> Markup:
    """A line from NIC to NIC, drawn in towards the middle, so that neighbours' circuits don't run along the ring."""
    (x1, y1), (x2, y2) = places[a].at(_RADIUS - 6), places[b].at(_RADIUS - 6)
    pull = 0.25
    cx, cy = _MIDDLE + ((x1 + x2) / 2 - _MIDDLE) * pull, _MIDDLE + ((y1 + y2) / 2 - _MIDDLE) * pull
    curve = f"M{x1:.2f} {y1:.2f}Q{cx:.2f} {cy:.2f} {x2:.2f} {y2:.2f}"
    return svg.tag("path", svg.tag("title", title), d=curve, class_="circuit", stroke_width=width)
