"""Charts as SVG, and numbers as text, in the style of reports."""

from moefabric.report import formatting
from moefabric.report.chart import WIDTH, Panel, figure, plot
from moefabric.report.formatting import (
    MISSING,
    counted,
    deviation,
    percentage,
    printable,
    ratio,
    usd,
)
from moefabric.report.marks import Axis, Box, Dot, Line, Mark, Rule, cell, curve
from moefabric.report.page import page_style, page_template
from moefabric.report.picture import document_picture

__all__ = [
    "MISSING", "WIDTH", "Axis", "Box", "Dot", "Line", "Mark", "Panel", "Rule", "cell", "counted",
    "curve", "deviation", "document_picture", "figure", "formatting", "page_style",
    "page_template", "percentage", "plot", "printable", "ratio", "usd",
]  # fmt: skip
