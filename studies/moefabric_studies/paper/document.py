"""`docs/paper.md`: the predicted tables with their explanations, as Markdown."""

from moefabric_studies.markdown import page_of
from moefabric_studies.paper import text
from moefabric_studies.paper.results import PaperResults
from moefabric_studies.paper.rows import REPORTED, PaperRow


def document_text(predicted: PaperResults) -> str:
    """Return the page. Equal tables give equal pages.

    Args:
        predicted: the predicted tables.
    """
    return page_of(
        "paper/document.md.j2",
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
