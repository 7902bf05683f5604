"""Cumulative distribution of signed errors of predictions, one panel per fabric."""

from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from moefabric.report import svg
from moefabric.report.summary import FabricSummary

_LEFT, _TOP, _GAP, _HEIGHT, _COLUMNS = 44.0, 64.0, 28.0, 170.0, 4
_PITCH = _HEIGHT + 76
_LEAST_SPAN = 0.005
"""Error up to which the axis reaches at least, so that rounding noise isn't drawn large."""


def error_cdf(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw the errors of each kind on one scale, around 0; empty if no error is known.

    The axis ends at the largest of the curves' 5th and 95th percentiles, doubled.
    """
    shown = [fabric for fabric in fabrics if fabric.result.fidelity.completion_errors]
    if not shown:
        return Markup()
    kinds = list(dict.fromkeys(k for f in shown for k in f.result.fidelity.completion_errors))
    summaries = [e for f in shown for e in f.result.fidelity.completion_errors.values()]
    span = max(_LEAST_SPAN, *(2 * abs(value) for e in summaries for value in (e.p5, e.p95)))
    columns = min(len(shown), _COLUMNS)
    width = (svg.WIDTH - _LEFT - 8 - _GAP * (columns - 1)) / max(columns, 2)
    drawn = [svg.legend(_LEFT, 16, [(f"k-{kind}", kind) for kind in kinds])]
    for k, fabric in enumerate(shown):
        x, y = _LEFT + k % columns * (width + _GAP), _TOP + k // columns * _PITCH
        across = svg.LinearScale(-span, span, x, x + width)
        up = svg.LinearScale(0.0, 1.0, y + _HEIGHT, y)
        drawn += _panel(fabric, across, up, numbered=k % columns == 0)
    height = _TOP + (-(-len(shown) // columns)) * _PITCH - 46
    return svg.picture(svg.WIDTH, height, "Signed errors of the predictions, by kind", drawn)


def _panel(
    fabric: FabricSummary, across: svg.LinearScale, up: svg.LinearScale, *, numbered: bool
) -> list[Markup]:
    drawn = [svg.label(across.start, up.end - 14, fabric.name, "strong")]
    for mark in svg.ticks(across.low, across.high, 5):
        x, class_ = across(mark), "grid" if mark else "axis"
        drawn += [
            svg.line(x, up.start + 4, x, up.end, class_),
            svg.label(x, up.start + 20, f"{mark * 100:+g} %" if mark else "0", "tick", "middle"),
        ]
    for share in (0.0, 0.5, 1.0):
        drawn.append(svg.line(across.start, up(share), across.end, up(share), "grid"))
        if numbered:
            text = f"{share * 100:.0f} %"
            drawn.append(svg.label(across.start - 8, up(share) + 4, text, "tick", "end"))
    for kind, summary in fabric.result.fidelity.completion_errors.items():
        if curve := _within(summary.quantiles, across.low, across.high):
            points = [(across(error), up(share)) for error, share in curve]
            drawn.append(svg.path(points, f"cdf e-{kind}"))
    return drawn


def _within(quantiles: Sequence[float], low: float, high: float) -> list[tuple[float, float]]:
    """Return the curve as (error, share) pairs, cut where it leaves the axis."""
    steps = max(1, len(quantiles) - 1)
    curve = [(error, k / steps) for k, error in enumerate(quantiles)]
    crossings = [
        (edge, below + (above - below) * (edge - left) / (right - left))
        for (left, below), (right, above) in pairwise(curve)
        for edge in (low, high)
        if left < edge < right
    ]
    return sorted([*(point for point in curve if low <= point[0] <= high), *crossings])
