"""Heat maps of gains side by side, as an SVG file."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from moefabric.report import svg
from moefabric.report.demand_heatmap import opacity
from moefabric.report.picture_file import WIDTH, picture_file

_LEFT: Final = 210.0
"""Width of the names of rows."""
_TOP, _ROW, _GAP = 66.0, 24.0, 24.0
_DARK: Final = 0.65
"""Opacity from which on text is white."""


@dataclass(frozen=True)
class HeatMap:
    """Gains by row and column.

    Attributes:
        title: Title of the map.
        columns: Names of the columns.
        rows: Name and gains of each row; None leaves a cell empty.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[float | None]]]


def heat_maps(title: str, maps: Sequence[HeatMap]) -> str:
    """Return the text of a file with heat maps that have the same rows.

    Args:
        title: Title of the picture.
        maps: The maps, from left to right.
    """
    gains = [gain for one in maps for _, row in one.rows for gain in row if gain is not None]
    darkest = max(gains)
    width = (WIDTH - _LEFT - 16) / len(maps)
    drawn = [svg.label(16, 22, title, "strong")]
    for number, (name, _) in enumerate(maps[0].rows):
        drawn.append(svg.label(_LEFT - 12, _TOP + _ROW * number + 16, name, "small", "end"))
    for number, one in enumerate(maps):
        drawn += _cells(one, _LEFT + number * width, width - _GAP, darkest)
    return picture_file(_TOP + _ROW * len(maps[0].rows) + 14, title, drawn)


def _cells(heat_map: HeatMap, left: float, width: float, darkest: float) -> Iterator[Markup]:
    """Yield the elements of one map."""
    side = width / len(heat_map.columns)
    yield svg.label(left, _TOP - 24, heat_map.title, "strong")
    for column, name in enumerate(heat_map.columns):
        yield svg.label(left + (column + 0.5) * side, _TOP - 6, name, "tick", "middle")
    for row, (name, gains) in enumerate(heat_map.rows):
        for column, gain in enumerate(gains):
            x, y = left + column * side, _TOP + row * _ROW
            if gain is None:
                continue
            shade, text = opacity(gain / darkest), f"{gain:.2f}x"
            title = f"{name}, {heat_map.columns[column]}: {text}"
            yield svg.rect(x + 1, y + 1, side - 2, _ROW - 2, "t1", title=title, opacity=shade)
            class_ = "on-dark" if shade > _DARK else ""
            yield svg.label(x + side / 2, y + 16, text, class_, "middle")
