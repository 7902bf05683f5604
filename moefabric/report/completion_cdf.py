"""Cumulative distribution of the all-to-alls' completion times, one panel per fabric."""

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from moefabric.report import formatting, svg
from moefabric.report.summary import FabricSummary

_LEFT, _TOP, _GAP, _HEIGHT, _COLUMNS = 44.0, 50.0, 28.0, 170.0, 4
_PITCH = _HEIGHT + 90


def completion_cdf(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw measured and predicted distributions on one time scale.

    The other fabrics are drawn faintly behind each. Empty if no all-to-all was measured.
    """
    shown = [fabric for fabric in fabrics if fabric.all_to_alls]
    if not shown:
        return Markup()
    times = [t for fabric in shown for t in _measured(fabric) + _predicted(fabric)]
    low, high = min(times), max(times)
    margin = 0.06 * (high - low or high or 1.0)
    columns = min(len(shown), _COLUMNS)
    width = (svg.WIDTH - _LEFT - 8 - _GAP * (columns - 1)) / max(columns, 2)
    drawn = []
    for k, fabric in enumerate(shown):
        x, y = _LEFT + k % columns * (width + _GAP), _TOP + k // columns * _PITCH
        across = svg.LinearScale(max(0.0, low - margin), high + margin, x, x + width)
        up = svg.LinearScale(0.0, 1.0, y + _HEIGHT, y)
        drawn += _panel(fabric, shown, across, up, numbered=k % columns == 0)
    height = _TOP + (-(-len(shown) // columns)) * _PITCH - 62
    return svg.picture(svg.WIDTH, height, "Completion times, measured and predicted", drawn)


def _measured(fabric: FabricSummary) -> list[float]:
    return sorted(a.measured_s for a in fabric.all_to_alls)


def _predicted(fabric: FabricSummary) -> list[float]:
    return sorted(a.predicted_s for a in fabric.all_to_alls if a.predicted_s is not None)


def _panel(
    fabric: FabricSummary, shown: Iterable[FabricSummary],
    across: svg.LinearScale, up: svg.LinearScale, *, numbered: bool,
) -> list[Markup]:  # fmt: skip
    figures = f"median {formatting.seconds(fabric.measured_s)}"
    if fabric.error is not None:
        figures += f", error {formatting.deviation(fabric.error)}"
    drawn = [
        *svg.time_axis(across, up.start, up.start + 4, 5),
        svg.label(across.start, up.end - 28, fabric.name, "strong"),
        svg.label(across.start, up.end - 12, figures, "small"),
    ]
    for share in (0.0, 0.5, 1.0):
        drawn.append(svg.line(across.start, up(share), across.end, up(share), "grid"))
        if numbered:
            text = f"{share * 100:.0f} %"
            drawn.append(svg.label(across.start - 8, up(share) + 4, text, "tick", "end"))
    curves = [(_measured(other), "cdf others") for other in shown if other is not fabric]
    curves += [(_measured(fabric), "cdf measured"), (_predicted(fabric), "cdf predicted")]
    drawn += [svg.path(_steps(times, across, up), class_) for times, class_ in curves if times]
    return drawn


def _steps(
    times: Sequence[float], across: svg.LinearScale, up: svg.LinearScale
) -> list[tuple[float, float]]:
    """Return the corners of a staircase that rises by one n-th at each of n times."""
    return [
        (across(time), up((k + rise) / len(times)))
        for k, time in enumerate(times)
        for rise in (0, 1)
    ]
