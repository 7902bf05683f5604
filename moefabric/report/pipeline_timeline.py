"""Pipeline timeline: the micro-batches in every region, as pictures of 1F1B schedules show them.

A region's row has two lanes. The upper, tall lane has a numbered box for each pass of a
micro-batch: dark while servers compute, pale while they wait for each other or for light. The
lower, thin lane has the transfers between stages and replicas, and the reconfigurations.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from markupsafe import Markup

from moefabric.report import formatting, svg
from moefabric.report.summary import FabricSummary
from moefabric.report.time_strips import LEFT, OPTICAL_ACTIVITIES, Strip, row, timeline_picture
from moefabric.runner.result_parts import ServerInterval

_TRANSFERS = ("pipeline", "all-reduce")
"""Kinds of transfers between regions."""
_COMPUTATIONS = ("attention", "expert")
_LEGEND = (
    ("forward", "forward"),
    ("backward", "backward"),
    ("forward pale", "waiting for an all-to-all or light"),
    ("k-pipeline", "to another stage"),
    ("k-all-reduce", "all-reduce"),
    ("k-reconfiguration", "reconfiguration"),
)
_HEAD, _ROW, _THIN, _SPACE = 24.0, 24.0, 6.0, 6.0
_MOST_REGIONS = 32


def pipeline_timeline(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw an iteration of every pipelined fabric; empty if there is none."""
    strips = []
    for fabric in fabrics:
        if is_pipelined(fabric):
            regions = fabric.regions or {"r0": list({i.server: None for i in fabric.timeline})}
            rows = dict(list(regions.items())[:_MOST_REGIONS])
            height = _HEAD + len(rows) * (_ROW + _THIN + _SPACE)
            length_s = max(interval.end_s for interval in fabric.timeline)
            strips.append(Strip(length_s, height, partial(_draw, fabric, rows, length_s)))
    return timeline_picture(strips, _LEGEND, "Micro-batches in every region, by fabric")


def is_pipelined(fabric: FabricSummary) -> bool:
    """Whether regions work on several micro-batches or send each other anything."""
    return any(i.micro_batch or i.kind in _TRANSFERS for i in fabric.timeline)


def _draw(
    fabric: FabricSummary,
    rows: dict[str, list[str]],
    length_s: float,
    across: svg.LinearScale,
    y: float,
) -> Iterator[Markup]:
    yield svg.label(LEFT, y + 14, fabric.name, "strong")
    yield svg.label(across(length_s) + 8, y + _HEAD + 16, formatting.seconds(length_s), "strong")
    y += _HEAD
    stages = fabric.result.shape.pp
    for number, (region, servers) in enumerate(rows.items()):
        intervals = [i for i in fabric.timeline if i.server in servers]
        name = f"{region} stage {number % stages}" if stages > 1 else region
        yield from row(name, length_s, across, y, _ROW + _THIN)
        yield from _passes(region, intervals, across, y)
        yield from _transfers(region, intervals, across, y + _ROW)
        y += _ROW + _THIN + _SPACE


def _passes(
    region: str, intervals: Iterable[ServerInterval], across: svg.LinearScale, y: float
) -> Iterator[Markup]:
    """Draw a box for each pass of each micro-batch, dark where any server computes."""
    passes: defaultdict[tuple[bool, int], list[ServerInterval]] = defaultdict(list)
    for interval in intervals:
        if interval.kind not in (*_TRANSFERS, *OPTICAL_ACTIVITIES):
            passes[interval.backward, interval.micro_batch].append(interval)
    for (backward, number), parts in sorted(passes.items()):
        way = "backward" if backward else "forward"
        start, end = min(part.start_s for part in parts), max(part.end_s for part in parts)
        duration, begin = formatting.seconds(end - start), formatting.seconds(start, 4)
        title = formatting.printable(
            f"{region} · micro-batch {number} {way}: {duration}, from {begin}"
        )
        yield svg.bar(across, start, end, y + 1, _ROW - 2, f"{way} pale", title, radius=2)
        for busy in _union((p.start_s, p.end_s) for p in parts if p.kind in _COMPUTATIONS):
            yield svg.bar(across, *busy, y + 1, _ROW - 2, way, title)
        if across(end) - across(start) > svg.text_width(str(number), 11) + 2:
            middle = (across(start) + across(end)) / 2
            yield svg.label(middle, y + _ROW * 0.5 + 4, number, "in micro", "middle")


def _transfers(
    region: str, intervals: Iterable[ServerInterval], across: svg.LinearScale, y: float
) -> Iterator[Markup]:
    """Draw transfers and reconfigurations, each from its first server's start to the last's end."""
    spans: dict[tuple[str, bool, int, int | None], tuple[float, float]] = {}
    for i in intervals:
        if i.kind in (*_TRANSFERS, "reconfiguration"):
            key = (i.kind, i.backward, i.micro_batch, i.layer)
            start, end = spans.get(key, (i.start_s, i.end_s))
            spans[key] = min(start, i.start_s), max(end, i.end_s)
    for (kind, backward, number, _), (start, end) in sorted(
        spans.items(), key=lambda item: item[1]
    ):
        way, duration = "backward" if backward else "forward", formatting.seconds(end - start)
        title = formatting.printable(f"{region} · {kind} {way}, micro-batch {number}: {duration}")
        yield svg.bar(across, start, end, y, _THIN, f"k-{kind}", title, narrowest=0.8)


def _union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Merge overlapping spans."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged
