"""Tables as values, and their writers for the terminal and for pages."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from moefabric.report import svg
from moefabric.results.model import Verdict

if TYPE_CHECKING:
    from rich.console import JustifyMethod
    from rich.table import Table as RichTable

VERDICT_STYLES: Final = dict(zip(Verdict, ("green", "yellow", "bold red"), strict=True))
"""Styles of verdicts on a terminal."""
_SIGNS: Final = {Verdict.PASS: "✓", Verdict.DEGRADED: "!", Verdict.INVALID: "✕"}


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: What it says, without control characters.
        below: What stands in small letters below.
        style: A style of the terminal.
        void: Whether it is a figure of an invalid fabric, and crossed out.
    """

    text: str
    below: str = ""
    style: str = ""
    void: bool = False


Row = list[Cell | str]
"""Cells of a row; a `Verdict` is shown as such."""


@dataclass(frozen=True)
class Table:
    r"""A table, whose rows begin with a name.

    Attributes:
        headings: Headings of the columns; `\n` is a good place to break one.
        texts: Headings of columns of text, which are aligned to the left.
        wide: Headings of columns for which only pages have room.
    """

    headings: Sequence[str]
    rows: Sequence[Row]
    texts: Collection[str] = ("verdict",)
    wide: Collection[str] = ()


def rich_table(table: Table) -> "RichTable":
    """Return a table for a rich console."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = [n for n, heading in enumerate(table.headings) if heading not in table.wide]
    drawn = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for n in shown:
        is_text = n == 0 or table.headings[n] in table.texts
        justify: JustifyMethod = "left" if is_text else "right"
        drawn.add_column(table.headings[n], justify=justify, overflow="fold")
    for row in table.rows:
        cells = []
        for n in shown:
            cell = row[n]
            if isinstance(cell, Verdict):
                cells.append(Text(cell, style=VERDICT_STYLES[cell]))
            elif isinstance(cell, str):
                cells.append(Text(cell, style="" if n else "bold"))
            else:
                crossed = " strike" * cell.void
                below = [("\n" + cell.below, f"dim{crossed}")] if cell.below else []
                style = cell.style or (f"dim{crossed}" if cell.void else "" if n else "bold")
                cells.append(Text.assemble((cell.text, style), *below))
        drawn.add_row(*cells)
    return drawn


def html_table(table: Table) -> Markup:
    """Return a table for a page."""
    heads = (
        svg.tag("th", heading.replace("\n", " "), scope="col", class_=_class(table, heading))
        for heading in table.headings
    )
    rows = (
        svg.tag("tr", *(_html_cell(table, n, cell) for n, cell in enumerate(row)))
        for row in table.rows
    )
    body = svg.tag("thead", svg.tag("tr", *heads)) + svg.tag("tbody", *rows)
    return svg.tag("div", svg.tag("table", body), class_="scroll")


def _class(table: Table, heading: str) -> str | None:
    return "text" if heading in table.texts and heading != "verdict" else None


def _html_cell(table: Table, number: int, cell: Cell | str) -> Markup:
    name = "td" if number else "th"
    scope, class_ = None if number else "row", _class(table, table.headings[number])
    parts: list[object] = [verdict_pill(cell) if isinstance(cell, Verdict) else cell]
    if isinstance(cell, Cell):
        class_ = " ".join(filter(None, (class_, "void" * cell.void))) or None
        parts = [cell.text, *([svg.tag("small", cell.below)] if cell.below else [])]
    return svg.tag(name, *parts, scope=scope, class_=class_)


def verdict_pill(verdict: Verdict) -> Markup:
    """Return a verdict for a page."""
    return svg.tag("span", f"{_SIGNS[verdict]} {verdict}", class_=f"pill {verdict}")
