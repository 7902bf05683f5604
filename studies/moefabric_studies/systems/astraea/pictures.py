"""Picture of a study: throughput of flows over time, one panel for each congestion control."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from moefabric.api.charts import Axis, Line, Panel, document_picture
from moefabric_studies.systems.astraea.flows import BIN_S, Trace

_SMOOTH: Final = 5
"""Bins over which a curve is averaged."""
_COLOURS: Final = (1, 4, 2)


def throughput_picture(traces: Mapping[str, Trace]) -> str:
    """Return an SVG file with each flow's throughput over time.

    Args:
        traces: Runs by their titles.
    """
    flows = range(len(next(iter(traces.values())).starts_s))
    legend = [(f"t{_COLOURS[flow % len(_COLOURS)]}", f"flow {flow + 1}") for flow in flows]
    panels = [_panel(f"{title}, Mb/s", trace) for title, trace in traces.items()]
    title = "Throughput of staggered flows over time, in Mb/s"
    return document_picture(title, panels, columns=3, legend=legend)


def _panel(heading: str, trace: Trace) -> Panel:
    bins, most = trace.rates.shape[1], trace.bottleneck.rate_bps / 1e6
    mean, edge = np.full(_SMOOTH, 1 / _SMOOTH), _SMOOTH // 2
    marks = []
    for flow, start_s in enumerate(trace.starts_s):
        rate_mbps = np.convolve(trace.rates[flow] / 1e6, mean, mode="valid")
        points = [
            ((number + 0.5) * BIN_S, float(rate_mbps[number - edge]))
            for number in range(round(start_s / BIN_S) + edge, bins - edge)
        ]
        marks.append(Line(points, f"curve c{_COLOURS[flow % len(_COLOURS)]}"))
    x, y = Axis.seconds(0, bins * BIN_S, 4), Axis.numbers(0, most * 1.05, most=4)
    return Panel(x, y, marks, 108, heading)
