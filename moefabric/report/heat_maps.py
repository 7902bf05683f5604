"""Heat maps: demand between servers, loads of experts, errors of regions."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from moefabric.report import formatting
from moefabric.report.chart import Panel, figure
from moefabric.report.marks import Axis, Box, Dot, Mark, cell, ticks, untrusted
from moefabric.report.summary import FabricSummary
from moefabric.results.parts import CollectiveResult

_SIZE: Final = 270.0
"""Width and height of a demand matrix."""
_MOST_FIGURES: Final = 8
"""Number of servers up to which every cell has room for its figure."""
_MOST_WIDE_FIGURES: Final = 4
"""Number of servers up to which a cell has room for three digits and a point beside its dots."""
_MOST_ITERATIONS: Final = 80
"""Columns of a map of loads; more iterations are drawn as means of several."""
_MOST_COLUMNS: Final = 96
"""All-to-alls of which errors are drawn."""
_DARKEST: Final = 0.10
"""Error of the darkest cell, the same in all runs so that their charts can be compared."""

Column = tuple[int, bool, int, str]
"""Sort key of an all-to-all in its iteration: iteration, backward, layer, kind.

Layers of the backward pass are negative, because the last layer comes first.
"""


def demand_picture(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw the demand of the first fabric's first region; empty if the run has none."""
    fabric = fabrics[0].first_region
    return demand_heatmap(fabric, max((max(row) for row in fabric.demand), default=0.0))


def demand_heatmaps(fabrics: Sequence[FabricSummary]) -> list[tuple[FabricSummary, Markup]]:
    """Draw the first region of every fabric with demand or circuits, on one colour scale."""
    shown = [f.first_region for f in fabrics if f.demand or f.result.circuits]
    matrices = (np.array(fabric.demand) for fabric in shown if fabric.demand)
    largest = max((float((m * (1 - np.eye(len(m)))).max()) for m in matrices), default=0.0)
    return [(fabric, demand_heatmap(fabric, largest)) for fabric in shown]


def demand_heatmap(fabric: FabricSummary, largest: float) -> Markup:
    """Draw the demand of one fabric, with a dot for each circuit; empty if the run has none.

    Args:
        largest: Bytes of the darkest cell, which also decide the unit of the figures.
    """
    demand, circuits = fabric.demand, fabric.result.circuits
    if not demand:
        return Markup()
    pairs = Counter(frozenset(end.split("/")[0] for end in circuit) for circuit in circuits)
    names = [f"s{n}" for n in range(len(demand))]
    factor, prefix = formatting.decimal_prefix(largest)
    marks = [
        mark
        for (i, j), owed in np.ndenumerate(np.array(demand))
        for mark in _owed(len(demand), i, j, owed, largest, pairs[frozenset((names[i], names[j]))])
    ]
    panel = Panel(Axis.names(names, "to"), Axis.rows(names, "from"), marks, _SIZE)
    legend = [("heat", f"0 to {formatting.significant(largest / factor, 3)} {prefix}B")]
    legend += [("lit-dot", "circuit")] if circuits else []
    return figure(f"Demand matrix of {fabric.name}", [panel], legend=legend, width=_SIZE + 56)


def _owed(n: int, i: int, j: int, owed: float, largest: float, circuits: int) -> Iterator[Mark]:
    """Yield one cell with its figure, and a dot per circuit in its corner.

    A smaller cell has a figure of at most three characters, above the dots; a small one has one dot
    in its middle, larger for more circuits.
    """
    size, side = formatting.data_size(owed), _SIZE / n
    if i == j:
        title = f"s{i} to itself: {size} stay on the server"
        yield Box((j, j + 1), (i, i + 1), "cell-self", title, gap=1)
        return
    factor, _ = formatting.decimal_prefix(largest)
    is_wide, texts = n <= _MOST_WIDE_FIGURES, list[str]()
    if is_wide:
        texts = [formatting.significant(owed / factor, 3)]
    elif n <= _MOST_FIGURES:
        texts = [f"{owed / factor:.{0 if largest / factor >= 9.95 else 1}f}"]
    count = formatting.counted(circuits, "circuit") if circuits else "no circuit"
    share = min(1.0, owed / largest) if largest else 0.0
    box = cell(j, i, share, f"s{i} to s{j}: {size}, {count}", texts, gap=1)
    yield box if is_wide else replace(box, text_class=f"{box.text_class} tight")
    if n > _MOST_FIGURES and circuits:
        yield Dot(j + 0.5, i + 0.5, "lit-dot", radius=min(side / 2 - 2, 1.8 + 0.9 * circuits))
        return
    radius = 3.0 if is_wide else 2.8
    row, down = (i, 4 + radius) if is_wide else (i + 1, -3 - radius)
    for k in range(min(circuits, 4)):
        left = -4 - radius * (1 + 2.5 * k)
        yield Dot(j + 1, row, "lit-dot", radius=radius, dx=left, dy=down)


