"""Picture of a study: throughput of flows over time, one panel for each congestion control."""

from collections.abc import Mapping
from typing import Final

import numpy as np
from markupsafe import Markup

from moefabric.report import svg
from moefabric.report.picture_file import WIDTH, picture_file
from moefabric.systems.astraea.flows import BIN_S, Trace

_COLUMNS: Final = 3
_PANEL_HEIGHT: Final = 176.0
_LEFT, _TOP, _BOTTOM, _GAP = 34.0, 34.0, 34.0, 12.0
_HEAD: Final = 34.0
_SMOOTH: Final = 5
"""Bins over which a curve is averaged."""
_CLASSES: Final = (1, 4, 2)


def throughput_picture(traces: Mapping[str, Trace]) -> str:
    """Return an SVG file with each flow's throughput over time.

    Args:
        traces: Runs by their titles.
    """
    first = next(iter(traces.values()))
    names = [f"flow {flow + 1}" for flow in range(len(first.starts_s))]
    classes = [f"t{_CLASSES[flow % len(_CLASSES)]}" for flow in range(len(names))]
    rows = -(-len(traces) // _COLUMNS)
    height = _HEAD + rows * _PANEL_HEIGHT + 6
    elements = [svg.legend(_LEFT, 22, zip(classes, names, strict=True))]
    width = WIDTH / _COLUMNS
    for number, (title, trace) in enumerate(traces.items()):
        row, column = divmod(number, _COLUMNS)
        elements += _panel(title, trace, column * width, _HEAD + row * _PANEL_HEIGHT, width - _GAP)
    return picture_file(height, "Throughput of staggered flows over time, in Mb/s", elements)


def _panel(title: str, trace: Trace, x: float, y: float, width: float) -> list[Markup]:
    top, bottom = y + _TOP, y + _PANEL_HEIGHT - _BOTTOM
    bins = trace.rates.shape[1]
    across = svg.LinearScale(0, bins * BIN_S, x + _LEFT, x + width)
    most = trace.bottleneck.rate_bps / 1e6
    up = svg.LinearScale(0, most * 1.05, bottom, top)
    elements = [svg.label(x + _LEFT, y + 22, f"{title}, Mb/s", "strong")]
    elements += svg.time_axis(across, top, bottom, 4)
    for tick in svg.ticks(0, most, 4):
        elements.append(svg.line(x + _LEFT, up(tick), x + width, up(tick), "grid"))
        elements.append(svg.label(x + _LEFT - 6, up(tick) + 4, f"{tick:g}", "tick", "end"))
    mean, edge = np.full(_SMOOTH, 1 / _SMOOTH), _SMOOTH // 2
    for flow, start_s in enumerate(trace.starts_s):
        own = np.convolve(trace.rates[flow] / 1e6, mean, mode="valid")
        points = [
            (across((bin_ + 0.5) * BIN_S), up(min(own[bin_ - edge], up.high)))
            for bin_ in range(round(start_s / BIN_S) + edge, bins - edge)
        ]
        elements.append(svg.path(points, f"curve c{_CLASSES[flow % len(_CLASSES)]}"))
    return elements
