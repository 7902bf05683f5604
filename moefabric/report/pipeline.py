"""The pipeline: which micro-batch each region works on, forward and backward, as pictures of 1F1B show it; and what it sends other regions meanwhile.

A region's row has two lanes. The upper, tall one has a box for each pass of a micro-batch, with its number: dark where servers compute, pale while
they wait for each other or for light. The lower, thin one has what goes from stage to stage and from replica to replica, and changes of light.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from markupsafe import Markup

from moefabric.report import svg, words
from moefabric.report.result import Interval, Result

BETWEEN = ("pipeline", "all-reduce")
"""What regions send each other."""
_COMPUTING = ("attention", "expert")
_LEGEND = (
    ("forward", "forward"),
    ("backward", "backward"),
    ("forward pale", "waiting for an all-to-all or light"),
    ("k-pipeline", "to another stage"),
    ("k-all-reduce", "all-reduce"),
    ("k-reconfiguration", "reconfiguration"),
)
_LEFT, _RIGHT, _TOP, _HEAD, _GAP = 86.0, 84.0, 46.0, 24.0, 20.0
_ROW, _THIN, _SPACE = 24.0, 6.0, 6.0
MOST_ROWS = 32
"""Regions a fabric shows."""


def picture(results: Sequence[Result]) -> Markup:
    """An iteration of every fabric whose regions work on micro-batches. Empty where none does."""
    shown = [result for result in results if pipelined(result)]
    if not shown:
        return Markup()
    longest = max(interval.end_s for result in shown for interval in result.timeline)
    across = svg.Scale(0.0, longest or 1.0, _LEFT, svg.WIDTH - _RIGHT)
    drawn, y = [svg.legend(_LEFT, 14, _LEGEND)], _TOP
    for result in shown:
        drawn += _strip(result, across, y)
        y += _HEAD + len(_rows(result)) * (_ROW + _THIN + _SPACE) + _GAP
    bottom = y - _GAP + 6
    return svg.picture(
        svg.WIDTH, bottom + 36, "Micro-batches in every region, by fabric", [*_axis(across, bottom), *drawn]
    )


def pipelined(result: Result) -> bool:
    """Whether its regions work on several micro-batches, or send each other anything."""
    return any(interval.micro_batch or interval.kind in BETWEEN for interval in result.timeline)


def _rows(result: Result) -> dict[str, tuple[str, ...]]:
    """The servers of each region that is shown."""
    regions = result.regions or {"r0": tuple({i.server: None for i in result.timeline})}
    return dict(list(regions.items())[:MOST_ROWS])


def _strip(result: Result, across: svg.Scale, y: float) -> Iterator[Markup]:
    end = max(interval.end_s for interval in result.timeline)
    yield svg.label(_LEFT, y + 14, words.printable(result.name), "strong")
    yield svg.label(across(end) + 8, y + _HEAD + 16, words.seconds(end), "strong")
    y += _HEAD
    for number, (region, servers) in enumerate(_rows(result).items()):
        mine = [interval for interval in result.timeline if interval.server in servers]
        yield svg.label(_LEFT - 10, y + _ROW * 0.5 + 4, _named(result, region, number), "tick", "end")
        yield svg.rect(_LEFT, y, across(end) - _LEFT, _ROW + _THIN, "lane")
        yield from _passes(region, mine, across, y)
        yield from _beneath(region, mine, across, y + _ROW)
        y += _ROW + _THIN + _SPACE


def _named(result: Result, region: str, number: int) -> str:
    stages = result.stages
    return f"{region} stage {number % stages}" if stages > 1 else region


def _passes(region: str, mine: Iterable[Interval], across: svg.Scale, y: float) -> Iterator[Markup]:
    passes: defaultdict[tuple[bool, int], list[Interval]] = defaultdict(list)
    for interval in mine:
        if interval.kind not in (*BETWEEN, "reconfiguration", "dark"):
            passes[interval.backward, interval.micro_batch].append(interval)
    for (backward, number), parts in sorted(passes.items()):
        way = "backward" if backward else "forward"
        start, end = min(part.start_s for part in parts), max(part.end_s for part in parts)
        x, width = across(start), across(end) - across(start)
        title = words.printable(
            f"{region} · micro-batch {number} {way}: {words.seconds(end - start)}, from {words.seconds(start, 4)}"
        )
        yield svg.rect(x, y + 1, width, _ROW - 2, f"{way} pale", title=title, radius=2)
        for first, last in _united((p.start_s, p.end_s) for p in parts if p.kind in _COMPUTING):
            yield svg.rect(across(first), y + 1, across(last) - across(first), _ROW - 2, way, title=title)
        if width > svg.text_width(str(number), 11) + 2:
            yield svg.label(x + width / 2, y + _ROW * 0.5 + 4, number, "in micro", "middle")


def _beneath(region: str, mine: Iterable[Interval], across: svg.Scale, y: float) -> Iterator[Markup]:
    """Each kind once a region: from its first server's start to its last one's end."""
    whole: dict[tuple[str, bool, int, int | None], tuple[float, float]] = {}
    for each in mine:
        if each.kind in (*BETWEEN, "reconfiguration"):
            key = (each.kind, each.backward, each.micro_batch, each.layer)
            start, end = whole.get(key, (each.start_s, each.end_s))
            whole[key] = min(start, each.start_s), max(end, each.end_s)
    for (kind, backward, number, _), (start, end) in sorted(whole.items(), key=lambda item: item[1]):
        way = "backward" if backward else "forward"
        title = words.printable(
            f"{region} · {kind} {way}, micro-batch {number}: {words.seconds(end - start)}"
        )
        yield svg.rect(
            across(start), y, max(0.8, across(end) - across(start)), _THIN, f"k-{kind}", title=title
        )


def _united(spans: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """The same time without overlaps."""
    now: tuple[float, float] | None = None
    for start, end in sorted(spans):
        if now is not None and start <= now[1]:
            now = now[0], max(now[1], end)
            continue
        if now is not None:
            yield now
        now = start, end
    if now is not None:
        yield now


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
