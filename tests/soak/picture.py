"""Picture of a soak: what each process holds, and how long reconfigurations take."""

from collections.abc import Sequence

from markupsafe import Markup

from moefabric.report import svg
from moefabric.report.pictures import styled
from tests.soak.soak import CHANGES, SoakReport

_LEFT, _WIDTH, _HEIGHT, _PITCH = 220.0, 860.0, 44.0, 62.0
_POINTS = 400


def soak_picture(report: SoakReport) -> str:
    """Return the picture as SVG: a strip for the memory of each process, and one for latency."""
    strips = [
        (f"{process}, MB", [sample.rss_kb / 1000 for sample in samples])
        for process, samples in report.samples.items()
    ]
    strips.append(("control time, ms", [1000 * seconds for seconds in report.latency_s]))
    drawn = [
        mark for row, (name, values) in enumerate(strips) for mark in _strip(row, name, values)
    ]
    last = len(report.samples.get("run", ())) * CHANGES
    bottom = len(strips) * _PITCH + 24
    drawn.append(svg.label(_LEFT, bottom, "0", "tick"))
    drawn.append(svg.label(_LEFT + _WIDTH, bottom, f"{last} reconfigurations", "tick", "end"))
    return styled(svg.picture(svg.WIDTH, bottom + 16, "Soak of a fabric", drawn))


def _strip(row: int, name: str, values: Sequence[float]) -> list[Markup]:
    """Draw values as a curve from zero to a little over the greatest."""
    shown = values[:: max(1, len(values) // _POINTS)]
    top = row * _PITCH + 8
    up = svg.LinearScale(0.0, 1.1 * max(shown, default=1.0), top + _HEIGHT, top)
    across = svg.LinearScale(0.0, max(1.0, len(shown) - 1.0), _LEFT, _LEFT + _WIDTH)
    points = [(across(n), up(value)) for n, value in enumerate(shown)]
    return [
        svg.label(0, top + _HEIGHT / 2, name, "strong"),
        svg.line(_LEFT, up(0.0), _LEFT + _WIDTH, up(0.0), "axis"),
        svg.label(_LEFT - 8, top + 12, f"{up.high:.3g}", "tick", "end"),
        svg.path(points, "cdf e-flow"),
    ]
