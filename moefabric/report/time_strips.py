"""Shared layout of the timelines: strips beneath each other on one time axis, with rows of lanes.

A strip belongs to a fabric or to a failure. A row belongs to a server or to a region.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from moefabric.report import svg

LEFT, RIGHT = 86.0, 84.0
_TOP = 46.0

ACTIVITIES = {
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
OPTICAL_ACTIVITIES = ("reconfiguration", "dark")
"""Kinds of intervals that concern circuits rather than the server itself."""


@dataclass(frozen=True)
class Strip:
    """One part of a timeline: its length in seconds, its height, and how it is drawn.

    `draw` gets the time scale and the top of the strip.
    """

    length_s: float
    height: float
    draw: Callable[[svg.LinearScale, float], Iterable[Markup]]


def timeline_picture(
    strips: Sequence[Strip], legend: Iterable[tuple[str, str]], label: str, *, gap: float = 20.0
) -> Markup:
    """Draw strips on one time scale; empty if there are none."""
    if not strips:
        return Markup()
    longest_s = max(strip.length_s for strip in strips)
    across = svg.LinearScale(0.0, longest_s or 1.0, LEFT, svg.WIDTH - RIGHT)
    drawn, y = [svg.legend(LEFT, 14, legend)], _TOP
    for strip in strips:
        drawn += strip.draw(across, y)
        y += strip.height + gap
    bottom = y - gap + 6
    return svg.picture(
        svg.WIDTH, bottom + 36, label, [*svg.time_axis(across, _TOP, bottom), *drawn]
    )


def row(
    name: str, length_s: float, across: svg.LinearScale, y: float, height: float
) -> list[Markup]:
    """Draw the background of a row, with its name to the left."""
    return [
        svg.label(LEFT - 10, y + height * 0.4 + 4, name, "tick", "end"),
        svg.bar(across, 0.0, length_s, y, height, "lane"),
    ]


def activity_class(kind: str) -> str:
    """Return the kind under which an interval is drawn."""
    return kind if kind in ACTIVITIES else "other"


def activity_legend(kinds: Iterable[str]) -> list[tuple[str, str]]:
    """Return the legend of these kinds of intervals, in the order of `ACTIVITIES`."""
    present = {activity_class(kind) for kind in kinds}
    return [(f"k-{kind}", name) for kind, name in ACTIVITIES.items() if kind in present]
