"""Axes, and the marks that stand on them at their values: boxes, lines, dots, rules and texts.

A `Box` is a bar, a cell of a heat map or an interval of a timeline; a `Line` is a curve or a link.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, Protocol, Self

from markupsafe import Markup

from moefabric.report import svg
from moefabric.report.formatting import time_unit

COLOURS: Final = 8
"""Colours of series: CSS classes `c0` to `c7` of lines and `t0` to `t7` of areas."""
_FAINTEST: Final = 0.06
"""Opacity of a cell whose value is 0."""


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return round values from `low` to `high` in at most `most` steps.

    A step is 1, 2 or 5 times a power of ten.
    """
    if high <= low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def opacity(share: float) -> float:
    """Return the opacity of a cell whose value is this share of the largest one."""
    return _FAINTEST + (1 - _FAINTEST) * share


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        low: Value at the left or at the bottom; it may exceed `high`.
        high: Value at the other end.
        ticks: Texts by their values; those that would overlap others are left out.
        grid: CSS class of lines through the ticks; empty for no lines.
        class_: CSS class of the texts. Lines of a text after the first are small.
    """

    low: float = 0.0
    high: float = 1.0
    ticks: Mapping[float, str] = field(default_factory=dict)
    title: str = ""
    logarithmic: bool = False
    grid: str = "grid"
    class_: str = "tick"

    @classmethod
    def numbers(
        cls, low: float, high: float, text: Callable[[float], str] = "{:g}".format, most: int = 6,
        title: str = "",
    ) -> Self:  # fmt: skip
        """Return an axis with round ticks."""
        return cls(low, high, {tick: text(tick) for tick in ticks(low, high, most)}, title)

    @classmethod
    def seconds(cls, low: float, high: float, most: int = 8, title: str = "") -> Self:
        """Return an axis of times with round ticks, the last of which names the unit."""
        factor, unit = time_unit(high)
        marks = ticks(low / factor, high / factor, most)
        texts = {mark * factor: f"{mark:g}" for mark in marks}
        return cls(low, high, texts | {marks[-1] * factor: f"{marks[-1]:g} {unit}"}, title)

    @classmethod
    def names(cls, names: Sequence[str], title: str = "", class_: str = "tick") -> Self:
        """Return an axis from left to right on which the nth name has the values n to n + 1."""
        texts = {n + 0.5: name for n, name in enumerate(names)}
        return cls(0, len(names), texts, title, grid="", class_=class_)

    @classmethod
    def rows(cls, names: Sequence[str], title: str = "", class_: str = "tick") -> Self:
        """Return an axis of names from the top to the bottom."""
        axis = cls.names(names, title, class_)
        return replace(axis, low=axis.high, high=axis.low)

    @property
    def untitled(self) -> Self:
        """The axis without texts."""
        return replace(self, ticks=dict.fromkeys(self.ticks, ""), title="")

    def share(self, value: float) -> float:
        """Return the place of a value from 0 (low) to 1; values beyond the axis are at its ends."""
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = (math.log10(max(v, 1e-300)) for v in (low, high, value))
        return min(1.0, max(0.0, (value - low) / (high - low))) if high != low else 0.0


@dataclass(frozen=True)
class Place:
    """Position of a panel's axes in pixels."""

    x: Axis
    y: Axis
    left: float
    top: float
    width: float
    height: float

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the position of a point."""
        return (
            self.left + self.x.share(x) * self.width,
            self.top + (1 - self.y.share(y)) * self.height,
        )


class Mark(Protocol):
    """A part of a chart that stands at values."""

    def draw(self, place: Place) -> Markup:
        """Return the elements of the mark."""


@dataclass(frozen=True)
class Box:
    """Rectangle between two values of each axis.

    Attributes:
        x: Ends on the horizontal axis.
        y: Ends on the vertical axis.
        title: Tooltip.
        least: Least width in pixels.
        gap: Pixels left free around it.
        texts: Texts of different length; the first that fits is written in the rectangle.
        text_class: CSS class of the text.
    """

    x: tuple[float, float]
    y: tuple[float, float]
    class_: str
    title: str = ""
    opacity: float | None = None
    least: float = 0.0
    gap: float = 0.0
    texts: Sequence[str] = ()
    text_class: str = ""
    radius: float | None = None

    def draw(self, place: Place) -> Markup:
        """Return the rectangle and its text."""
        (x1, y1), (x2, y2) = (place.at(x, y) for x, y in zip(self.x, self.y, strict=True))
        left, top = min(x1, x2) + self.gap, min(y1, y2) + self.gap
        width = max(self.least, abs(x2 - x1) - 2 * self.gap, 0.0)
        height = max(abs(y2 - y1) - 2 * self.gap, 0.0)
        drawn = svg.tag(
            "rect", title=self.title, x=left, y=top, width=width, height=height, rx=self.radius,
            class_=self.class_, fill_opacity=self.opacity,
        )  # fmt: skip
        for text in self.texts if height >= 11 else ():
            if svg.text_width(text, 11) + 2 <= width:
                class_ = f"in {self.text_class}".strip()
                middle = left + width / 2, top + height / 2 + 4
                return drawn + svg.label(*middle, text, class_, "middle")
        return drawn


@dataclass(frozen=True)
class Line:
    """A line `dx` pixels beside points, cut where it leaves the horizontal axis."""

    points: Iterable[tuple[float, float]]
    class_: str
    title: str = ""
    width: float | None = None
    dx: float = 0.0

    def draw(self, place: Place) -> Markup:
        """Return the line; nothing if it has no points on the axis."""
        points = list(_cut(list(self.points), place.x.low, place.x.high))
        places = (place.at(x, y) for x, y in points)
        steps = (f"{svg.number(x + self.dx)} {svg.number(y)}" for x, y in places)
        if not points:
            return Markup()
        return svg.tag(
            "path", title=self.title, d="M" + "L".join(steps), class_=self.class_,
            stroke_width=self.width,
        )  # fmt: skip


def _cut(
    points: Sequence[tuple[float, float]], low: float, high: float
) -> Iterator[tuple[float, float]]:
    """Yield the points between two ends of the axis, and those where the line crosses an end."""
    if points and low <= points[0][0] <= high:
        yield points[0]
    for (x1, y1), (x2, y2) in pairwise(points):
        for edge in sorted((low, high), reverse=x2 < x1):
            if min(x1, x2) < edge < max(x1, x2):
                yield edge, y1 + (y2 - y1) * (edge - x1) / (x2 - x1)
        if low <= x2 <= high:
            yield x2, y2


@dataclass(frozen=True)
class Dot:
    """A circle whose radius is in pixels, `dx` and `dy` pixels from a point."""

    x: float
    y: float
    class_: str
    title: str = ""
    radius: float = 3.0
    dx: float = 0.0
    dy: float = 0.0

    def draw(self, place: Place) -> Markup:
        """Return the circle."""
        x, y = place.at(self.x, self.y)
        return svg.tag(
            "circle", title=self.title, cx=x + self.dx, cy=y + self.dy, r=self.radius,
            class_=self.class_,
        )  # fmt: skip


@dataclass(frozen=True)
class Text:
    """Text whose baseline is `dx` and `dy` pixels from a point; `anchor` is `middle` or `end`."""

    x: float
    y: float
    text: str
    class_: str = ""
    anchor: str = ""
    dx: float = 0.0
    dy: float = 4.0

    def draw(self, place: Place) -> Markup:
        """Return the text at its place."""
        x, y = place.at(self.x, self.y)
        return svg.label(x + self.dx, y + self.dy, self.text, self.class_, self.anchor)


@dataclass(frozen=True)
class Rule:
    """A line across the panel at a value of one axis; one with a tooltip has a flag at the top."""

    class_: str
    x: float | None = None
    y: float | None = None
    title: str = ""

    def draw(self, place: Place) -> Markup:
        """Return the line."""
        (x1, y1), (x2, y2) = (
            place.at(axis_x if self.x is None else self.x, axis_y if self.y is None else self.y)
            for axis_x, axis_y in ((place.x.low, place.y.low), (place.x.high, place.y.high))
        )
        drawn = svg.tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=self.class_)
        if not self.title:
            return drawn
        flag = svg.tag("rect", x=x2 - 3, y=y2 - 5, width=6, height=5, class_=self.class_)
        return svg.tag("g", drawn, flag, title=self.title)


@dataclass(frozen=True)
class MarkGroup:
    """Marks that share a CSS class."""

    marks: Sequence[Mark]
    class_: str

    def draw(self, place: Place) -> Markup:
        """Return the marks in one element."""
        return svg.tag("g", *(mark.draw(place) for mark in self.marks), class_=self.class_)


def untrusted(marks: Iterable[Mark], *, invalid: bool) -> list[Mark]:
    """Return the marks of a fabric, outlined and pale if its measurements can't be trusted."""
    return [MarkGroup(tuple(marks), "void")] if invalid else list(marks)


