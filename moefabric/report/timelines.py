"""Timelines on one time axis: servers, micro-batches, iterations with failures, circuits."""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from statistics import fmean, median_low
from typing import Final, TypeVar

from markupsafe import Markup

from moefabric.core.spans import Span, merged
from moefabric.report.chart import Legend, Panel, figure
from moefabric.report.formatting import counted, deviation, printable, seconds
from moefabric.report.marks import Axis, Box, Mark, Rule, Text, opacity, untrusted
from moefabric.report.summary import FabricSummary, changes_circuits
from moefabric.results.parts import FailureResult, ReconfigurationResult, ServerInterval

_MOST_SERVERS: Final = 16
"""Servers shown of a fabric of one region; more rows would be too thin to read."""
_MOST_ROWS: Final = 48
"""Rows shown of a fabric of several regions: servers of the first, and a row per other region."""
_MOST_REGIONS: Final = 32
"""Regions shown of a pipeline."""
_MOST_PAIRS: Final = 28
"""Pairs of servers up to which each has a row; more are left out."""
_LANE: Final = 0.88
"""Height of a lane in rows."""
_ACTIVITIES: Final = {
    "attention": "attention",
    "expert": "expert computation",
    "dispatch": "dispatch",
    "combine": "combine",
    "tensor": "partial sums",
    "other": "other",
    "reconfiguration": "reconfiguration",
    "dark": "dark",
    "void": "to be repeated",
}
"""Kinds of intervals, and their names in the legend."""
_OPTICAL: Final = ("reconfiguration", "dark")
"""Kinds of intervals that concern circuits rather than the server itself."""
_TRANSFERS: Final = ("pipeline", "all-reduce")
"""Kinds of transfers between regions."""
_PASSES: Final = (
    ("forward", "forward"),
    ("backward", "backward"),
    ("forward pale", "waiting for an all-to-all or light"),
    ("k-pipeline", "to another stage"),
    ("k-all-reduce", "all-reduce"),
    ("k-reconfiguration", "reconfiguration"),
)
_FAILURE_MARKS: Final = ("injected", "detected", "recovered")

Key = TypeVar("Key", bound=Hashable)


def timeline(strips: Sequence[Panel], legend: Legend, label: str) -> Markup:
    """Draw strips beneath each other on one time axis; empty if there are none.

    Args:
        strips: Panels whose time axes begin at 0 and end with their last mark, and whose vertical
            axes have a name for each row.
        legend: The legend above the strips.
        label: Text for screen readers.
    """
    axis = Axis.seconds(0.0, max((strip.x.high for strip in strips), default=0.0) or 1.0)
    panels = []
    for strip in strips:
        rows = range(len(strip.y.ticks))
        lanes = [Box((0.0, strip.x.high), (row, row + _LANE), "lane") for row in rows]
        x = axis if strip is strips[-1] else axis.untitled
        panels.append(replace(strip, x=x, marks=[*lanes, *strip.marks], right=78))
    return figure(label, panels, legend=legend, gap=16)


def _end(length_s: float, text: str) -> Text:
    """Return the text at the end of a strip's first row."""
    return Text(length_s, 0.5, text, "strong", dx=8)


def _span(intervals: Iterable[ServerInterval]) -> Span:
    """Return the first start and the last end."""
    listed = list(intervals)
    return min(i.start_s for i in listed), max(i.end_s for i in listed)


def _grouped(
    intervals: Iterable[ServerInterval], key: Callable[[ServerInterval], Key]
) -> dict[Key, list[ServerInterval]]:
    groups: dict[Key, list[ServerInterval]] = {}
    for interval in intervals:
        groups.setdefault(key(interval), []).append(interval)
    return groups


def _class(kind: str) -> str:
    """Return the kind under which an interval is drawn."""
    return kind if kind in _ACTIVITIES else "other"


def _legend(kinds: Iterable[str]) -> list[tuple[str, str]]:
    present = {_class(kind) for kind in kinds}
    return [(f"k-{kind}", name) for kind, name in _ACTIVITIES.items() if kind in present]


