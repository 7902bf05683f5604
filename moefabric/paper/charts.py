"""Two kinds of chart, in the report's SVG words: columns in groups, with the paper's value as a stroke across each, and lines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from moefabric.report import svg

_LEFT, _RIGHT, _TOP, _BOTTOM = 54.0, 12.0, 58.0, 34.0


@dataclass(frozen=True)
class Series:
    """One colour: a value for each group (columns) or each x (lines). `published` are the paper's values, where it has some."""

    name: str
    class_: str
    values: Sequence[float | None]
    published: Sequence[float | None] = ()


def columns(
    title: str,
    groups: Sequence[str],
    series: Sequence[Series],
    *,
    width: float = svg.WIDTH,
    height: float = 280.0,
    unit: str = "",
    reference: float | None = None,
) -> Markup:
    """Columns in groups, from zero."""
    top = max(value for one in series for value in (*one.values, *one.published) if value is not None)
    low = min([0.0, *(value for one in series for value in one.values if value is not None)])
    up = svg.Scale(low, top * 1.05 or 1.0, height - _BOTTOM, _TOP)
    drawn = [
        *_frame(title, up, width, unit),
        svg.legend(_LEFT, 38, [(one.class_, one.name) for one in series]),
    ]
    each = (width - _LEFT - _RIGHT) / len(groups)
    wide = min(34.0, each * 0.84 / len(series))
    for g, group in enumerate(groups):
        start = _LEFT + (g + 0.5) * each - wide * len(series) / 2
        drawn.append(svg.label(_LEFT + (g + 0.5) * each, height - 12, group, "tick", "middle"))
        for s, one in enumerate(series):
            drawn += _column(one, g, start + s * wide, wide, up, f"{group}, {one.name}", unit)
    if reference is not None:
        drawn.append(svg.line(_LEFT, up(reference), width - _RIGHT, up(reference), "reference"))
    return svg.picture(width, height, title, drawn)


def _column(
    one: Series, group: int, x: float, wide: float, up: svg.Scale, said: str, unit: str
) -> list[Markup]:
    value = one.values[group]
    if value is None:
        return []
    published = one.published[group] if one.published else None
    told = f"{said}: {value:.3g}{unit}" + ("" if published is None else f", paper {published:.3g}{unit}")
    highest, lowest = min(up(value), up(0.0)), max(up(value), up(0.0))
    drawn = [svg.rect(x + 1, highest, wide - 2, lowest - highest, one.class_, title=told)]
    if published is not None:
        drawn.append(svg.rect(x - 1, up(published) - 1.5, wide + 2, 3, "target", title=told))
    return drawn


def lines(
    title: str,
    xs: Sequence[float],
    said: Sequence[str],
    series: Sequence[Series],
    *,
    width: float = svg.WIDTH,
    height: float = 280.0,
    unit: str = "",
    logarithmic: bool = False,
) -> Markup:
    """Lines over x, `said` beneath each x; the y axis starts near the least value."""
    scale = math.log10 if logarithmic else float
    values = [scale(value) for one in series for value in one.values if value is not None]
    room = 0.08 * (max(values) - min(values))
    up = svg.Scale(min(values) - room, max(values) + room, height - _BOTTOM, _TOP)
    across = svg.Scale(min(xs), max(xs), _LEFT + 24, width - _RIGHT - 24)
    drawn = _log_frame(title, up, width, unit) if logarithmic else _frame(title, up, width, unit)
    drawn.append(svg.legend(_LEFT, 38, [(one.class_, one.name) for one in series]))
    drawn += [
        svg.label(across(x), height - 12, each, "tick", "middle") for x, each in zip(xs, said, strict=True)
    ]
    for one in series:
        there = [(x, v, each) for x, v, each in zip(xs, one.values, said, strict=True) if v is not None]
        points = [(across(x), up(scale(v))) for x, v, _ in there]
        drawn.append(svg.path(points, f"curve c-{one.class_}"))
        drawn += [
            svg.rect(x - 4, y - 4, 8, 8, one.class_, title=f"{one.name}, {each}: {value:.4g}{unit}", radius=4)
            for (x, y), (_, value, each) in zip(points, there, strict=True)
        ]
    return svg.picture(width, height, title, drawn)


def _frame(title: str, up: svg.Scale, width: float, unit: str) -> list[Markup]:
    drawn = [svg.label(0, 16, title, "strong")]
    for tick in svg.ticks(up.low, up.high, 5):
        drawn.append(svg.line(_LEFT, up(tick), width - _RIGHT, up(tick), "grid"))
        drawn.append(svg.label(_LEFT - 8, up(tick) + 4, f"{tick:g}{unit}", "tick", "end"))
    return drawn


def _log_frame(title: str, up: svg.Scale, width: float, unit: str) -> list[Markup]:
    drawn = [svg.label(0, 16, title, "strong")]
    for power in range(math.floor(up.low), math.ceil(up.high) + 1):
        for factor in (1, 2, 5):
            tick = math.log10(factor) + power
            if up.low - 1e-9 <= tick <= up.high + 1e-9:
                drawn.append(svg.line(_LEFT, up(tick), width - _RIGHT, up(tick), "grid"))
                drawn.append(svg.label(_LEFT - 8, up(tick) + 4, f"{10**tick:g}{unit}", "tick", "end"))
    return drawn
