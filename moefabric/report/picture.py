"""Pictures outside of a page: SVG with a style of its own, for notebooks and files."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final, Self

from markupsafe import Markup

from moefabric.report import svg
from moefabric.report.chart import Legend, Panel, figure
from moefabric.runtime.atomic_file import write_whole

_FILE_WIDTH: Final = 848.0
"""Width of a figure in a document, without its margin."""
_CLASS: Final = "moefabric-picture"
_SIZE: Final = re.compile(
    r'viewBox="0 0 (?P<width>[\d.]+) (?P<height>[\d.]+)" width="[\d.]+" height="[\d.]+"'
)
_MARGIN: Final = 16.0


@dataclass(frozen=True)
class Picture:
    """A picture that notebooks show by themselves.

    Attributes:
        svg: The text of a whole SVG file, with its style.
    """

    svg: str

    @classmethod
    def of(cls, drawn: Markup, *, dark: bool = True) -> Self:
        """Return a figure with the page's style, on a card with a margin.

        Args:
            drawn: The figure.
            dark: Whether it follows the dark theme of the reader's system.
        """
        size = _SIZE.search(drawn)
        assert size is not None
        width, height = float(size["width"]) + 2 * _MARGIN, float(size["height"]) + 2 * _MARGIN
        place = f"{-_MARGIN:g} {-_MARGIN:g} {width:g} {height:g}"
        head, _, rest = str(drawn).partition(">")
        sides = f'width="{width:g}" height="{height:g}"'
        head = _SIZE.sub(f'viewBox="{place}" {sides} class="{_CLASS}"', head)
        card = svg.tag(
            "rect", x=-_MARGIN, y=-_MARGIN, width=width, height=height, rx=10, class_="picture-card"
        )
        return cls(f"{head}><style>{_style(dark=dark)}</style>{card}{rest}")

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Picture({len(self.svg)} bytes of SVG)"

    def save(self, path: str | Path) -> None:
        """Write the picture to a file."""
        write_whole(Path(path), self.svg + "\n")


def document_picture(
    title: str, panels: Sequence[Panel], *, columns: int = 1, legend: Legend = ()
) -> str:
    """Return the text of an SVG file for a document, whose pages are light."""
    drawn = figure(title, panels, columns=columns, legend=legend, title=title, width=_FILE_WIDTH)
    return Picture.of(drawn, dark=False).svg + "\n"


@cache
def _style(*, dark: bool) -> str:
    """Return the style of charts, restricted to pictures: a notebook has other SVGs, too."""
    folder = files("moefabric.report")
    colours, charts = ((folder / f"{name}.css").read_text() for name in ("colours", "charts"))
    if not dark:
        colours = colours.partition("@media")[0].replace("color-scheme: light dark;", "")
    card = f"""
.{_CLASS} {{ font: 13px "Liberation Sans", Arial, sans-serif; fill: var(--ink); max-width: 100%; }}
.{_CLASS} .picture-card {{ fill: var(--card); }}
"""
    charts = re.sub(r"(?m)(^|(?<=\} )|(?<=, ))svg ", f".{_CLASS} ", charts)
    return colours.replace(":root", f".{_CLASS}") + card + charts