# --- servers -------------------------------------------------------------------------------------


def by_server(fabric: FabricSummary) -> list[ServerInterval]:
    """Return the intervals of the first region's servers, and those of each other region as one.

    A region's interval lasts from its first server's start to its last server's end.
    """
    others = list(fabric.regions.items())[1:]
    region_of = {server: name for name, servers in others for server in servers}
    single = [i for i in fabric.timeline if i.server not in region_of]
    parts = _grouped(
        (i for i in fabric.timeline if i.server in region_of),
        lambda i: (region_of[i.server], i.kind, i.backward, i.layer, i.micro_batch),
    )
    for (region, *_), own in parts.items():
        start_s, end_s = _span(own)
        update = {"server": region, "start_s": start_s, "end_s": end_s}
        single.append(own[0].model_copy(update=update))
    return single


def hidden_servers(fabrics: Sequence[FabricSummary]) -> int:
    """Return the number of servers that the timeline of iterations leaves out."""
    if any(fabric.regions for fabric in fabrics):
        return 0
    most = max((len({i.server for i in fabric.timeline}) for fabric in fabrics), default=0)
    return max(0, most - _MOST_SERVERS)


def iteration_timeline(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw the iteration of every fabric that recorded one without a pipeline; empty if none."""
    shown = [fabric for fabric in fabrics if fabric.timeline and not is_pipelined(fabric)]
    parts = [(fabric, by_server(fabric)) for fabric in shown]
    return _servers(parts, "Iteration on every server, by fabric", named=False)


def shown_layer(fabrics: Sequence[FabricSummary]) -> int | None:
    """Return the layer of the forward pass that is drawn by itself; None without layers.

    It is the middle one of the layers before which circuits changed, or of all layers.
    """
    forward = [i for fabric in fabrics for i in fabric.timeline if not i.backward]
    layers = [i.layer for i in forward if i.layer is not None]
    changed = [i.layer for i in forward if i.kind in _OPTICAL and i.layer is not None]
    return median_low(changed or layers) if layers else None


def layer_timeline(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw one layer of the forward pass; empty without layers."""
    layer, parts = shown_layer(fabrics), []
    for fabric in fabrics if layer is not None else ():
        forward = (i for i in by_server(fabric) if not i.backward and not i.micro_batch)
        if intervals := [i for i in forward if i.layer == layer]:
            parts.append((fabric, intervals))
    return _servers(parts, f"Layer {layer} forward on every server, by fabric", named=True)


def _servers(
    parts: Sequence[tuple[FabricSummary, Sequence[ServerInterval]]], label: str, *, named: bool
) -> Markup:
    rows = [_row_names(fabric, intervals) for fabric, intervals in parts]
    fours = -(-max(map(len, rows), default=1) // 4)
    height = {1: 23.0, 2: 17.0, 3: 13.0}.get(fours, 11.0) * (1.3 if named else 1.0)
    strips = []
    for (fabric, intervals), names in zip(parts, rows, strict=True):
        begin_s, end_s = _span(intervals)
        # Dark time is drawn last, over the reconfiguration that it is a part of.
        marks: list[Mark] = [
            _interval(i, names.index(i.server), begin_s, named=named and height >= 18)
            for i in sorted(intervals, key=lambda i: i.kind == "dark")
            if i.server in names
        ]
        x, y, top = Axis(0.0, end_s - begin_s), Axis.rows(names), _starts(intervals, begin_s)
        marks.append(_end(x.high, seconds(x.high)))
        marks = untrusted(marks, invalid=fabric.is_invalid)
        strips.append(Panel(x, y, marks, height * len(names), fabric.label, top=top))
    return timeline(strips, _legend(i.kind for _, intervals in parts for i in intervals), label)


def _row_names(fabric: FabricSummary, intervals: Sequence[ServerInterval]) -> list[str]:
    """Return servers in natural order (s2 before s10), and then regions."""

    def order(name: str) -> tuple[bool, list[tuple[int, str]]]:
        parts = re.split(r"(\d+)", name)
        return name in fabric.regions, [(int(p), "") if p.isdigit() else (0, p) for p in parts]

    names = sorted({i.server for i in intervals}, key=order)
    return names[: _MOST_ROWS if fabric.regions else _MOST_SERVERS]


def _starts(intervals: Sequence[ServerInterval], begin_s: float) -> dict[float, str]:
    """Return the names of layers by their starts; nothing for a single layer."""
    layers = _grouped(
        (i for i in intervals if i.layer is not None), lambda i: (i.backward, i.layer)
    )
    starts = {key: _span(layer)[0] for key, layer in layers.items()}
    first = min((start_s for (backward, _), start_s in starts.items() if backward), default=None)
    texts = {
        start_s - begin_s: f"L{layer}{' backward' if start_s == first else ''}"
        for (_, layer), start_s in starts.items()
    }
    return texts if len(starts) > 1 else {}


def _interval(interval: ServerInterval, row: int, begin_s: float, *, named: bool) -> Box:
    """Return the thick lane of a server's activity, or the thin one of its circuits beneath."""
    kind = _class(interval.kind)
    upper, lower = (0.64, _LANE) if kind in _OPTICAL else (0.0, 0.58)
    name = _ACTIVITIES.get(interval.kind, printable(interval.kind))
    way = "backward" if interval.backward else "forward"
    layer = "" if interval.layer is None else f" · layer {interval.layer} {way}"
    duration = seconds(interval.end_s - interval.start_s)
    title = f"{interval.server}{layer} · {interval.kind}: {duration}"
    title = printable(f"{title}, from {seconds(interval.start_s, 4)}")
    span = interval.start_s - begin_s, interval.end_s - begin_s
    least, texts = 0.8 if kind in _OPTICAL else 0.5, [name] if named else ()
    y, ink = (row + upper, row + lower), f"on-{kind}"
    return Box(span, y, f"k-{kind}", title, least=least, texts=texts, text_class=ink)


# --- micro-batches -------------------------------------------------------------------------------


def is_pipelined(fabric: FabricSummary) -> bool:
    """Return whether regions work on several micro-batches or send each other bytes."""
    return any(i.micro_batch or i.kind in _TRANSFERS for i in fabric.timeline)


def pipeline_timeline(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw the micro-batches in every region of each pipelined fabric; empty if there is none.

    A region's row has two lanes, as pictures of 1F1B schedules have them. The upper lane has a
    numbered box for each pass of a micro-batch: dark while servers compute, pale while they wait.
    The lower lane has transfers between stages and replicas, and reconfigurations.
    """
    strips = []
    for fabric in filter(is_pipelined, fabrics):
        servers = fabric.regions or {"r0": list({i.server: None for i in fabric.timeline})}
        shown, stages = dict(list(servers.items())[:_MOST_REGIONS]), fabric.result.shape.pp
        _, length_s = _span(fabric.timeline)
        marks, names = list[Mark](), []
        for row, (region, own) in enumerate(shown.items()):
            intervals = [i for i in fabric.timeline if i.server in own]
            marks += _passes(region, row, intervals)
            marks += _transfers(region, row, intervals)
            names.append(f"{region} stage {row % stages}" if stages > 1 else region)
        marks.append(_end(length_s, seconds(length_s)))
        x, y = Axis(0.0, length_s), Axis.rows(names)
        marks = untrusted(marks, invalid=fabric.is_invalid)
        strips.append(Panel(x, y, marks, 36.0 * len(names), fabric.label))
    return timeline(strips, _PASSES, "Micro-batches in every region, by fabric")


def _passes(region: str, row: int, intervals: Iterable[ServerInterval]) -> Iterator[Mark]:
    """Yield a box for each pass of each micro-batch, dark where any server computes."""
    working = (i for i in intervals if i.kind not in (*_TRANSFERS, *_OPTICAL))
    passes = _grouped(working, lambda i: (i.backward, i.micro_batch))
    y = (row + 0.03, row + 0.64)
    for (backward, number), parts in sorted(passes.items()):
        way, (start, end) = "backward" if backward else "forward", _span(parts)
        begin = f"{seconds(end - start)}, from {seconds(start, 4)}"
        title = printable(f"{region} · micro-batch {number} {way}: {begin}")
        yield Box((start, end), y, f"{way} pale", title, radius=2)
        computing = [(p.start_s, p.end_s) for p in parts if p.kind in ("attention", "expert")]
        yield from (Box(busy, y, way, title) for busy in merged(computing))
        yield Box((start, end), y, "clear", texts=[str(number)], text_class="micro")


def _transfers(region: str, row: int, intervals: Iterable[ServerInterval]) -> Iterator[Mark]:
    """Yield transfers and reconfigurations, from the first server's start to the last's end."""
    sending = (i for i in intervals if i.kind in (*_TRANSFERS, "reconfiguration"))
    parts = _grouped(sending, lambda i: (i.kind, i.backward, i.micro_batch, i.layer))
    spans = [(_span(part), key) for key, part in parts.items()]
    for (start, end), (kind, backward, number, _) in sorted(spans, key=lambda span: span[0]):
        way, duration = "backward" if backward else "forward", seconds(end - start)
        title = printable(f"{region} · {kind} {way}, micro-batch {number}: {duration}")
        yield Box((start, end), (row + 0.68, row + 0.86), f"k-{kind}", title, least=0.8)


# --- failures ------------------------------------------------------------------------------------


def failure_timeline(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw the iteration of each failure for the servers concerned; empty if there is none."""
    failures = ((fabric, failure) for fabric in fabrics for failure in fabric.result.failures)
    shown = [(fabric, f) for fabric, f in failures if f.lanes and f.measured_s]
    kinds = {lane.kind for _, failure in shown for lane in failure.lanes} - {*_OPTICAL}
    legend = _legend(kinds) + [(f"m-{mark}", mark) for mark in _FAILURE_MARKS]
    panels = [_failure(fabric, failure) for fabric, failure in shown]
    return timeline(panels, legend, "Iterations with failures")


def _failure(fabric: FabricSummary, failure: FailureResult) -> Panel:
    servers = list(dict.fromkeys(lane.server for lane in failure.lanes))
    length_s, marks = failure.measured_s or 0.0, list[Mark]()
    for lane in (lane for lane in failure.lanes if lane.kind not in _OPTICAL):
        row, class_ = servers.index(lane.server), f"k-{_class(lane.kind)}"
        title = f"{lane.server}: {lane.kind}, {seconds(lane.end_s - lane.start_s)}"
        span, y = (lane.start_s, lane.end_s), (row, row + _LANE)
        marks.append(Box(span, y, class_, title, least=0.5))
    for name, at_s in failure.marks.items():
        if name in _FAILURE_MARKS and 0 <= at_s <= 1.02 * length_s:
            marks.append(Rule(f"m-{name}", x=at_s, title=f"{name} at {seconds(at_s)}"))
    name = f"{fabric.label}: {failure.name}" if fabric.is_invalid else failure.name
    heading = printable(f"{name}, iteration {failure.iteration}")
    note = f"{_recovery(failure)}\n{printable(failure.action)}"
    marks.append(_end(length_s, deviation(failure.slow_down)))
    marks = untrusted(marks, invalid=fabric.is_invalid)
    rows, height = Axis.rows(servers), 19.0 * len(servers)
    return Panel(Axis(0.0, length_s), rows, marks, height, heading, note)


def _recovery(failure: FailureResult) -> str:
    if failure.detected_s is None:
        return "no recovery needed" if failure.ok else "not detected"
    detected = f"detected after {seconds(failure.detected_s)}"
    if failure.recovered_s is None:
        return f"{detected}, not recovered"
    return f"{detected}, recovered after {seconds(failure.recovered_s)}"


# --- circuits ------------------------------------------------------------------------------------


def light_over_time(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw the circuits of fabrics whose light moves; empty if none does.

    A cell is the mean number of a pair's circuits over the requests of an iteration. The bars
    beneath count the circuits that moved for a request, as a mean.
    """
    strips = [
        _light(fabric, ends) for fabric in fabrics
        if fabric.result.reconfigurations and (ends := _ends(fabric))
    ]  # fmt: skip
    legend = [("lit", "circuits of a pair of servers"), ("moved", "circuits moved for a request")]
    return timeline(strips, legend, "Light over model time")


def _ends(fabric: FabricSummary) -> list[float]:
    """Return the end of each iteration in model seconds; empty if a duration is missing."""
    durations = [iteration.measured_s for iteration in fabric.result.iterations]
    known = [duration_s for duration_s in durations if duration_s is not None]
    return list(accumulate(known)) if len(known) == len(durations) else []


def _light(fabric: FabricSummary, ends: Sequence[float]) -> Panel:
    ordered = sorted(fabric.result.reconfigurations, key=lambda change: change.iteration)
    groups = groupby(ordered, key=lambda change: change.iteration)
    by_iteration = {number: list(changes) for number, changes in groups}
    lit = _circuits_by_pair(by_iteration)
    most = max((count for counts in lit.values() for count in counts.values()), default=1.0)
    spans = dict(enumerate(zip([0.0, *ends], ends, strict=False)))
    marks = list[Mark]()
    for row, (pair, counts) in enumerate(lit.items()):
        for iteration, count in counts.items():
            title = f"{pair}, iteration {iteration}: {count:.2g} circuits"
            shade = opacity(count / most)
            marks.append(Box(spans[iteration], (row, row + 0.93), "lit", title, shade))
    moved = {iteration: _moved(changes) for iteration, changes in by_iteration.items()}
    largest, bottom = max(moved.values(), default=0.0) or 1.0, len(lit) + 1.9
    for iteration, count in moved.items():
        start, end = spans[iteration]
        title = f"iteration {iteration}: {count:.2g} circuits moved for a request"
        x, y = (start, end - 0.02 * (end - start)), (bottom - 1.7 * count / largest, bottom)
        marks.append(Box(x, y, "moved", title))
    changed = [change for change in ordered if changes_circuits(change)]
    mean = f", {_moved(changed):.1f} each" if changed else ""
    note = f"{len(changed)} of {counted(len(ordered), 'request')} moved circuits{mean}"
    names = [*lit, "", "moved"]
    rows, height = Axis.rows(names), 15.0 * len(names)
    marks = untrusted(marks, invalid=fabric.is_invalid)
    return Panel(Axis(0.0, ends[-1]), rows, marks, height, fabric.label, note)


def _circuits_by_pair(
    by_iteration: Mapping[int, Sequence[ReconfigurationResult]],
) -> dict[str, dict[int, float]]:
    """Return the mean number of circuits of each pair of servers, by iteration."""
    lit: dict[str, dict[int, float]] = {}
    for iteration, requests in by_iteration.items():
        known = [one.circuits_after for one in requests if one.circuits_after is not None]
        total = Counter(_pair(circuit) for circuits in known for circuit in circuits)
        for pair, count in total.items():
            lit.setdefault(pair, {})[iteration] = count / len(known)
    return dict(sorted(lit.items())[:_MOST_PAIRS])


def _pair(circuit: str) -> str:
    """Return the servers of `s0/o0~s1/o2`: `s0 - s1`."""
    return printable(" - ".join(sorted(end.split("/")[0] for end in circuit.split("~"))))


def _moved(requests: Iterable[ReconfigurationResult]) -> float:
    """Return the mean number of circuits that requests lit anew."""
    return fmean(
        len(set(one.circuits_after or ()) - set(one.circuits_before or ())) for one in requests
    )
