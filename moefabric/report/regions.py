"""Regions: how each of them fared, all-to-all by all-to-all, and the light that each was given; for fabrics that have several."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from markupsafe import Markup

from moefabric.report import heat, ring, svg, words
from moefabric.report.result import AllToAll, Interval, Result

_LEFT, _TOP, _ROW, _GAP = 44.0, 58.0, 15.0, 26.0
_MOST_COLUMNS = 96
_DARKEST = 0.10
"""An error of this much makes the darkest cell, whatever the run: pictures of two runs can be held against each other."""

Column = tuple[int, bool, int, str]
"""Which all-to-all: iteration, backward, layer (those of the backward pass come last one first), kind."""


def first(result: Result) -> Result:
    """A fabric as its first region alone."""
    if not result.regions:
        return result
    servers = next(iter(result.regions.values()))
    return replace(
        result, circuits=_within(result, servers), wiring={**result.wiring, "servers": len(servers)}
    )


def timeline(result: Result) -> tuple[Interval, ...]:
    """What the servers of the first region did, and beneath them each other region as one: from its first server's start to its last one's end."""
    if not result.regions:
        return result.timeline
    shown = next(iter(result.regions))
    region_of = {server: region for region, servers in result.regions.items() for server in servers}
    kept: list[Interval] = []
    whole: dict[tuple[str, str, bool, int | None, int], Interval] = {}
    for interval in result.timeline:
        region = region_of.get(interval.server, shown)
        if region == shown:
            kept.append(interval)
            continue
        key = (region, interval.kind, interval.backward, interval.layer, interval.micro_batch)
        before = whole.get(key, interval)
        whole[key] = replace(
            interval,
            server=region,
            start_s=min(before.start_s, interval.start_s),
            end_s=max(before.end_s, interval.end_s),
        )
    return (*kept, *whole.values())


def errors(results: Sequence[Result]) -> Markup:
    """A heat map of each fabric: a row a region, a column an all-to-all, the darker the farther from the prediction. Empty without regions."""
    shown = [result for result in results if result.regions and result.all_to_alls]
    if not shown:
        return Markup()
    columns = sorted({_column(each) for result in shown for each in result.all_to_alls})[:_MOST_COLUMNS]
    across = (svg.WIDTH - _LEFT - _GAP * (len(shown) - 1)) / len(shown) - _LEFT
    cell = min(30.0, across / len(columns))
    drawn: list[Markup] = []
    for number, result in enumerate(shown):
        drawn += _errors(result, columns, _LEFT + number * (across + _LEFT + _GAP), cell)
    bottom = _TOP + _ROW * max(len(result.regions) for result in shown)
    drawn.append(_key(bottom + 16))
    return svg.picture(svg.WIDTH, bottom + 34, "Error of every all-to-all, region by region", drawn)


def rings(result: Result) -> Markup:
    """The light of every region, side by side. Empty without regions or light."""
    if not result.regions or not result.circuits:
        return Markup()
    side, many = svg.WIDTH / 8, len(result.regions)
    drawn: list[Markup] = []
    for number, (region, servers) in enumerate(result.regions.items()):
        row, column = divmod(number, 8)
        x, y = column * side, row * (side + 18)
        drawn.append(svg.label(x + side / 2, y + 13, region, "small", "middle"))
        small = ring.small(servers, _within(result, servers), side)
        drawn.append(svg.tag("g", *small, transform=f"translate({x:g} {y + 18:g})"))
    height = -(-many // 8) * (side + 18)
    return svg.picture(
        svg.WIDTH, height, f"Circuits of {words.printable(result.name)} in every region", drawn
    )


def _within(result: Result, servers: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple(circuit for circuit in result.circuits if circuit[0].split("/")[0] in servers)


def _column(each: AllToAll) -> Column:
    return each.iteration, each.backward, -each.layer if each.backward else each.layer, _order(each)


def _order(each: AllToAll) -> str:
    """In a forward pass dispatch is before combine, in a backward one after it."""
    return ("0 " if (each.kind == "dispatch") != each.backward else "1 ") + each.kind


def _errors(result: Result, columns: Sequence[Column], left: float, cell: float) -> Iterator[Markup]:
    yield svg.label(left, 14, words.printable(result.name), "strong")
    yield from _heads(columns, left, cell)
    found: Mapping[tuple[str, Column], AllToAll] = {
        (each.region, _column(each)): each for each in result.all_to_alls
    }
    for row, region in enumerate(result.regions):
        y = _TOP + row * _ROW
        yield svg.label(left - 8, y + _ROW - 3, region, "tick", "end")
        for number, column in enumerate(columns):
            each = found.get((region, column))
            if each is not None and each.error is not None:
                yield _cell(each, left + number * cell, y, cell)


def _heads(columns: Sequence[Column], left: float, cell: float) -> Iterator[Markup]:
    """Above the first all-to-all of a layer and pass, which one that is."""
    said: set[tuple[int, bool, int]] = set()
    for number, (iteration, backward, layer, _) in enumerate(columns):
        if (iteration, backward, layer) in said:
            continue
        said.add((iteration, backward, layer))
        x = left + number * cell
        yield svg.line(x, _TOP - 10, x, _TOP - 3, "tickmark")
        yield svg.label(x + 3, _TOP - 5, f"L{abs(layer)}{' back' if backward else ''}", "faint")


def _cell(each: AllToAll, x: float, y: float, cell: float) -> Markup:
    error = each.error or 0.0
    way = "backward" if each.backward else "forward"
    title = (
        f"{each.region} · layer {each.layer} {way} · {each.kind}: {words.seconds(each.measured_s)}, "
        f"{words.error(error)} of {words.seconds(each.predicted_s)}"
    )
    return svg.tag(
        "rect", svg.tag("title", title), x=x + 0.5, y=y + 0.5, width=cell - 1, height=_ROW - 1, class_="cell",
        fill_opacity=heat.opacity(min(1.0, abs(error) / _DARKEST)),
    )  # fmt: skip


def _key(y: float) -> Markup:
    most = f"{_DARKEST:.0%} and more from the prediction, longer or shorter"
    return svg.tag("g", *heat.scale(_LEFT + 16, y, most))
