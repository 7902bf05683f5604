"""Wiring diagrams: spines over leaves over servers, and the OCS or patch panel beneath."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from moefabric.report import formatting, svg
from moefabric.report.summary import FabricSummary
from moefabric.runner.result_model import EpsSummary, WiringSummary

_WIDTH = 520.0
_MOST_SERVERS, _MOST_LEAVES = 16, 16
_SPINES, _LEAVES, _SERVERS, _OPTICS = 0.0, 60.0, 130.0, 194.0
"""Vertical middles of the rows of boxes."""
_BOX_HEIGHT, _MARGIN = 26.0, 22.0


@dataclass(frozen=True)
class WiringDiagram:
    """Names of the fabrics with one wiring, its description and its diagram."""

    names: str
    description: str
    picture: Markup


def wiring_diagrams(fabrics: Sequence[FabricSummary]) -> list[WiringDiagram]:
    """Draw each different wiring once; runs that don't tell their wiring have none."""
    return [
        WiringDiagram(names, formatting.printable(wiring.kind), _picture(wiring, names))
        for names, wiring in _by_wiring(fabrics)
        if wiring.regions
    ]


def wiring_descriptions(fabrics: Sequence[FabricSummary]) -> list[tuple[str, str]]:
    """Return names of the fabrics with one wiring, and its description."""
    return [(names, formatting.printable(wiring.kind)) for names, wiring in _by_wiring(fabrics)]


def _by_wiring(fabrics: Sequence[FabricSummary]) -> list[tuple[str, WiringSummary]]:
    groups: dict[str, list[FabricSummary]] = {}
    for fabric in fabrics:
        if fabric.result.wiring.kind:
            groups.setdefault(repr(fabric.result.wiring), []).append(fabric)
    return [
        (", ".join(fabric.name for fabric in group), group[0].result.wiring)
        for group in groups.values()
    ]


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


def _picture(wiring: WiringSummary, names: str) -> Markup:
    regions = _shown_regions(wiring)
    x_of = _row([server for servers in regions for server in servers])
    drawn = [*_electrical(wiring.eps, x_of)] if wiring.eps else []
    if wiring.optical_nics:
        drawn += _optical(wiring, regions, x_of)
    width = min(44.0, 0.8 * _WIDTH / len(x_of))
    for server, x in x_of.items():
        drawn += _box(x, _SERVERS, width, server, "machine", server)
    if hidden := wiring.servers - len(x_of):
        drawn.append(svg.label(_WIDTH - 2, _SERVERS - 20, f"and {hidden} more", "small", "end"))
    first = _SERVERS if wiring.eps is None else _SPINES if wiring.eps.spines else _LEAVES
    top = first - _MARGIN
    bottom = (_OPTICS if wiring.optical_nics else _SERVERS) + _MARGIN
    shifted = svg.tag("g", *drawn, transform=f"translate(0 {-top:g})")
    return svg.picture(_WIDTH, bottom - top, f"Wiring of {names}", [shifted])


def _row(names: Sequence[str]) -> dict[str, float]:
    """Return the horizontal middle of each of these boxes side by side."""
    return {name: _WIDTH * (i + 0.5) / len(names) for i, name in enumerate(names)}


def _electrical(eps: EpsSummary, x_of: Mapping[str, float]) -> Iterator[Markup]:
    """Draw leaves, spines and their links; links first, so that boxes cover their ends."""
    nics_below = {
        leaf: Counter(nic.partition("/")[0] for nic in nics) for leaf, nics in eps.leaves.items()
    }
    shown = [leaf for leaf, servers in nics_below.items() if servers.keys() & x_of.keys()]
    leaf_x, spine_x = _row(shown[:_MOST_LEAVES]), _row(eps.spines)
    rate = f", {eps.uplink_rate_bps / 1e9:.0f} Gb/s" if eps.uplink_rate_bps else ""
    for leaf, x in leaf_x.items():
        for server, nics in nics_below[leaf].items():
            if server in x_of:
                title = f"{server} to {leaf}: {formatting.counted(nics, 'NIC')}"
                yield _link(x_of[server], _SERVERS, x, _LEAVES, nics, "wire", title)
        for spine, end in spine_x.items():
            yield _link(x, _LEAVES, end, _SPINES, 2, "wire", f"{leaf} to {spine}{rate}")
    if spine_x and eps.oversubscription > 1:
        yield svg.label(2, (_SPINES + _LEAVES) / 2 + 4, f"{eps.oversubscription:g}:1", "strong")
    width = min(64.0, 0.8 * _WIDTH / max(1, len(leaf_x)))
    for row, y in ((leaf_x, _LEAVES), (spine_x, _SPINES)):
        for switch, x in row.items():
            yield from _box(x, y, width, switch, "switch", switch)


def _optical(
    wiring: WiringSummary, regions: Sequence[Sequence[str]], x_of: Mapping[str, float]
) -> Iterator[Markup]:
    """Draw the OCS of each region, or the patch panel, and its fibres."""
    nics = wiring.optical_nics
    for number, servers in enumerate(regions):
        left, right = x_of[servers[0]], x_of[servers[-1]]
        middle = (left + right) / 2
        for server in servers:
            end = middle + (x_of[server] - middle) * 0.72
            title = f"{server}: {formatting.counted(nics, 'fibre pair')}"
            yield _link(x_of[server], _SERVERS, end, _OPTICS, nics, "fibre", title)
        name = "patch panel" if wiring.panel else f"ocs{number}"
        title = f"{name}: {nics * len(servers)} ports"
        yield from _box(middle, _OPTICS, max(60.0, (right - left) * 0.8), name, "optics", title)


def _link(
    x1: float, y1: float, x2: float, y2: float, links: int, class_: str, title: str
) -> Markup:
    return svg.line(x1, y1, x2, y2, class_, title=title, width=0.8 + 0.4 * links)


def _box(x: float, y: float, width: float, name: str, class_: str, title: str) -> Iterator[Markup]:
    """Draw a box with its name, or only with its number if the name doesn't fit."""
    left, top = x - width / 2, y - _BOX_HEIGHT / 2
    yield svg.rect(left, top, width, _BOX_HEIGHT, class_, title=title, radius=4)
    fits = svg.text_width(name, 12) <= width - 2
    if text := name if fits else name.lstrip("abcdefghijklmnopqrstuvwxyz"):
        yield svg.label(x, y + 4, text, "small", "middle")
