"""Pictures as SVG files that bring their own style, for pages in Markdown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from markupsafe import Markup

from moefabric.report import svg

WIDTH: Final = 880.0
"""Width of a picture in CSS pixels."""
_STYLE: Final = (Path(__file__).parent / "picture_file.css").read_text()


def picture_file(height: float, label: str, children: Sequence[Markup]) -> str:
    """Return the text of an SVG file; `label` is its text for screen readers."""
    style = svg.tag("style", Markup(_STYLE))  # noqa: S704 - the project's own file
    card = svg.rect(0, 0, WIDTH, height, "card")
    return str(svg.picture(WIDTH, height, label, [style, card, *children])) + "\n"
