"""Server timeline: the activity of every server in one iteration, and in one layer of it.

The upper, thick lane of a row is the server's own activity; the lower, thin lane is its circuits'.
"""

import re
from collections.abc import Sequence
from functools import partial
from statistics import median_low

from markupsafe import Markup

from moefabric.report import formatting, regions, svg
from moefabric.report.summary import FabricSummary
from moefabric.report.time_strips import (
    ACTIVITIES,
    LEFT,
    OPTICAL_ACTIVITIES,
    Strip,
    activity_class,
    activity_legend,
    row,
    timeline_picture,
)
from moefabric.runner.result_parts import ServerInterval

MOST_SERVERS = 16
"""Servers shown of a fabric of one region; more rows would be too thin to read."""
_MOST_ROWS = 48
"""Rows shown of a fabric of several regions: servers of the first, and a row per other region."""
_HEAD, _ROW_GAP = 38.0, 3.0


def iteration_timeline(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw the whole iteration of every fabric that recorded one; empty if none did."""
    parts = [(fabric, regions.timeline(fabric)) for fabric in fabrics if fabric.timeline]
    return _picture(parts, "Iteration on every server, by fabric", named=False)


def layer_timeline(fabrics: Sequence[FabricSummary]) -> tuple[Markup, int | None]:
    """Draw one layer of the forward pass, and return its number.

    It is the middle one of the layers before which circuits changed, or of all layers.
    """
    forward = [i for fabric in fabrics for i in fabric.timeline if not i.backward]
    layers = [i.layer for i in forward if i.layer is not None]
    changed = [i.layer for i in forward if i.kind in OPTICAL_ACTIVITIES and i.layer is not None]
    if not layers:
        return Markup(), None
    layer = median_low(changed or layers)
    parts = [
        (fabric, [i for i in regions.timeline(fabric)
                  if i.layer == layer and not i.backward and not i.micro_batch])
        for fabric in fabrics
    ]  # fmt: skip
    shown = [(fabric, intervals) for fabric, intervals in parts if intervals]
    return _picture(shown, f"Layer {layer} forward on every server, by fabric", named=True), layer


def _picture(
    parts: Sequence[tuple[FabricSummary, Sequence[ServerInterval]]], label: str, *, named: bool
) -> Markup:
    rows = [_row_names(fabric, intervals) for fabric, intervals in parts]
    fours = -(-max(map(len, rows), default=1) // 4)
    height = {1: 20.0, 2: 14.0, 3: 10.0}.get(fours, 8.0) * (1.3 if named else 1.0)
    strips = []
    for (fabric, intervals), names in zip(parts, rows, strict=True):
        begin_s, end_s = min(i.start_s for i in intervals), max(i.end_s for i in intervals)
        shifted = [
            i.model_copy(update={"start_s": i.start_s - begin_s, "end_s": i.end_s - begin_s})
            for i in intervals
        ]
        draw = partial(_draw, fabric.name, shifted, names, begin_s, height, named=named)
        strips.append(Strip(end_s - begin_s, _HEAD + len(names) * (height + _ROW_GAP), draw))
    kinds = (i.kind for _, intervals in parts for i in intervals)
    return timeline_picture(strips, activity_legend(kinds), label, gap=22.0)


def _row_names(fabric: FabricSummary, intervals: Sequence[ServerInterval]) -> list[str]:
    """Return servers in natural order (s2 before s10), and then regions."""

    def order(name: str) -> tuple[bool, list[tuple[int, str]]]:
        parts = re.split(r"(\d+)", name)
        return name in fabric.regions, [(int(p), "") if p.isdigit() else (0, p) for p in parts]

    names = sorted({i.server for i in intervals}, key=order)
    return names[: _MOST_ROWS if fabric.regions else MOST_SERVERS]


def _draw(
    name: str, intervals: Sequence[ServerInterval], rows: Sequence[str], begin_s: float,
    height: float, across: svg.LinearScale, y: float, *, named: bool,
) -> list[Markup]:  # fmt: skip
    length_s = max(i.end_s for i in intervals)
    drawn = _heading(name, intervals, length_s, across, y)
    y += _HEAD
    for server in rows:
        drawn += row(server, length_s, across, y, height)
        of_server = [i for i in intervals if i.server == server]
        for interval in sorted(of_server, key=lambda i: i.kind == "dark"):
            drawn += _interval(interval, begin_s, across, y, height, named=named)
        y += height + _ROW_GAP
    return drawn


def _heading(
    name: str,
    intervals: Sequence[ServerInterval],
    length_s: float,
    across: svg.LinearScale,
    y: float,
) -> list[Markup]:
    """Draw the fabric's name and length, and the starts of its layers and backward pass."""
    drawn = [
        svg.label(LEFT, y + 14, name, "strong"),
        svg.label(across(length_s) + 8, y + _HEAD + 14, formatting.seconds(length_s), "strong"),
    ]
    starts: dict[tuple[bool, int], float] = {}
    for i in intervals:
        if i.layer is not None:
            key = (i.backward, i.layer)
            starts[key] = min(starts.get(key, i.start_s), i.start_s)
    if len(starts) < 2:
        return drawn
    last_x = 0.0
    for (_, layer), start_s in sorted(starts.items(), key=lambda item: item[1]):
        x = across(start_s)
        if x - last_x >= 24:
            drawn.append(svg.line(x, y + _HEAD - 12, x, y + _HEAD - 3, "tickmark"))
            drawn.append(svg.label(x + 4, y + _HEAD - 5, f"L{layer}", "faint"))
            last_x = x
    backward_s = min((start_s for (back, _), start_s in starts.items() if back), default=0.0)
    if across(backward_s) > LEFT + svg.text_width(name, 14):
        drawn.append(svg.label(across(backward_s), y + 14, "backward", "small"))
    return drawn


def _interval(
    interval: ServerInterval, begin_s: float, across: svg.LinearScale, y: float, height: float, *,
    named: bool,
) -> list[Markup]:  # fmt: skip
    kind, start_s, end_s = activity_class(interval.kind), interval.start_s, interval.end_s
    title = _title(interval, begin_s)
    if kind in OPTICAL_ACTIVITIES:
        lane = y + height * 0.72
        return [
            svg.bar(across, start_s, end_s, lane, height * 0.28, f"k-{kind}", title, narrowest=0.8)
        ]
    drawn = [svg.bar(across, start_s, end_s, y, height * 0.66, f"k-{kind}", title, narrowest=0.5)]
    name = ACTIVITIES.get(interval.kind, formatting.printable(interval.kind))
    width = across(end_s) - across(start_s)
    if named and height >= 18 and width > svg.text_width(name, 10) + 6:
        text_y = y + height * 0.33 + 4
        drawn.append(svg.label(across(start_s) + 5, text_y, name, f"in on-{kind}"))
    return drawn


def _title(interval: ServerInterval, begin_s: float) -> str:
    way = "backward" if interval.backward else "forward"
    layer = "" if interval.layer is None else f" · layer {interval.layer} {way}"
    duration = formatting.seconds(interval.end_s - interval.start_s)
    start = formatting.seconds(begin_s + interval.start_s, 4)
    return formatting.printable(
        f"{interval.server}{layer} · {interval.kind}: {duration}, from {start}"
    )
