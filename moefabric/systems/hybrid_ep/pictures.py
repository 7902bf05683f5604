"""Pictures of the study of HybridEP: time over domains, and speed-up over tokens."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from markupsafe import Markup

from moefabric.report import svg
from moefabric.report.picture_file import WIDTH, picture_file
from moefabric.workload.hybrid_ep import token_share

if TYPE_CHECKING:
    from moefabric.systems.hybrid_ep.report import Candidate, SpeedRow

_LEFT: Final = 60.0
_RIGHT: Final = 24.0
_TOP: Final = 76.0
_BOTTOM: Final = 300.0
_GAP: Final = 56.0


def domain_picture(cases: Mapping[str, Sequence["Candidate"]]) -> str:
    """Draw the time of each case over p: a line for the formula, points for measured runs."""
    title = "Forward pass over p, the share of chunks sent as tokens, ms"
    legend = [("t1", "measured"), ("t4", "formula")]
    drawn = [svg.label(16, 22, title, "strong"), svg.legend(_LEFT, 50, legend)]
    for left, width, (name, rows) in _panels(cases.items()):
        high = max(1e3 * max(row.formula_s, *row.run.result.seconds) for row in rows)
        up = svg.LinearScale(0.0, high * 1.06, _BOTTOM, _TOP)
        drawn += [*_grid(up, left, left + width), *_times(name, rows, up, left, width)]
    return picture_file(_BOTTOM + 52, title, drawn)


def _times(
    name: str, rows: Sequence["Candidate"], up: svg.LinearScale, left: float, width: float
) -> list[Markup]:
    across = svg.LinearScale(0.0, 1.0, left + 12, left + width - 12)
    workers = rows[0].run.layer.levels[0]
    places = [across(token_share(workers, row.domains[0])) for row in rows]
    line = [(x, up(1e3 * row.formula_s)) for x, row in zip(places, rows, strict=True)]
    drawn = [svg.path(line, "curve c4")]
    for x, row in zip(places, rows, strict=True):
        for seconds in row.run.result.seconds:
            tip = f"{name}, domains of {row.domains[0]}: {1e3 * seconds:.2f} ms"
            drawn.append(svg.circle(x, up(1e3 * seconds), 4, "t1", tip))
    drawn += [
        svg.label(across(tick), _BOTTOM + 18, f"{tick:g}", "tick", "middle")
        for tick in (0.0, 0.5, 1.0)
    ]
    drawn.append(svg.label(left + width / 2, _BOTTOM + 38, name, "small", "middle"))
    return drawn


T = TypeVar("T")


def _panels(contents: Collection[T]) -> Iterator[tuple[float, float, T]]:
    """Yield the left edge and the width of a panel for each content, side by side."""
    width = (WIDTH - _LEFT - _RIGHT - _GAP * (len(contents) - 1)) / len(contents)
    for number, content in enumerate(contents):
        yield _LEFT + number * (width + _GAP), width, content


def speed_picture(clusters: Mapping[str, Sequence["SpeedRow"]]) -> str:
    """Draw the speed-up of each cluster over the tokens, measured and published."""
    title = "Speed-up of an iteration over plain expert parallelism"
    high = max(
        max(row.published, row.plain.seconds / row.hybrid.seconds)
        for rows in clusters.values()
        for row in rows
    )
    up = svg.LinearScale(0.0, high * 1.06, _BOTTOM, _TOP)
    legend = [("t1", "measured"), ("t4", "published")]
    drawn = [svg.label(16, 22, title, "strong"), svg.legend(_LEFT, 50, legend)]
    for left, width, (name, rows) in _panels(clusters.items()):
        drawn += [*_grid(up, left, left + width), *_speeds(name, rows, up, left, width)]
    return picture_file(_BOTTOM + 52, title, drawn)


def _speeds(
    name: str, rows: Sequence["SpeedRow"], up: svg.LinearScale, left: float, width: float
) -> list[Markup]:
    across = svg.LinearScale(0, max(1, len(rows) - 1), left + 24, left + width - 24)
    places = [across(position) for position in range(len(rows))]
    published = [(x, up(row.published)) for x, row in zip(places, rows, strict=True)]
    measured = [
        (x, up(row.plain.seconds / row.hybrid.seconds)) for x, row in zip(places, rows, strict=True)
    ]
    drawn = [svg.path(published, "curve c4"), svg.path(measured, "curve c1")]
    for x, row, (_, y) in zip(places, rows, measured, strict=True):
        tip = f"cluster {name}, {row.tokens:g} MB: {row.plain.seconds / row.hybrid.seconds:.2f}x"
        drawn.append(svg.circle(x, y, 4, "t1", tip))
        drawn.append(svg.circle(x, up(row.published), 4, "t4", f"published {row.published:g}x"))
        drawn.append(svg.label(x, _BOTTOM + 18, f"{row.tokens:g}", "tick", "middle"))
    text = f"{rows[0].hybrid.layer.levels[0]} data centres: tokens of a worker, MB"
    drawn.append(svg.label(left + width / 2, _BOTTOM + 38, text, "small", "middle"))
    return drawn


def _grid(up: svg.LinearScale, left: float, right: float) -> list[Markup]:
    drawn = []
    for tick in svg.ticks(0.0, up.high, 6):
        drawn.append(svg.line(left, up(tick), right, up(tick), "grid"))
        drawn.append(svg.label(left - 8, up(tick) + 4, f"{tick:g}", "tick", "end"))
    return drawn
