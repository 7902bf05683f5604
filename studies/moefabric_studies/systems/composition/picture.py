"""Heat maps of gains side by side, as an SVG file."""

from collections.abc import Sequence
from dataclasses import dataclass

from moefabric.api.charts import Axis, Box, Panel, cell, document_picture
from moefabric_studies.paper.rows import INVALID


@dataclass(frozen=True)
class HeatMap:
    """Gains by row and column.

    Attributes:
        title: Title of the map.
        columns: Names of the columns.
        rows: Name and gains of each row; None leaves a cell empty, `INVALID` marks it.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[float | str | None]]]


def heat_maps(title: str, maps: Sequence[HeatMap]) -> str:
    """Return the text of a file with heat maps that have the same rows.

    Args:
        title: Title of the picture.
        maps: The maps, from left to right.
    """
    gains = [gain for heat_map in maps for _, row in heat_map.rows for gain in row]
    darkest = max(gain for gain in gains if isinstance(gain, float))
    names, panels = Axis.rows([name for name, _ in maps[0].rows]), []
    for heat_map in maps:
        marks = [
            cell(column, row, gain / darkest, f"{name}, {heat_map.columns[column]}: {gain:.2f}x",
                 [f"{gain:.2f}x"], gap=1)
            for row, (name, gains) in enumerate(heat_map.rows)
            for column, gain in enumerate(gains)
            if isinstance(gain, float)
        ]  # fmt: skip
        marks += [
            Box((column, column + 1), (row, row + 1), "k-void",
                f"{name}, {heat_map.columns[column]}: {INVALID}", gap=1, texts=[INVALID])
            for row, (name, gains) in enumerate(heat_map.rows)
            for column, gain in enumerate(gains)
            if gain == INVALID
        ]  # fmt: skip
        height = 24.0 * len(heat_map.rows)
        panels.append(Panel(Axis.names(heat_map.columns), names, marks, height, heat_map.title))
        names = names.untitled
    return document_picture(title, panels, columns=len(panels))