@dataclass(frozen=True)
class Interval:
    """A vertical interval with caps, `dx` pixels beside its place."""

    x: float
    low: float
    high: float
    class_: str
    dx: float = 0.0

    def draw(self, place: Place) -> Markup:
        """Return the interval."""
        (x, bottom), (_, top) = place.at(self.x, self.low), place.at(self.x, self.high)
        x += self.dx
        caps = "".join(f"M{svg.number(x - 4)} {svg.number(y)}h8" for y in (bottom, top))
        outline = f"M{svg.number(x)} {svg.number(bottom)}V{svg.number(top)}{caps}"
        return svg.tag("path", d=outline, class_=self.class_)


def cell(
    column: float, row: float, share: float, title: str, texts: Sequence[str] = (),
    gap: float = 0.5,
) -> Box:  # fmt: skip
    """Return a cell of a heat map, darker for a larger share of the largest value."""
    shade, ink = opacity(min(1.0, share)), "on-hot" if share > 0.72 else "on-cool"
    return Box(
        (column, column + 1), (row, row + 1), "cell", title, shade, gap=gap, texts=texts,
        text_class=ink,
    )  # fmt: skip


def curve(
    colour: int, points: Sequence[tuple[float, float, str]], *,
    dashed: bool = False, marks: bool = True, joined: bool = True, dx: float = 0.0,
) -> Iterator[Mark]:  # fmt: skip
    """Yield a curve through points (x, y, tooltip) with a dot at each.

    Args:
        colour: Number of its colour.
        points: The points in order.
        dashed: Whether the line is dashed.
        marks: Whether points have dots.
        joined: Whether a line joins the points.
        dx: Pixels by which it stands beside its place.
    """
    if joined and len(points) > 1:
        class_ = f"curve c{colour}{' null' if dashed else ''}"
        yield Line([(x, y) for x, y, _ in points], class_, dx=dx)
    if marks:
        yield from (Dot(x, y, f"t{colour}", title, dx=dx) for x, y, title in points)
