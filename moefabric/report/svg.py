"""SVG elements, scales and axes of the report's charts.

Elements escape their text. Colours are CSS classes of the page, so that charts follow its light or
dark theme. An element's `title` is the tooltip that a browser shows.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup, escape

from moefabric.report.formatting import time_unit

_NARROW, _USUAL, _BROAD = 0.31, 0.55, 0.8
"""Widths of letters, in font sizes, of the sans-serif faces that the page asks for."""

WIDTH = 1120.0
"""Width of a chart that spans the page, in CSS pixels at full size."""


@dataclass(frozen=True)
class LinearScale:
    """Linear map of values to positions: `low` to `start`, `high` to `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the position of `value`."""
        span = self.high - self.low
        return self.start + ((value - self.low) / span if span else 0.0) * (self.end - self.start)


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


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """Return one element.

    Args:
        name: Name of the element.
        *children: Markup, or text to escape.
        **attributes: Attributes; `class_` stands for `class` and `_` for `-`. None is left out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(
        child if isinstance(child, Markup) else escape(child) for child in children
    )
    element = f"<{name}{written}>{inside}</{name}>" if inside else f"<{name}{written}/>"
    return Markup(element)  # noqa: S704 - escaped above


def picture(width: float, height: float, label: str, children: Iterable[Markup]) -> Markup:
    """Return a whole SVG that scales with the page; `label` is its text for screen readers."""
    return tag(
        "svg", *children, viewBox=f"0 0 {_text(width)} {_text(height)}", width=width, height=height,
        role="img", aria_label=label, xmlns="http://www.w3.org/2000/svg",
    )  # fmt: skip


def shape(name: str, title: str = "", **attributes: object) -> Markup:
    """Return one element with a tooltip and no other content."""
    return tag(name, *((tag("title", title),) if title else ()), **attributes)


def rect(
    x: float, y: float, width: float, height: float, class_: str, *,
    title: str = "", radius: float | None = None, opacity: float | None = None,
) -> Markup:  # fmt: skip
    """Return a rectangle; negative widths and heights count as 0."""
    width, height = max(0.0, width), max(0.0, height)
    return shape(
        "rect", title, x=x, y=y, width=width, height=height, rx=radius, class_=class_,
        fill_opacity=opacity,
    )  # fmt: skip


def bar(
    across: LinearScale, start: float, end: float, y: float, height: float, class_: str,
    title: str = "", *, narrowest: float = 0.0, radius: float | None = None,
) -> Markup:  # fmt: skip
    """Return a horizontal bar from value `start` to value `end`, at least `narrowest` wide."""
    x = across(start)
    width = max(narrowest, across(end) - x)
    return rect(x, y, width, height, class_, title=title, radius=radius)


def circle(x: float, y: float, radius: float, class_: str, title: str = "") -> Markup:
    """Return a circle."""
    return shape("circle", title, cx=x, cy=y, r=radius, class_=class_)


def line(
    x1: float, y1: float, x2: float, y2: float, class_: str, *,
    title: str = "", width: float | None = None,
) -> Markup:  # fmt: skip
    """Return a straight line."""
    return shape("line", title, x1=x1, y1=y1, x2=x2, y2=y2, class_=class_, stroke_width=width)


def label(
    x: float,
    y: float,
    text: object,
    class_: str = "",
    anchor: str | None = None,
    *,
    turn: float | None = None,
) -> Markup:
    """Return text with baseline `y`; `anchor` is `middle` or `end`, `turn` degrees about (x, y)."""
    rotation = None if turn is None else f"rotate({_text(turn)} {_text(x)} {_text(y)})"
    return tag(
        "text", text, x=x, y=y, class_=class_ or None, text_anchor=anchor, transform=rotation
    )


def path(points: Iterable[tuple[float, float]], class_: str) -> Markup:
    """Return a line through points."""
    return tag("path", d="M" + "L".join(f"{_text(x)} {_text(y)}" for x, y in points), class_=class_)


def legend(x: float, y: float, entries: Iterable[tuple[str, str]]) -> Markup:
    """Return swatches with their names, left to right from (x, y), of (class, name) pairs."""
    swatches = []
    for class_, name in entries:
        width = 3.0 if class_ == "target" else 14.0
        swatches.append(rect(x, y - 10, width, 11, class_, radius=min(2, width / 3)))
        swatches.append(label(x + width + 6, y, name, "small"))
        x += width + 6 + text_width(name, 12) + 20
    return tag("g", *swatches)


def time_axis(across: LinearScale, top: float, bottom: float, most: int = 8) -> list[Markup]:
    """Return grid lines at round times with their figures beneath, the last with its unit."""
    factor, unit = time_unit(across.high)
    marks = ticks(across.low / factor, across.high / factor, most)
    drawn = []
    for mark in marks:
        x, text = across(mark * factor), f"{mark:g} {unit}" if mark == marks[-1] else f"{mark:g}"
        drawn += [line(x, top, x, bottom, "grid"), label(x, bottom + 16, text, "tick", "middle")]
    return drawn


def text_width(text: str, size: float) -> float:
    """Estimate the width of `text` in a font of that size, to keep labels apart."""
    return size * sum(
        _NARROW if c in "fijlrt.,:;'|()- " else _BROAD if c in "mwMW" or c.isupper() else _USUAL
        for c in text
    )


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".") if math.isfinite(value) else "0"
    return str(value)