def loads_picture(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw the loads of experts on the first fabric that has any; empty if none has.

    There is a map for each layer. Loads are relative to even ones.
    """
    trained = (fabric.result.training for fabric in fabrics)
    tokens = next((one.tokens for one in trained if one is not None and one.tokens), [])
    counts = np.array(tokens, np.float64)
    if not counts.size:
        return Markup()
    counts = counts.sum(axis=2)  # of all ranks
    loads = counts / np.maximum(counts.mean(axis=-1, keepdims=True), 1e-300)
    largest = float(loads.max())
    experts = Axis.rows([str(expert) for expert in range(loads.shape[2])], "expert")
    panels = []
    for layer in range(loads.shape[1]):
        cells = loads[:, layer]
        iteration, expert = np.unravel_index(int(cells.argmax()), cells.shape)
        note = f"busiest: expert {expert}, {cells.max():.1f} x in iteration {iteration}"
        texts = {mark + 0.5: f"{mark:g}" for mark in ticks(0, len(cells) - 1) if mark == int(mark)}
        x = Axis(0, len(cells), texts, "iteration", grid="")
        y = experts if layer % 3 == 0 else replace(experts, ticks={}, title="")
        panels.append(Panel(x, y, list(_loads(cells, largest)), 150, f"layer {layer}", note))
    scale = f"0 to {largest:.1f} x: tokens of an expert, relative to the mean of its layer"
    columns = min(3, len(panels))
    return figure("Loads of experts", panels, columns=columns, legend=[("heat", scale)])


def _loads(loads: NDArray[np.float64], largest: float) -> Iterator[Mark]:
    """Yield the cells of a layer, given its loads [iteration, expert]."""
    gap = 0.5 if loads.shape[1] < 30 else 0.0
    for part in np.array_split(np.arange(len(loads)), min(len(loads), _MOST_ITERATIONS)):
        first, last = int(part[0]), int(part[-1])
        when = f"iteration {first}" if first == last else f"iterations {first} to {last}"
        for expert, load in enumerate(loads[part].mean(axis=0)):
            title = f"{when}, expert {expert}: {load:.2f} x"
            mark = cell(first, expert, load / largest, title, gap=gap)
            yield replace(mark, x=(first, last + 1))


def region_errors(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw a heat map per fabric of the all-to-alls' errors; empty without several regions.

    A row is a region, a column an all-to-all in the order of the iteration.
    """
    shown = [fabric for fabric in fabrics if fabric.regions and fabric.all_to_alls]
    columns = sorted({_column(c) for fabric in shown for c in fabric.all_to_alls})[:_MOST_COLUMNS]
    top: dict[float, str] = {}
    for _, group in groupby(enumerate(columns), key=lambda column: column[1][:3]):
        number, (_, backward, layer, _) = next(group)
        top[number] = f"L{abs(layer)}{' back' if backward else ''}"
    panels = []
    for fabric in shown:
        rows = list(fabric.regions)
        marks: list[Mark] = [
            _error(c, columns.index(_column(c)), rows.index(c.region), c.error)
            for c in fabric.all_to_alls
            if c.error is not None and _column(c) in columns and c.region in rows
        ]
        marks = untrusted(marks, invalid=fabric.is_invalid)
        axis, height = Axis(0, max(12, len(columns))), 15.0 * len(rows)
        panels.append(Panel(axis, Axis.rows(rows), marks, height, fabric.label, top=top))
    legend = [("heat", f"0 to {_DARKEST:.0%} or more from the prediction, in either direction")]
    label = "Error of every all-to-all, by region"
    return figure(label, panels, columns=max(1, len(panels)), legend=legend)


def _column(c: CollectiveResult) -> Column:
    """Return the sort key; dispatch is before combine in a forward pass, after it in a backward."""
    position = "0 " if (c.kind == "dispatch") != c.backward else "1 "
    layer = c.layer or 0
    return c.iteration, c.backward, -layer if c.backward else layer, position + c.kind


def _error(c: CollectiveResult, column: int, row: int, error: float) -> Mark:
    way = "backward" if c.backward else "forward"
    measured, predicted = formatting.seconds(c.measured_s), formatting.seconds(c.predicted_s)
    title = f"{c.region} · layer {c.layer} {way} · {c.kind}: {measured}, "
    title += f"{formatting.deviation(error)} of {predicted}"
    return cell(column, row, abs(error) / _DARKEST, title)
