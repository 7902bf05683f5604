"""Picture of the first all-to-alls of a run: a stand-alone SVG file for documents."""

from pathlib import Path
from typing import Final

from markupsafe import Markup

from moefabric.core.errors import SpecError
from moefabric.report import formatting, svg
from moefabric.report.summary import FabricSummary, summaries
from moefabric.runner.result_model import RunResult

_STYLE: Final = (Path(__file__).parent / "first_all_to_alls.css").read_text()
_WIDTH, _NAMES, _RIGHT, _TOP, _ROW, _BAR = 880.0, 150.0, 150.0, 84.0, 30.0, 15.0
_LARGEST: Final = 3.0
"""Longer bars, relative to the baseline's, end at the edge."""
_LEGEND: Final = (
    ("waiting", "waiting for circuits"),
    ("sending", "sending"),
    ("target", "predicted"),
)


def first_all_to_alls_picture(run: RunResult) -> str:
    """Draw the exposed time of each fabric's first all-to-alls, relative to the baseline's.

    The baseline's time is the predicted one, so that an error of its measurement changes no other
    bar. The file brings its own style.

    Raises:
        SpecError: The run has no baseline to which times could be related.
    """
    fabrics = [f for f in summaries(run) if f.result.first_all_to_all.exposed_s]
    base = next((f for f in fabrics if f.is_baseline), None)
    if base is None:
        raise SpecError([("results", "exposed times are relative to eps: add a fabric of it")])
    first = base.result.first_all_to_all
    base_s = first.predicted_exposed_s or first.exposed_s or 0.0
    across = svg.LinearScale(0.0, _LARGEST, _NAMES, _WIDTH - _RIGHT)
    bottom = _TOP + _ROW * len(fabrics)
    title = "Exposed time of a layer's first all-to-all, relative to the predicted time of the EPS"
    drawn = [svg.label(16, 24, title, "strong"), svg.legend(_NAMES, 52, _LEGEND)]
    note = "figures: measured, and how much longer than predicted"
    drawn.append(svg.label(_WIDTH - 16, 52, note, "small", "end"))
    for tick in svg.ticks(0.0, _LARGEST, 6):
        x = across(tick)
        drawn.append(svg.line(x, _TOP - 12, x, bottom, "reference" if tick == 1.0 else "grid"))
        drawn.append(svg.label(x, bottom + 18, f"{tick:g}", "tick", "middle"))
    for row, fabric in enumerate(fabrics):
        drawn += _row(fabric, base_s, across, _TOP + _ROW * row)
    height = bottom + 32
    style = svg.tag("style", Markup(_STYLE))  # noqa: S704 - the project's own file
    card = svg.rect(0, 0, _WIDTH, height, "card")
    return str(svg.picture(_WIDTH, height, title, [style, card, *drawn])) + "\n"


def _row(fabric: FabricSummary, base_s: float, across: svg.LinearScale, y: float) -> list[Markup]:
    first = fabric.result.first_all_to_all
    exposed = (first.exposed_s or 0.0) / base_s
    waited, predicted = (
        min(_LARGEST, (seconds or 0.0) / base_s)
        for seconds in (first.waited_s, first.predicted_exposed_s)
    )
    end = min(_LARGEST, exposed)
    figure = formatting.ratio(exposed)
    if first.error is not None:
        figure += f", {formatting.deviation(first.error)}"
    return [
        svg.label(_NAMES - 12, y + 12, fabric.name, "", "end"),
        svg.bar(across, 0.0, waited, y, _BAR, "waiting"),
        svg.bar(across, waited, end, y, _BAR, "sending"),
        svg.rect(across(predicted) - 1.25, y - 3, 2.5, _BAR + 6, "target"),
        svg.label(max(across(end), across(predicted)) + 10, y + 12, figure, "small"),
    ]
