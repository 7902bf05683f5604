"""Tables without verdicts, whose texts are in files `tables.yaml` beside the code of their rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from moefabric.api.plugins import read_yaml


@dataclass(frozen=True)
class Grid:
    """A table of an experiment with the model's own assumptions. It has no verdicts.

    Attributes:
        name: Name of the grid.
        source: What the published values in it are.
        header: Headings of its columns.
        rows: Cells as text.
        note: What the grid shows.
    """

    name: str
    title: str
    source: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str

    def to_json(self) -> dict[str, Any]:
        """Return the grid as JSON types."""
        return dict(vars(self))


def grid(
    place: str,
    rows: Iterable[tuple[str, ...]],
    *,
    header: Sequence[str] | None = None,
    name: str | None = None,
    **values: object,
) -> Grid:
    """Return a table with the texts that a file has for it.

    Example:
        `grid("systems/link/incast", rows, senders=8)` has title, headings and note of `incast` in
        `systems/link/tables.yaml`, where `{senders}` becomes 8. Rows that a file has under
        `published` follow.

    Args:
        place: Folder of the file in this package, and name of the table.
        rows: Cells as text.
        header: Headings, if the file has none.
        name: Name of the grid. Default: that of the table.
        **values: Values that the texts name.
    """
    folder, _, key = place.rpartition("/")
    texts = _texts(folder)[key]
    title, source, note = (
        texts.get(part, "").format(**values) for part in ("title", "source", "note")
    )
    headings = tuple(texts["header"] if header is None else header)
    published = map(tuple, texts.get("published", ()))
    return Grid(name or key, title, source, headings, (*rows, *published), note)


def captions(folder: str) -> dict[str, str]:
    """Return the title of each picture of a folder, by the picture's name."""
    return _texts(folder)["pictures"]


@cache
def _texts(folder: str) -> dict[str, dict[str, Any]]:
    return read_yaml(Path(__file__).parent / folder / "tables.yaml")
