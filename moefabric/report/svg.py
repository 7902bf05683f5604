"""Elements of SVG pictures, with escaped text and rounded positions.

Colours are CSS classes, so that pictures follow the light or dark theme of a page.
"""

import math
from collections.abc import Iterable

from markupsafe import Markup, escape

_NARROW, _USUAL, _BROAD = 0.31, 0.55, 0.8
"""Widths of letters, in font sizes, of the sans-serif faces that the page asks for."""


def tag(name: str, *children: object, title: str = "", **attributes: object) -> Markup:
    """Return one element.

    Example:
        >>> tag("rect", x=1.0, y=2.5, class_="bar", title="3 < 4")
        Markup('<rect x="1" y="2.5" class="bar"><title>3 &lt; 4</title></rect>')

    Args:
        name: Name of the element.
        *children: Markup, or text to escape.
        title: The tooltip that a browser shows.
        **attributes: Attributes; `class_` stands for `class` and `_` for `-`. None is left out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    shown = (tag("title", title), *children) if title else children
    inside = Markup("").join(
        child if isinstance(child, Markup) else escape(child) for child in shown
    )
    element = f"<{name}{written}>{inside}</{name}>" if shown else f"<{name}{written}/>"
    return Markup(element)  # noqa: S704 - escaped above


def picture(width: float, height: float, label: str, children: Iterable[Markup]) -> Markup:
    """Return a whole SVG that scales with the page; `label` is its text for screen readers."""
    return tag(
        "svg", *children, viewBox=f"0 0 {number(width)} {number(height)}", width=width,
        height=height, role="img", aria_label=label, xmlns="http://www.w3.org/2000/svg",
    )  # fmt: skip


def label(
    x: float, y: float, text: object, class_: str = "", anchor: str = "", turn: float | None = None
) -> Markup:
    """Return text with baseline `y`; `anchor` is `middle` or `end`, `turn` degrees about (x, y)."""
    rotation = None if turn is None else f"rotate({number(turn)} {number(x)} {number(y)})"
    return tag(
        "text", text, x=x, y=y, class_=class_ or None, text_anchor=anchor or None,
        transform=rotation,
    )  # fmt: skip


def text_width(text: str, size: float) -> float:
    """Estimate the width of `text` in a font of that size, to keep labels apart."""
    return size * sum(
        _NARROW if c in "fijlrt.,:;'|()- " else _BROAD if c in "mwMW" or c.isupper() else _USUAL
        for c in text
    )


def number(value: object) -> str:
    """Return a value as an attribute, numbers with at most two decimals."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".") if math.isfinite(value) else "0"
    return str(value)
