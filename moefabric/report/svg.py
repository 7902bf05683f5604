"""SVG: elements, scales and ticks, the few words that every picture of the report is written in.

Elements are escaped as they are made. Colours are CSS classes of the page, so that a picture follows its light or dark theme;
an element's `title` is the tooltip that a browser shows.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup, escape

_NARROW, _USUAL, _BROAD = 0.31, 0.55, 0.8
"""Widths of letters, in font sizes, of the sans-serif faces that the page asks for."""

WIDTH = 1120.0
"""Width of a picture that spans the page, in its own units; one is a CSS pixel at full size."""


@dataclass(frozen=True)
class Scale:
    """Where a value lies on a line of the picture: `low` at `start`, `high` at `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The position of `value`."""
        span = self.high - self.low
        return self.start + ((value - self.low) / span if span else 0.0) * (self.end - self.start)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values from `low` to `high`, at most `most` steps of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """One element. `class_` stands for `class` and `_` for `-`; attributes of None are left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_said(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(child if isinstance(child, Markup) else escape(child) for child in children)
    return Markup(f"<{name}{written}>{inside}</{name}>" if inside else f"<{name}{written}/>")  # noqa: S704 - escaped above


def picture(width: float, height: float, label: str, children: Iterable[Markup]) -> Markup:
    """A whole SVG that scales with the page; `label` is what a screen reader says of it."""
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 {_said(width)} {_said(height)}",
        width=width,
        height=height,
        role="img",
        aria_label=label,
        xmlns="http://www.w3.org/2000/svg",
    )


def rect(
    x: float,
    y: float,
    width: float,
    height: float,
    class_: str,
    *,
    title: str = "",
    radius: float | None = None,
) -> Markup:
    """A box, with its tooltip."""
    hint = (tag("title", title),) if title else ()
    return tag(
        "rect", *hint, x=x, y=y, width=max(0.0, width), height=max(0.0, height), rx=radius, class_=class_
    )


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def label(
    x: float,
    y: float,
    said: object,
    class_: str = "",
    anchor: str | None = None,
    *,
    turn: float | None = None,
) -> Markup:
    """Words, `y` being their baseline; `anchor` is `middle` or `end`, `turn` degrees about (x, y)."""
    turned = None if turn is None else f"rotate({_said(turn)} {_said(x)} {_said(y)})"
    return tag("text", said, x=x, y=y, class_=class_ or None, text_anchor=anchor, transform=turned)


def path(points: Iterable[tuple[float, float]], class_: str) -> Markup:
    """A line through points."""
    return tag("path", d="M" + "L".join(f"{_said(x)} {_said(y)}" for x, y in points), class_=class_)


def legend(x: float, y: float, entries: Iterable[tuple[str, str]]) -> Markup:
    """Swatches with their names, left to right from (x, y): pairs of (class, name)."""
    drawn = []
    for class_, name in entries:
        wide = 3.0 if class_ == "target" else 14.0
        drawn += [
            rect(x, y - 10, wide, 11, class_, radius=min(2, wide / 3)),
            label(x + wide + 6, y, name, "small"),
        ]
        x += wide + 6 + text_width(name, 12) + 20
    return tag("g", *drawn)


def text_width(said: str, size: float) -> float:
    """About how wide words of that font size are: enough to keep them apart."""
    return size * sum(
        _NARROW if c in "fijlrt.,:;'|()- " else _BROAD if c in "mwMW" or c.isupper() else _USUAL for c in said
    )


def _said(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".") if math.isfinite(value) else "0"
    return str(value)
