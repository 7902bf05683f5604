"""The networks: what each fabric is wired as. Spines over leaves over servers, and beneath them the optical switches or the patch panel."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from moefabric.report import svg, words
from moefabric.report.result import Result

WIDTH = 520.0
_MOST_SERVERS, _MOST_LEAVES = 16, 16
_SPINES, _LEAVES, _SERVERS, _OPTICS = 0.0, 60.0, 130.0, 194.0
_TALL, _ROOM = 26.0, 22.0
"""Where each row's middle is; the height of a box, and of what is left free above and below."""


@dataclass(frozen=True)
class Network:
    """One fabric's wiring: its name, what it is in words, and the picture."""

    name: str
    kind: str
    picture: Markup


def networks(results: Sequence[Result]) -> list[Network]:
    """A picture for each fabric whose run tells what it is wired as; fabrics that are wired alike share one."""
    return [
        Network(
            _names(group), words.printable(group[0].wiring["kind"]), _picture(group[0].wiring, group[0].name)
        )
        for group in _alike(results)
        if _regions(group[0].wiring)
    ]


def kinds(results: Sequence[Result]) -> list[tuple[str, str]]:
    """What each fabric is, in words: fabrics that are wired alike, and their kind."""
    return [(_names(group), words.printable(group[0].wiring["kind"])) for group in _alike(results)]


def _alike(results: Sequence[Result]) -> list[list[Result]]:
    """Fabrics whose run tells what they are wired as, by that."""
    alike: dict[str, list[Result]] = {}
    for result in results:
        if result.wiring.get("kind"):
            alike.setdefault(str(result.wiring), []).append(result)
    return list(alike.values())


def _names(group: Sequence[Result]) -> str:
    return ", ".join(words.printable(result.name) for result in group)


def _regions(wiring: Mapping[str, Any]) -> dict[str, list[str]]:
    """The servers of each region that are drawn: whole regions up to what finds room, the first one cut if it must be."""
    said, drawn, room = wiring.get("regions"), dict[str, list[str]](), _MOST_SERVERS
    if not isinstance(said, Mapping):
        return {}
    for name, servers in said.items():
        if drawn and len(servers) > room:
            break
        drawn[str(name)] = [str(server) for server in servers][:room]
        room -= len(drawn[str(name)])
    return drawn


def _picture(wiring: Mapping[str, Any], name: str) -> Markup:
    regions = _regions(wiring)
    servers = [server for each in regions.values() for server in each]
    at = dict(zip(servers, _row(len(servers)), strict=True))
    drawn = [*_electrical(wiring, at), *_optical(wiring, regions, at)]
    wide = min(44.0, 0.8 * WIDTH / len(servers))
    for server, x in at.items():
        drawn += _box(x, _SERVERS, wide, server, "machine", server)
    if left := int(wiring.get("servers") or 0) - len(servers):
        drawn.append(svg.label(WIDTH - 2, _SERVERS - 20, f"and {left} more", "small", "end"))
    top, bottom = _extent(wiring)
    shifted = svg.tag("g", *drawn, transform=f"translate(0 {-top:g})")
    return svg.picture(WIDTH, bottom - top, f"What {words.printable(name)} is wired as", [shifted])


def _extent(wiring: Mapping[str, Any]) -> tuple[float, float]:
    """From the first row that is there to the last one."""
    eps = wiring.get("eps")
    first = _SERVERS if not isinstance(eps, Mapping) else _SPINES if eps["spines"] else _LEAVES
    last = _OPTICS if wiring.get("optical_nics") else _SERVERS
    return first - _ROOM, last + _ROOM


def _row(count: int) -> list[float]:
    """Middles of so many boxes side by side."""
    return [WIDTH * (i + 0.5) / count for i in range(count)]


def _electrical(wiring: Mapping[str, Any], at: Mapping[str, float]) -> Iterator[Markup]:
    """Leaves with the servers below them, and the spines; lines first, so that boxes cover their ends."""
    eps = wiring.get("eps")
    if not isinstance(eps, Mapping):
        return
    below = {
        str(leaf): Counter(nic.partition("/")[0] for nic in nics) for leaf, nics in eps["leaves"].items()
    }
    shown = [leaf for leaf, servers in below.items() if servers.keys() & at.keys()][:_MOST_LEAVES]
    leaf_at, spine_at = (dict(zip(row, _row(len(row)), strict=True)) for row in (shown, eps["spines"]))
    for leaf, x in leaf_at.items():
        for server, nics in below[leaf].items():
            if server in at:
                title = f"{server} to {leaf}: {words.counted(nics, 'NIC')}"
                yield _wire(at[server], _SERVERS, x, _LEAVES, 0.8 + 0.4 * nics, "wire", title)
        for spine, there in spine_at.items():
            yield _wire(x, _LEAVES, there, _SPINES, 1.6, "wire", f"{leaf} to {spine}{_rate(eps)}")
    if spine_at and eps["oversubscription"] > 1:
        yield svg.label(2, (_SPINES + _LEAVES) / 2 + 4, f"{eps['oversubscription']:g}:1", "strong")
    wide = min(64.0, 0.8 * WIDTH / max(1, len(leaf_at)))
    for row, y in ((leaf_at, _LEAVES), (spine_at, _SPINES)):
        for switch, x in row.items():
            yield from _box(x, y, wide, switch, "switch", switch)


def _rate(eps: Mapping[str, Any]) -> str:
    rate = eps.get("uplink_rate_bps")
    return f", {rate / 1e9:.0f} Gb/s" if rate else ""


def _optical(
    wiring: Mapping[str, Any], regions: Mapping[str, list[str]], at: Mapping[str, float]
) -> Iterator[Markup]:
    """The optical switch of each region, or the patch panel."""
    nics = int(wiring.get("optical_nics") or 0)
    if not nics:
        return
    for number, servers in enumerate(regions.values()):
        across = [at[server] for server in servers]
        middle, wide = (across[0] + across[-1]) / 2, max(60.0, (across[-1] - across[0]) * 0.8)
        for server in servers:
            there = middle + (at[server] - middle) * 0.72
            title = f"{server}: {words.counted(nics, 'fibre pair')}"
            yield _wire(at[server], _SERVERS, there, _OPTICS, 0.8 + 0.4 * nics, "fibre", title)
        name = "patch panel" if wiring.get("panel") else f"ocs{number}"
        yield from _box(middle, _OPTICS, wide, name, "optics", f"{name}: {nics * len(servers)} ports")


def _wire(x1: float, y1: float, x2: float, y2: float, width: float, class_: str, title: str) -> Markup:
    hint = svg.tag("title", title)
    return svg.tag("line", hint, x1=x1, y1=y1, x2=x2, y2=y2, class_=class_, stroke_width=width)


def _box(x: float, y: float, wide: float, name: str, class_: str, title: str) -> Iterator[Markup]:
    """A box about its middle, with its name where that fits."""
    yield svg.rect(x - wide / 2, y - _TALL / 2, wide, _TALL, class_, title=title, radius=4)
    if svg.text_width(name, 12) <= wide - 2:
        yield svg.label(x, y + 4, name, "small", "middle")
    elif number := name.lstrip("abcdefghijklmnopqrstuvwxyz"):
        yield svg.label(x, y + 4, number, "small", "middle")
