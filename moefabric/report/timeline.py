"""The timeline: what every server did in one iteration, fabric beneath fabric on one scale, and one layer of it closer.

A server's row has two lanes. The upper, tall one is what the server does; the lower, thin one is what its light does.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low

from markupsafe import Markup

from moefabric.report import regions, svg, words
from moefabric.report.result import Interval, Result

KINDS = {
    "attention": "attention",
    "expert": "expert computation",
    "dispatch": "dispatch",
    "combine": "combine",
    "other": "other",
    "reconfiguration": "reconfiguration",
    "dark": "dark",
}
"""What a lane shows, and its name in the legend."""

LIGHT = ("reconfiguration", "dark")
MOST_SERVERS = 16
"""Servers a fabric of one region shows; more than these would be lines too thin to see."""
MOST_ROWS = 48
"""And rows one of several regions shows: the servers of its first one, and a row for each other one."""

_LEFT, _RIGHT, _TOP, _HEAD, _GAP = 64.0, 84.0, 46.0, 38.0, 22.0


@dataclass(frozen=True)
class _Strip:
    """One fabric's part of the picture: what to draw, from when, and which rows."""

    result: Result
    intervals: Sequence[Interval]
    servers: Sequence[str]
    begin_s: float
    end_s: float


def iteration(results: Sequence[Result]) -> Markup:
    """The whole iteration, of every fabric that recorded one. Empty where none did."""
    strips = [_strip(result, regions.timeline(result)) for result in results if result.timeline]
    return _picture(strips, "An iteration on every server, by fabric", named=False)


def layer(results: Sequence[Result]) -> tuple[Markup, int | None]:
    """One layer of the forward pass, closer, and which one: the middle one of those in which light changed."""
    forward = [i for result in results for i in result.timeline if not i.backward and i.layer is not None]
    changed = [i.layer for i in forward if i.kind in LIGHT and i.layer is not None]
    chosen = median_low(changed or [i.layer for i in forward if i.layer is not None] or [-1])
    if chosen < 0:
        return Markup(), None
    strips = []
    for result in results:
        part = [
            i for i in regions.timeline(result) if i.layer == chosen and not i.backward and not i.micro_batch
        ]
        if part:
            strips.append(_strip(result, part))
    return _picture(strips, f"Layer {chosen} forward on every server, by fabric", named=True), chosen


def _strip(result: Result, intervals: Sequence[Interval]) -> _Strip:
    beneath = result.regions.keys()
    servers = sorted({i.server for i in intervals}, key=lambda name: (name in beneath, _naturally(name)))
    begin, end = min(i.start_s for i in intervals), max(i.end_s for i in intervals)
    most = MOST_ROWS if beneath else MOST_SERVERS
    return _Strip(result, intervals, servers[:most], begin, end)


