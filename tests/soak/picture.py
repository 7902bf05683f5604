"""Picture of a soak: memory of each process and control time over the reconfigurations."""

from collections.abc import Sequence

from moefabric.report.chart import Panel, figure
from moefabric.report.marks import Axis, Line
from moefabric.report.picture import Picture
from tests.soak.soak import CHANGES, SoakReport

_POINTS = 400


def soak_picture(report: SoakReport) -> str:
    """Return the picture as SVG: a strip for the memory of each process, and one for latency."""
    strips = {
        f"{process}, MB": [kb / 1000 for kb in samples["rss_kb"]]
        for process, samples in report.samples.items()
    }
    strips["control time, ms"] = [1000 * seconds for seconds in report.latency_s]
    last = len(report.samples["run"]["rss_kb"]) * CHANGES
    panels = [_strip(name, values, last) for name, values in strips.items()]
    return Picture.of(figure("Soak of a fabric", panels)).svg


def _strip(name: str, values: Sequence[float], last: int) -> Panel:
    """Draw values as a curve from zero to a little over the greatest."""
    shown = values[:: max(1, len(values) // _POINTS)]
    up = Axis.numbers(0.0, 1.1 * max(shown, default=1.0), most=3)
    across = Axis.numbers(0.0, max(1.0, last), "{:,.0f}".format, title="reconfigurations")
    step = across.high / max(1, len(shown) - 1)
    points = [(n * step, value) for n, value in enumerate(shown)]
    return Panel(across, up, [Line(points, "curve c1")], 44, name)
