"""`docs/paper.md`: the predicted tables with their explanations, as Markdown."""

from jinja2 import Environment, PackageLoader, StrictUndefined

from moefabric.paper import text
from moefabric.paper.results import PaperResults
from moefabric.paper.rows import REPORTED, PaperRow


def document_text(predicted: PaperResults) -> str:
    """Return the page. Equal tables give equal pages.

    Args:
        predicted: the predicted tables.
    """
    environment = Environment(
        loader=PackageLoader("moefabric.paper", ""),
        autoescape=False,  # noqa: S701 - the page is Markdown
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("document.md.j2").render(
        predicted=predicted,
        grids={grid.name: grid for grid in predicted.grids},
        rows={table.name: table for table in predicted.tables},
        text=text,
        table_row=table_row,
        reported=REPORTED,
    )


def table_row(row: PaperRow) -> str:
    """Return the cells of a row's line."""
    paper, _, value, band, null = text.row_cells(row)
    unit = f" {row.unit}" if row.unit not in {"", "x"} else row.unit
    return " | ".join(
        (row.name, row.subject, paper + unit, value + unit, band, null, row.precision, row.verdict)
    )
