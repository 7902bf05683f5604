"""Charts of fabrics with several regions: timeline rows, errors and circuits of each region."""

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from moefabric.report import formatting, svg
from moefabric.report.circuit_chords import small_chords
from moefabric.report.demand_heatmap import colour_key, opacity
from moefabric.report.summary import FabricSummary
from moefabric.runner.result_parts import CollectiveResult, ServerInterval

_LEFT, _TOP, _ROW, _GAP = 44.0, 58.0, 15.0, 26.0
_MOST_COLUMNS = 96
_DARKEST = 0.10
"""Error of the darkest cell, the same in all runs so that their charts can be compared."""
_DIAGRAMS_PER_ROW = 8

Column = tuple[int, bool, int, str]
"""Sort key of an all-to-all in its iteration: iteration, backward, layer, kind.

Layers of the backward pass are negative, because the last layer comes first.
"""


def first_region(fabric: FabricSummary) -> FabricSummary:
    """Reduce a fabric to the servers and circuits of its first region."""
    if not fabric.regions:
        return fabric
    servers = next(iter(fabric.regions.values()))
    wiring = fabric.result.wiring.model_copy(update={"servers": len(servers)})
    circuits = _circuits_within(fabric, servers)
    return FabricSummary(
        fabric.result.model_copy(update={"wiring": wiring, "circuits": circuits}), fabric.base
    )


def timeline(fabric: FabricSummary) -> list[ServerInterval]:
    """Return the intervals of the first region's servers, and those of each other region as one.

    A region's interval lasts from its first server's start to its last server's end.
    """
    if not fabric.regions:
        return fabric.timeline
    first = next(iter(fabric.regions))
    region_of = {server: name for name, servers in fabric.regions.items() for server in servers}
    intervals: list[ServerInterval] = []
    merged: dict[tuple[str, str, bool, int | None, int], ServerInterval] = {}
    for i in fabric.timeline:
        region = region_of.get(i.server, first)
        if region == first:
            intervals.append(i)
            continue
        key = (region, i.kind, i.backward, i.layer, i.micro_batch)
        other = merged.get(key, i)
        start_s, end_s = min(other.start_s, i.start_s), max(other.end_s, i.end_s)
        merged[key] = i.model_copy(update={"server": region, "start_s": start_s, "end_s": end_s})
    return [*intervals, *merged.values()]


def region_errors(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw a heat map per fabric of the all-to-alls' errors; empty without several regions.

    A row is a region, a column an all-to-all in the order of the iteration.
    """
    shown = [fabric for fabric in fabrics if fabric.regions and fabric.all_to_alls]
    if not shown:
        return Markup()
    columns = sorted({_column(c) for fabric in shown for c in fabric.all_to_alls})[:_MOST_COLUMNS]
    width = (svg.WIDTH - _LEFT - _GAP * (len(shown) - 1)) / len(shown) - _LEFT
    cell = min(30.0, width / len(columns))
    drawn: list[Markup] = []
    for number, fabric in enumerate(shown):
        drawn += _errors(fabric, columns, _LEFT + number * (width + _LEFT + _GAP), cell)
    bottom = _TOP + _ROW * max(len(fabric.regions) for fabric in shown)
    largest = f"{_DARKEST:.0%} or more from the prediction, in either direction"
    drawn += colour_key(_LEFT + 16, bottom + 16, largest)
    return svg.picture(svg.WIDTH, bottom + 34, "Error of every all-to-all, by region", drawn)


def region_circuits(fabric: FabricSummary) -> Markup:
    """Draw the circuits of every region; empty without several regions or without circuits."""
    if not fabric.regions or not fabric.result.circuits:
        return Markup()
    side = svg.WIDTH / _DIAGRAMS_PER_ROW
    drawn: list[Markup] = []
    for number, (region, servers) in enumerate(fabric.regions.items()):
        row, column = divmod(number, _DIAGRAMS_PER_ROW)
        x, y = column * side, row * (side + 18)
        drawn.append(svg.label(x + side / 2, y + 13, region, "small", "middle"))
        diagram = small_chords(servers, _circuits_within(fabric, servers), side)
        drawn.append(svg.tag("g", diagram, transform=f"translate({x:g} {y + 18:g})"))
    height = -(-len(fabric.regions) // _DIAGRAMS_PER_ROW) * (side + 18)
    return svg.picture(svg.WIDTH, height, f"Circuits of {fabric.name} in every region", drawn)


def _circuits_within(fabric: FabricSummary, servers: Sequence[str]) -> list[tuple[str, str]]:
    return [ends for ends in fabric.result.circuits if ends[0].split("/")[0] in servers]


def _column(c: CollectiveResult) -> Column:
    """Return the sort key; dispatch is before combine in a forward pass, after it in a backward."""
    position = "0 " if (c.kind == "dispatch") != c.backward else "1 "
    layer = c.layer or 0
    return c.iteration, c.backward, -layer if c.backward else layer, position + c.kind


def _errors(
    fabric: FabricSummary, columns: Sequence[Column], left: float, cell: float
) -> Iterator[Markup]:
    yield svg.label(left, 14, fabric.name, "strong")
    layer_before: tuple[int, bool, int] | None = None
    for number, (iteration, backward, layer, _) in enumerate(columns):
        if (iteration, backward, layer) != layer_before:
            x, layer_before = left + number * cell, (iteration, backward, layer)
            yield svg.line(x, _TOP - 10, x, _TOP - 3, "tickmark")
            name = f"L{abs(layer)}{' back' if backward else ''}"
            yield svg.label(x + 3, _TOP - 5, name, "faint")
    by_cell = {(c.region, _column(c)): c for c in fabric.all_to_alls}
    for row, region in enumerate(fabric.regions):
        y = _TOP + row * _ROW
        yield svg.label(left - 8, y + _ROW - 3, region, "tick", "end")
        for number, column in enumerate(columns):
            collective = by_cell.get((region, column))
            if collective is not None and collective.error is not None:
                yield _cell(collective, collective.error, left + number * cell, y, cell)


def _cell(c: CollectiveResult, error: float, x: float, y: float, cell: float) -> Markup:
    way = "backward" if c.backward else "forward"
    measured, predicted = formatting.seconds(c.measured_s), formatting.seconds(c.predicted_s)
    title = (
        f"{c.region} · layer {c.layer} {way} · {c.kind}: {measured}, "
        f"{formatting.deviation(error)} of {predicted}"
    )
    shade = opacity(min(1.0, abs(error) / _DARKEST))
    return svg.rect(x + 0.5, y + 0.5, cell - 1, _ROW - 1, "cell", title=title, opacity=shade)