def _naturally(name: str) -> list[tuple[int, str]]:
    """s2 before s10."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]


def _picture(strips: Sequence[_Strip], said: str, *, named: bool) -> Markup:
    if not strips:
        return Markup()
    row = {1: 20.0, 2: 14.0, 3: 10.0}.get(-(-max(len(strip.servers) for strip in strips) // 4), 8.0)
    row *= 1.3 if named else 1.0
    longest = max(strip.end_s - strip.begin_s for strip in strips)
    across = svg.Scale(0.0, longest or 1.0, _LEFT, svg.WIDTH - _RIGHT)
    drawn, y = [svg.legend(_LEFT, 14, _legend(strips))], _TOP
    for strip in strips:
        drawn += _drawn(strip, across, y, row, named=named)
        y += _HEAD + len(strip.servers) * (row + 3) + _GAP
    bottom = y - _GAP + 6
    grid = _axis(across, bottom)
    return svg.picture(svg.WIDTH, bottom + 36, said, [*grid, *drawn])


def _legend(strips: Iterable[_Strip]) -> list[tuple[str, str]]:
    there = {_lane(i.kind) for strip in strips for i in strip.intervals}
    return [(f"k-{kind}", name) for kind, name in KINDS.items() if kind in there]


def _lane(kind: str) -> str:
    return kind if kind in KINDS else "other"


def _axis(across: svg.Scale, bottom: float) -> list[Markup]:
    factor, unit = words.time_unit(across.high)
    drawn = []
    for tick in svg.ticks(0, across.high / factor, 8):
        x = across(tick * factor)
        drawn += [
            svg.line(x, _TOP, x, bottom, "grid"),
            svg.label(x, bottom + 16, f"{tick:g}", "tick", "middle"),
        ]
    return [*drawn, svg.label(across.end + 12, bottom + 16, unit, "tick")]


def _drawn(strip: _Strip, across: svg.Scale, y: float, row: float, *, named: bool) -> list[Markup]:
    drawn = _heading(strip, across, y)
    y += _HEAD
    for server in strip.servers:
        mine = [i for i in strip.intervals if i.server == server]
        drawn.append(svg.label(_LEFT - 10, y + row * 0.33 + 4, server, "tick", "end"))
        drawn.append(svg.rect(_LEFT, y, across(strip.end_s - strip.begin_s) - _LEFT, row, "lane"))
        for interval in sorted(mine, key=lambda i: i.kind == "dark"):
            drawn += _bar(strip, interval, across, y, row, named=named)
        y += row + 3
    return drawn


def _heading(strip: _Strip, across: svg.Scale, y: float) -> list[Markup]:
    """The fabric's name and length, and where its layers and its backward pass begin."""
    length = strip.end_s - strip.begin_s
    drawn = [
        svg.label(_LEFT, y + 14, words.printable(strip.result.name), "strong"),
        svg.label(across(length) + 8, y + _HEAD + 14, words.seconds(length), "strong"),
    ]
    name_ends, last = _LEFT + svg.text_width(strip.result.name, 14), 0.0
    starts: dict[tuple[bool, int], float] = {}
    for interval in strip.intervals:
        if interval.layer is not None:
            key = (interval.backward, interval.layer)
            starts[key] = min(starts.get(key, interval.start_s), interval.start_s)
    if len(starts) < 2:
        return drawn
    for (backward, number), start in sorted(starts.items(), key=lambda item: item[1]):
        x = across(start - strip.begin_s)
        if x - last >= 24:
            drawn += [svg.line(x, y + _HEAD - 12, x, y + _HEAD - 3, "tickmark")]
            drawn += [svg.label(x + 4, y + _HEAD - 5, f"L{number}", "faint")]
            last = x
        if backward and all(start <= other for (back, _), other in starts.items() if back) and x > name_ends:
            drawn.append(svg.label(x, y + 14, "backward", "small"))
    return drawn


def _bar(
    strip: _Strip, interval: Interval, across: svg.Scale, y: float, row: float, *, named: bool
) -> list[Markup]:
    start, end = interval.start_s - strip.begin_s, interval.end_s - strip.begin_s
    x, width = across(start), across(end) - across(start)
    lane = _lane(interval.kind)
    title = _title(interval)
    if lane in LIGHT:
        return [svg.rect(x, y + row * 0.72, max(width, 0.8), row * 0.28, f"k-{lane}", title=title)]
    drawn = [svg.rect(x, y, max(width, 0.5), row * 0.66, f"k-{lane}", title=title)]
    name = KINDS.get(interval.kind, words.printable(interval.kind))
    if named and row >= 18 and width > svg.text_width(name, 10) + 6:
        drawn.append(svg.label(x + 5, y + row * 0.33 + 4, name, f"in on-{lane}"))
    return drawn


def _title(interval: Interval) -> str:
    way = "backward" if interval.backward else "forward"
    where = "" if interval.layer is None else f" · layer {interval.layer} {way}"
    spans = f"{words.seconds(interval.end_s - interval.start_s)}, from {words.seconds(interval.start_s, 4)}"
    return words.printable(f"{interval.server}{where} · {interval.kind}: {spans}")
