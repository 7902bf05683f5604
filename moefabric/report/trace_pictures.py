"""Pictures of traces as SVG files: timelines of ranks, bytes between ranks, gating."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from moefabric.core.units import rate_text
from moefabric.report import formatting, svg
from moefabric.report.demand_heatmap import opacity
from moefabric.report.picture_file import WIDTH, picture_file
from moefabric.workload.execution_graph import COLLECTIVES, ExecutionGraph, Node
from moefabric.workload.gating import GatingTrace
from moefabric.workload.gating_statistics import expert_shares
from moefabric.workload.graph_timeline import Interval

MOST_RANKS: Final = 16
"""Ranks with a row in the timeline."""
_LEFT, _RIGHT = 76.0, 24.0
_LANE, _GAP = 7.0, 5.0
"""Height of a lane, and the space between rows."""
_LANES: Final = (("compute",), ("send", "collective"), ("receive",))
"""Kinds of operations in the lanes of a row. Lanes that no rank needs are left out."""
_KINDS: Final[dict[str, tuple[str, str]]] = {
    "compute": ("t0", "computation"),
    "all_to_all": ("t1", "all-to-all"),
    "all_reduce": ("t2", "all-reduce"),
    "all_gather": ("t3", "all-gather"),
    "reduce_scatter": ("t4", "reduce-scatter"),
    "send": ("t5", "send"),
    "receive": ("t6", "receive"),
}
"""Class and name of the kinds of operations; other collectives are drawn alike."""
_OTHER: Final = ("t7", "other collective")
_NARROW: Final = 3
"""Pixels of an operation up to which it has no tooltip."""
_MOST_CELLS: Final = 64
"""Rows and columns of a heat map; larger matrices are summed in blocks."""


def graph_picture(
    graph: ExecutionGraph, intervals: Iterable[Interval], pairs: NDArray[np.int64], rate_bps: float
) -> str:
    """Draw the timeline of a graph's ranks, and the bytes that each rank sends each other one.

    Args:
        graph: The graph.
        intervals: The times of its operations.
        pairs: Bytes [source rank, target rank].
        rate_bps: Rate of NICs that the times assume.
    """
    count = min(len(graph.ranks), MOST_RANKS)
    shown = [interval for interval in intervals if interval.rank < count]
    end_s = max((interval.end_s for interval in shown), default=0.0)
    more = f", {count} of {len(graph.ranks)} ranks" if count < len(graph.ranks) else ""
    title = f"{graph.name}: ideal timeline with NICs of {rate_text(rate_bps)}{more}"
    present = {_kind(interval.node) for interval in shown if interval.end_s > interval.start_s}
    drawn = [svg.label(16, 24, title, "strong")]
    drawn.append(svg.legend(20, 52, [one for one in (*_KINDS.values(), _OTHER) if one in present]))
    drawn_kinds = {interval.node.kind for interval in shown}
    lanes = [lane for lane in _LANES if drawn_kinds & set(lane)] or [_LANES[0]]
    top, row = 66.0, len(lanes) * _LANE + _GAP
    across = svg.LinearScale(0.0, end_s or 1.0, _LEFT, WIDTH - _RIGHT)
    bottom = top + count * row
    drawn += svg.time_axis(across, top, bottom)
    for rank in range(count):
        y = top + rank * row
        middle = y + len(lanes) * _LANE / 2
        drawn.append(svg.label(_LEFT - 8, middle + 4, f"rank {rank}", "tick", "end"))
        own = [interval for interval in shown if interval.rank == rank]
        for lane, kinds in enumerate(lanes):
            chosen = [one for one in own if one.node.kind in kinds]
            drawn += _lane(chosen, across, y + lane * _LANE)
    y = bottom + 64
    drawn.append(svg.label(16, y, "Bytes from rank (row) to rank (column)", "strong"))
    matrix, height = _heat_map(pairs, y + 22)
    return picture_file(y + 22 + height, title, [*drawn, *matrix])


def _kind(node: Node) -> tuple[str, str]:
    return _KINDS.get(node.collective or node.kind, _OTHER)


def _lane(intervals: Sequence[Interval], across: svg.LinearScale, y: float) -> list[Markup]:
    """Draw operations of one rank, fainter in pixels that they fill in part.

    Of operations that share a pixel, it is the kind that takes most of it.
    """
    width = int(across.end - across.start)
    cover: list[dict[tuple[str, str], float]] = [{} for _ in range(width)]
    per_pixel = (across.high - across.low) / width
    named: dict[int, Interval] = {}
    for one in intervals:
        first = min(width - 1, int(one.start_s / per_pixel))
        last = min(width - 1, max(first, int(np.ceil(one.end_s / per_pixel)) - 1))
        for pixel in range(first, last + 1):
            start, end = pixel * per_pixel, (pixel + 1) * per_pixel
            part = min(end, one.end_s) - max(start, one.start_s)
            own = _kind(one.node)
            cover[pixel][own] = cover[pixel].get(own, 0.0) + max(0.0, part)
        if last - first >= 3:
            named[first] = one
    drawn: list[Markup] = []
    narrow: defaultdict[tuple[str, float], list[str]] = defaultdict(list)
    chosen = [
        (max(one, key=lambda own: one[own]), _shade(sum(one.values()) / per_pixel)) if one else None
        for one in cover
    ]
    start, height = 0, _LANE - 1
    for pixel in range(1, width + 1):
        if pixel < width and chosen[pixel] == chosen[start] and pixel not in named:
            continue
        if (look := chosen[start]) is not None:
            (class_, kind), shade = look
            x, length = across.start + start, pixel - start
            if start in named or length > _NARROW:
                tip = _tip(named.get(start), kind)
                drawn.append(svg.rect(x, y, length, height, class_, title=tip, opacity=shade))
            else:
                narrow[class_, shade].append(f"M{x:g} {y:g}h{length}v{height:g}h-{length}z")
        start = pixel
    # Thousands of short operations are one element, so that files stay small.
    for (class_, shade), parts in narrow.items():
        drawn.append(svg.tag("path", d="".join(parts), class_=class_, fill_opacity=shade))
    return drawn


def _shade(filled: float) -> float:
    """Return one of four opacities for the part of a pixel that is filled."""
    return max(1, min(4, round(4 * filled))) / 4


def _tip(interval: Interval | None, kind: str) -> str:
    if interval is None:
        return kind
    node = interval.node
    size = f", {formatting.data_size(node.size)}" if node.size else ""
    group = f", group {node.group}" if node.collective in COLLECTIVES else ""
    taken = formatting.seconds(interval.end_s - interval.start_s)
    return f"{node.name or kind}: {kind}{group}{size}, {taken}"


def _heat_map(pairs: NDArray[np.int64], top: float) -> tuple[list[Markup], float]:
    """Return the cells of a matrix [row, column], and the height that they take."""
    blocks = -(-max(pairs.shape) // _MOST_CELLS)
    matrix = _blocks(pairs, blocks)
    rows, columns = matrix.shape
    side = min(28.0, 520.0 / max(rows, columns))
    largest = int(matrix.max(initial=0))
    drawn: list[Markup] = []
    for i in range(rows):
        if i % max(1, rows // 8) == 0:
            y = top + 12 + (i + 0.5) * side + 4
            drawn.append(svg.label(_LEFT - 8, y, i * blocks, "tick", "end"))
        for j in range(columns):
            if not i and j % max(1, columns // 8) == 0:
                drawn.append(
                    svg.label(_LEFT + (j + 0.5) * side, top + 4, j * blocks, "tick", "middle")
                )
            if not matrix[i, j]:
                continue
            share = matrix[i, j] / largest
            tip = f"{i * blocks} to {j * blocks}: {formatting.data_size(float(matrix[i, j]))}"
            x, y, gap = _LEFT + j * side, top + 12 + i * side, min(1.0, side / 8)
            drawn.append(
                svg.rect(x, y, side - gap, side - gap, "t1", title=tip, opacity=opacity(share))
            )
    key = top + 12 + rows * side + 24
    text = f"darkest: {formatting.data_size(float(largest))}"
    text += f", in blocks of {blocks} x {blocks} ranks" if blocks > 1 else ""
    drawn.append(svg.label(_LEFT, key, text, "small"))
    return drawn, key - top + 20


def _blocks(matrix: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return the sums of blocks of rows and columns."""
    if size == 1:
        return matrix
    padding = [(0, -length % size) for length in matrix.shape]
    padded = np.pad(matrix, padding)
    rows, columns = (length // size for length in padded.shape)
    sums: NDArray[np.int64] = padded.reshape(rows, size, columns, size).sum(axis=(1, 3))
    return sums


def gating_picture(trace: GatingTrace, name: str) -> str:
    """Draw the loads of experts in each layer, and the tokens of one layer by rank and expert.

    Loads are relative to the mean, from the busiest expert to the idlest, of the mean over
    iterations. The matrix is that of the first iteration, in the layer of median skew.
    """
    shares = np.sort(expert_shares(trace).mean(axis=0), axis=-1)[:, ::-1]
    loads = shares * shares.shape[-1]
    layers, experts = loads.shape
    middle = int(np.argsort(loads[:, 0])[layers // 2])
    title = f"{name}: load of experts relative to the mean, {layers} layers"
    drawn = [svg.label(16, 24, title, "strong")]
    drawn.append(svg.legend(20, 52, [("t3", "each layer"), ("t1", "layer of median skew")]))
    high = float(loads.max())
    across = svg.LinearScale(0.0, max(1.0, experts - 1.0), _LEFT, WIDTH - _RIGHT)
    up = svg.LinearScale(0.0, high * 1.05, 290, 70)
    for tick in svg.ticks(0.0, high, 5):
        drawn.append(svg.line(_LEFT, up(tick), WIDTH - _RIGHT, up(tick), "grid"))
        drawn.append(svg.label(_LEFT - 8, up(tick) + 4, f"{tick:g}", "tick", "end"))
    drawn.append(svg.line(_LEFT, up(1.0), WIDTH - _RIGHT, up(1.0), "reference"))
    drawn += [
        svg.label(across(expert), 308, f"{expert:g}", "tick", "middle")
        for expert in svg.ticks(0.0, experts - 1.0, 8)
        if expert == int(expert)
    ]
    drawn.append(svg.label((_LEFT + WIDTH) / 2, 326, "experts, busiest first", "small", "middle"))
    order = [layer for layer in range(layers) if layer != middle] + [middle]
    for layer in order:
        curve = "curve c1" if layer == middle else "curve c3"
        points = [(across(float(n)), up(float(load))) for n, load in enumerate(loads[layer])]
        drawn.append(svg.path(points, curve))
    text = f"Tokens of ranks (row) to experts (column), layer {middle}"
    drawn.append(svg.label(16, 366, text, "strong"))
    cells, height = _token_map(trace.matrix(0, middle), 388)
    return picture_file(388 + height, title, [*drawn, *cells])


def _token_map(tokens: NDArray[np.int64], top: float) -> tuple[list[Markup], float]:
    """Return the cells of a matrix [rank, expert], of at most 128 rows and 256 columns."""
    rows, columns = min(128, len(tokens)), min(256, tokens.shape[1])
    width = (WIDTH - _LEFT - _RIGHT) / columns
    height = min(22.0, max(2.0, 400.0 / rows))
    largest = int(tokens.max(initial=0))
    drawn = []
    for i in range(rows):
        if i % max(1, rows // 8) == 0:
            y = top + (i + 0.5) * height + 4
            drawn.append(svg.label(_LEFT - 8, y, i, "tick", "end"))
        for j in range(columns):
            count = int(tokens[i, j])
            if count:
                x, y, gap = _LEFT + j * width, top + i * height, min(1.0, width / 8)
                tip = f"rank {i} to expert {j}: {count} tokens"
                shade = opacity(count / largest)
                size = width - gap, height - min(1.0, height / 8)
                drawn.append(svg.rect(x, y, *size, "t1", title=tip, opacity=shade))
    key = top + rows * height + 22
    drawn.append(svg.label(_LEFT, key, f"darkest: {largest:,} tokens", "small"))
    return drawn, key - top + 20
