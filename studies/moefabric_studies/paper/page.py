"""HTML page with the tables and figures of the paper. One file without external resources."""

from collections.abc import Iterable
from typing import Final

from markupsafe import Markup

from moefabric.api.charts import page_style, page_template
from moefabric_studies.paper import figures, rows, text
from moefabric_studies.paper.results import PaperResults

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
