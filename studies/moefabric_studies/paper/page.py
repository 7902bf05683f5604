"""Pages with the tables of the paper: HTML with figures, in one file, and `docs/paper.md`."""

from collections.abc import Iterable
from typing import Final

from markupsafe import Markup

from moefabric.api.charts import page_style, page_template
from moefabric_studies.markdown import page_of
from moefabric_studies.paper import figures, rows, text
from moefabric_studies.paper.cost_performance import cost_performance_picture
from moefabric_studies.paper.growth import growth_picture
from moefabric_studies.paper.results import PaperResults
from moefabric_studies.paper.rows import REPORTED, PaperRow
from moefabric_studies.paper.traffic_matrix import traffic_picture

_PILLS: Final = {
    rows.REPRODUCED: "pass",
    rows.MET: "pass",
    rows.NULL_FITS: "degraded",
    rows.CALIBRATED: "",
    rows.INPUT: "",
    rows.REPORTED: "",
    rows.OUTSIDE: "invalid",
    rows.MISSED: "invalid",
    rows.INVALID: "invalid",
}
"""Style of the report for each verdict."""


def page(predicted: PaperResults, emulated: PaperResults | None = None) -> str:
    """Return the HTML page. Equal tables give equal pages.

    Args:
        predicted: the predicted tables.
        emulated: the emulated tables, shown beside the predicted ones.
    """
    return page_template("moefabric_studies.paper").render(
        style=page_style(),
        predicted=predicted,
        emulated=emulated,
        emulated_tables={table.name: table for table in _tables(emulated)} if emulated else {},
        figures=_figures(predicted, figures.FIGURES),
        emulated_figures=_figures(emulated, figures.EMULATED_FIGURES) if emulated else {},
        pills=_PILLS,
        outside=rows.OUTSIDE,
        text=text,
    )


def _tables(results: PaperResults) -> tuple[rows.PaperTable, ...]:
    return (*results.tables, results.aims)


def _figures(results: PaperResults, names: Iterable[str]) -> dict[str, list[Markup]]:
    """Return the figures of those tables that have rows."""
    tables = {table.name for table in _tables(results) if table.rows}
    return {name: list(figures.FIGURES[name](results)) for name in names if name in tables}


def document_text(predicted: PaperResults) -> str:
    """Return `docs/paper.md`. Equal tables give equal pages.

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


def document_pictures(predicted: PaperResults) -> dict[str, str]:
    """Return the pictures of `docs/paper.md` by file name."""
    evaluation = predicted.evaluation
    return {
        "paper-growth.svg": growth_picture(evaluation),
        "paper-cost-performance.svg": cost_performance_picture(evaluation),
        "paper-traffic.svg": traffic_picture(evaluation),
    }


def table_row(row: PaperRow) -> str:
    """Return the cells of a row's line."""
    paper, _, value, band, null = text.row_cells(row)
    unit = f" {row.unit}" if row.unit not in {"", "x"} else row.unit
    verdict = text.verdict_text(row)
    return " | ".join(
        (row.name, row.subject, paper + unit, value + unit, band, null, row.precision, verdict)
    )
