"""Pictures of traces as SVG files: timelines of ranks, bytes between ranks, gating."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric.core.units import rate_text
from moefabric.report import formatting
from moefabric.report.chart import Panel
from moefabric.report.curves import SHARES
from moefabric.report.marks import Axis, Box, Boxes, Line, Mark, Rule, cell, opacity, ticks
from moefabric.report.picture import document_picture
from moefabric.workload.gating.statistics import expert_shares, max_over_mean, variation
from moefabric.workload.gating.traces import GatingTrace
from moefabric.workload.graphs.execution_graph import COLLECTIVES, ExecutionGraph, Node
from moefabric.workload.graphs.timeline import Interval

MOST_RANKS: Final = 16
"""Ranks with a row in the timeline."""
_LANE: Final = 7.0
"""Height of a lane."""
_BINS: Final = 750
"""Parts of a lane, about a pixel wide, of which each has one colour."""
_LANES: Final = (("compute",), ("send", "collective"), ("receive",))
"""Kinds of operations in the lanes of a row. Lanes that no rank needs are left out."""
_KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "compute": ("t0", "computation"),
    "all_to_all": ("t1", "all-to-all"),
    "all_reduce": ("t2", "all-reduce"),
    "all_gather": ("t5", "all-gather"),
    "reduce_scatter": ("t4", "reduce-scatter"),
    "send": ("t3", "send"),
    "receive": ("t6", "receive"),
}
"""Class and name of the kinds of operations; other collectives are drawn alike."""
_OTHER: Final = ("t7", "other collective")
_NARROW: Final = 3
"""Bins of an operation up to which it has no tooltip."""
_MOST_CELLS: Final = 64
"""Rows and columns of a heat map; larger matrices are summed in blocks."""
_POINTS: Final = 120
"""Points of a distribution."""

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


def graph_picture(
    graph: ExecutionGraph, intervals: Iterable[Interval], pairs: Counts, rate_bps: float
) -> str:
    """Draw the timeline of a graph's ranks, and the bytes that each rank sends each other one.

    Args:
        intervals: The times of the graph's operations.
        pairs: Bytes [source rank, target rank].
        rate_bps: Rate of NICs that the times assume.
    """
    count = min(len(graph.ranks), MOST_RANKS)
    shown = [interval for interval in intervals if interval.rank < count]
    end_s = max((interval.end_s for interval in shown), default=0.0) or 1.0
    more = f", {count} of {len(graph.ranks)} ranks" if count < len(graph.ranks) else ""
    title = f"{graph.name}: ideal timeline with NICs of {rate_text(rate_bps)}{more}"
    present = {_kind(interval.node) for interval in shown if interval.end_s > interval.start_s}
    kinds = {interval.node.kind for interval in shown}
    lanes = [lane for lane in _LANES if kinds & set(lane)] or [_LANES[0]]
    row, marks = len(lanes) * _LANE + 5.0, list[Mark]()
    for rank, (lane, of_lane) in product(range(count), enumerate(lanes)):
        listed = [i for i in shown if i.rank == rank and i.node.kind in of_lane]
        y = (rank + lane * _LANE / row, rank + ((lane + 1) * _LANE - 1) / row)
        marks += _lane(listed, end_s / _BINS, y)
    ranks = Axis.rows([f"rank {rank}" for rank in range(count)])
    timeline = Panel(Axis.seconds(0.0, end_s), ranks, marks, row * count)
    blocks = -(-max(pairs.shape) // _MOST_CELLS)
    summed = _blocks(pairs, blocks)
    largest = formatting.data_size(float(summed.max(initial=0)))
    note = f"darkest: {largest}" + (f", in blocks of {blocks} x {blocks} ranks" * (blocks > 1))

    def tip(i: int, j: int, size: float) -> str:
        return f"{i * blocks} to {j * blocks}: {formatting.data_size(size)}"

    matrix = _matrix(summed, tip, min(28.0, 520.0 / max(summed.shape)), blocks)
    heading, right = "Bytes from rank (row) to rank (column)", max(8.0, 760.0 - matrix.height)
    matrix = replace(matrix, heading=heading, note=note, right=right)
    legend = [entry for entry in (*_KINDS.values(), _OTHER) if entry in present]
    return document_picture(title, [timeline, matrix], legend=legend)


def _kind(node: Node) -> tuple[str, str]:
    return _KINDS.get(node.collective or node.kind, _OTHER)


def _lane(intervals: Sequence[Interval], bin_s: float, y: tuple[float, float]) -> Iterator[Mark]:
    """Yield operations of one rank, fainter in bins that they fill in part.

    A bin that several kinds of operations share has the colour of the longest one.
    """
    cover: list[dict[tuple[str, str], float]] = [{} for _ in range(_BINS)]
    named: dict[int, Interval] = {}
    for interval in intervals:
        first = min(_BINS - 1, int(interval.start_s / bin_s))
        last = min(_BINS - 1, max(first, int(np.ceil(interval.end_s / bin_s)) - 1))
        for number in range(first, last + 1):
            part = min((number + 1) * bin_s, interval.end_s) - max(number * bin_s, interval.start_s)
            entry = _kind(interval.node)
            cover[number][entry] = cover[number].get(entry, 0.0) + max(0.0, part)
        if last - first >= _NARROW:
            named[first] = interval
    chosen = [
        (max(parts, key=parts.__getitem__), _shade(sum(parts.values()) / bin_s)) if parts else None
        for parts in cover
    ]
    narrow: defaultdict[tuple[str, float], list[tuple[float, float]]] = defaultdict(list)
    starts = [n for n in range(_BINS) if not n or n in named or chosen[n] != chosen[n - 1]]
    for start, end in pairwise([*starts, _BINS]):
        if (look := chosen[start]) is None:
            continue
        (class_, kind), shade = look
        span = start * bin_s, end * bin_s
        if start in named or end - start > _NARROW:
            yield Box(span, y, class_, _tip(named.get(start), kind), shade)
        else:
            narrow[class_, shade].append(span)
    for (class_, shade), spans in narrow.items():
        yield Boxes(spans, y, class_, shade)


def _shade(filled: float) -> float:
    """Return one of four opacities for the part of a bin that is filled."""
    return max(1, min(4, round(4 * filled))) / 4


def _tip(interval: Interval | None, kind: str) -> str:
    if interval is None:
        return kind
    node = interval.node
    size = f", {formatting.data_size(node.size)}" if node.size else ""
    group = f", group {node.group}" if node.collective in COLLECTIVES else ""
    taken = formatting.seconds(interval.end_s - interval.start_s)
    return f"{node.name or kind}: {kind}{group}{size}, {taken}"


def _blocks(matrix: Counts, size: int) -> Counts:
    """Return the sums of blocks of rows and columns."""
    padded = np.pad(matrix, [(0, -length % size) for length in matrix.shape])
    rows, columns = (length // size for length in padded.shape)
    sums: Counts = padded.reshape(rows, size, columns, size).sum(axis=(1, 3))
    return sums


def _matrix(
    values: Counts | Floats, tip: Callable[[int, int, float], str], side: float, step: int = 1
) -> Panel:
    """Return a heat map of the values that aren't 0, with rows and columns by their numbers.

    Args:
        values: The values [row, column].
        tip: Returns the tooltip of a row, a column and its value.
        side: Height of a row in pixels.
        step: Rows and columns for which one stands.
    """
    largest, (rows, columns) = values.max(initial=0) or 1, values.shape
    gap = min(0.5, side / 16)
    marks = [
        cell(j, i, float(value / largest), tip(i, j, float(value)), class_="t1", gap=gap)
        for (i, j), value in np.ndenumerate(values)
        if value
    ]
    x, y = (
        Axis(0, n, {k + 0.5: str(k * step) for k in range(0, n, max(1, n // 8))}, grid="")
        for n in (columns, rows)
    )
    return Panel(x, replace(y, low=y.high, high=y.low), marks, side * rows)


def gating_picture(trace: GatingTrace, name: str) -> str:
    """Draw the loads of experts in each layer, and the tokens of one layer by rank and expert.

    Loads are relative to the mean, from the busiest expert to the idlest, of the mean over
    iterations. The matrix is that of the first iteration, in the layer of median skew.
    """
    shares = np.sort(expert_shares(trace).mean(axis=0), axis=-1)[:, ::-1]
    loads = shares * shares.shape[-1]
    layers, experts = loads.shape
    middle = int(np.argsort(loads[:, 0])[layers // 2])
    marks: list[Mark] = [Rule("reference", y=1.0)]
    for layer in (*(one for one in range(layers) if one != middle), middle):
        points = list(enumerate(loads[layer].tolist()))
        marks.append(Line(points, "curve c1" if layer == middle else "curve faint c5"))
    texts = {n: f"{n:g}" for n in ticks(0.0, experts - 1.0, 8) if n == int(n)}
    across = Axis(0.0, max(1.0, experts - 1.0), texts, "experts, busiest first", grid="")
    curves = Panel(across, Axis.numbers(0.0, 1.05 * float(loads.max()), most=5), marks, 220)
    tokens = trace.matrix(0, middle)[:128, :256]
    matrix = _matrix(
        tokens,
        lambda rank, expert, count: f"rank {rank} to expert {expert}: {count:.0f} tokens",
        min(22.0, max(2.0, 400.0 / len(tokens))),
    )
    heading = f"Tokens of ranks (row) to experts (column), layer {middle}"
    matrix = replace(
        matrix, heading=heading, note=f"darkest: {int(tokens.max(initial=0)):,} tokens"
    )
    legend = [("t5", "each layer"), ("t1", "layer of median skew")]
    title = f"{name}: load of experts relative to the mean, {layers} layers"
    return document_picture(title, [curves, matrix], legend=legend)


# --- recorded gating beside generated gating -----------------------------------------------------


def gating_comparison(
    recorded: GatingTrace, replicas: Sequence[GatingTrace], title: str, name: str
) -> str:
    """Draw recorded gating and replicas of the generator as a stand-alone SVG file.

    Heat maps show the layer whose loads vary as those of the median layer, in the first iteration,
    with the busiest experts at the left. Curves show the distribution of the loads of experts of
    all layers and iterations, and how far a rank's share of an expert is from that of all ranks,
    or with one rank the busiest expert of each layer.

    Args:
        recorded: The recorded trace.
        replicas: Generated traces of the same shape.
        title: Title of the picture.
        name: Name of the generator.
    """
    maps = {"recorded": _median_layer(recorded), name: _median_layer(replicas[0])}
    darkest = max(float(matrix.max()) for matrix in maps.values())
    panels = [_rank_map(matrix, darkest, text) for text, matrix in maps.items()]
    loads: dict[str, Callable[[GatingTrace], Floats]] = {
        "load of an expert, relative to the mean": _loads
    }
    if recorded.tokens.shape[2] > 1:
        loads["deviation of a rank's share of an expert, relative to the mean share"] = _deviations
    else:
        loads["busiest expert of a layer, relative to the mean"] = _busiest
    panels += [
        _distributions([values(trace) for trace in (*replicas, recorded)], text)
        for text, values in loads.items()
    ]
    legend = [("t7", "recorded"), ("t5", f"{name}, {len(replicas)} seeds")]
    return document_picture(title, panels, columns=2, legend=legend)


def _median_layer(trace: GatingTrace) -> Floats:
    """Return the tokens [rank, expert] of the median layer, relative to the mean."""
    spread = variation(expert_shares(trace)[0])
    layer = int(np.argsort(spread)[len(spread) // 2])
    tokens = trace.tokens[0, layer].astype(np.float64)
    tokens /= tokens.sum(axis=1, keepdims=True) / tokens.shape[1]
    busiest: Floats = tokens[:, np.argsort(-tokens.sum(axis=0))]
    return busiest


def _loads(trace: GatingTrace) -> Floats:
    loads: Floats = expert_shares(trace).ravel() * trace.tokens.shape[-1]
    return loads


def _busiest(trace: GatingTrace) -> Floats:
    return max_over_mean(expert_shares(trace)).ravel()


def _deviations(trace: GatingTrace) -> Floats:
    rows = trace.tokens / np.maximum(trace.tokens.sum(axis=-1, keepdims=True), 1)
    deviations: Floats = rows - rows.mean(axis=2, keepdims=True)
    deviations *= trace.tokens.shape[-1]
    return deviations.ravel()


def _rank_map(matrix: Floats, darkest: float, heading: str) -> Panel:
    ranks, experts = matrix.shape
    gap = 0.5 if experts < 60 else 0.0
    marks = [
        Box((j, j + 1), (i, i + 1), "t1", opacity=opacity(value / darkest), gap=gap)
        for (i, j), value in np.ndenumerate(matrix)
    ]
    x = Axis(0, experts, title=f"{experts} experts, the busiest first")
    y = Axis(ranks, 0, title=f"{ranks} ranks" if ranks > 1 else "rank")
    note = f"busiest pair {matrix.max():.2g} x mean"
    return Panel(x, y, marks, 176, heading, note)


def _distributions(samples: Sequence[Floats], text: str) -> Panel:
    """Draw cumulative distributions; the last one is the record's."""
    quantiles = np.linspace(0.0, 1.0, _POINTS + 1)
    curves = [np.quantile(values, quantiles) for values in samples]
    # Tails of replicas beyond the record's end are cut off.
    low, high = min(0.0, float(curves[-1][0])), 1.1 * float(curves[-1][-1])
    marks = []
    for curve in curves:
        points = list(zip(curve.tolist(), quantiles.tolist(), strict=True))
        marks.append(Line(points, "curve c7" if curve is curves[-1] else "curve faint c5"))
    return Panel(Axis.numbers(low, high, title=text), SHARES, marks, 190)
