"""Phases of the reconfigurations: median bars, and a dot for each change of circuits beneath.

The left panel has all phases. The right panel leaves out settling, which is the optics' time.
"""

from collections.abc import Callable, Sequence
from statistics import median

from markupsafe import Markup

from moefabric.report import formatting, svg
from moefabric.report.summary import PHASES, FabricSummary, control_s, total_s
from moefabric.runner.result_parts import ReconfigurationResult

_NAMES, _GAP, _TOP, _ROW, _BAR = 124.0, 56.0, 70.0, 62.0, 16.0
_FIGURE = 74.0


def reconfiguration_phases(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw both panels for the fabrics with reconfigurations; empty if there are none."""
    shown = [fabric for fabric in fabrics if fabric.result.reconfigurations]
    if not shown:
        return Markup()
    width = (svg.WIDTH - _NAMES - _GAP) / 2
    phases = [phase for phase in PHASES if any(f.phase_s(phase) is not None for f in shown)]
    control = [phase for phase in phases if phase != "settle"]
    drawn = [svg.legend(_NAMES, 14, [(f"p-{phase}", phase) for phase in phases])]
    for k, fabric in enumerate(shown):
        y, count = _TOP + k * _ROW, fabric.change_count
        count += " change" if count == "1" else " changes"
        drawn.append(svg.label(_NAMES - 16, y + 12, fabric.name, "strong", "end"))
        drawn.append(svg.label(_NAMES - 16, y + 28, count, "small", "end"))
        if (p95_s := fabric.result.control_time.p95_s) is not None:
            p95 = f"control p95 {formatting.seconds(p95_s)}"
            drawn.append(svg.label(_NAMES - 16, y + 44, p95, "small", "end"))
    right = _NAMES + width + _GAP
    drawn += _panel(shown, phases, total_s, "All phases", _NAMES, width)
    drawn += _panel(shown, control, control_s, "Control plane: all but settle", right, width)
    return svg.picture(svg.WIDTH, _TOP + len(shown) * _ROW + 14, "Reconfiguration phases", drawn)


def _panel(
    shown: Sequence[FabricSummary], phases: Sequence[str],
    duration_s: Callable[[ReconfigurationResult], float], heading: str, left: float, width: float,
) -> list[Markup]:  # fmt: skip
    longest_s = max(duration_s(change) for fabric in shown for change in fabric.changes)
    medians = [[(phase, fabric.phase_s(phase) or 0.0) for phase in phases] for fabric in shown]
    sums = [sum(seconds for _, seconds in bars) for bars in medians]
    across = svg.LinearScale(0.0, max(longest_s, *sums) or 1.0, left, left + width - _FIGURE)
    bottom = _TOP + len(shown) * _ROW - 14
    drawn = [svg.label(left, 44, heading, "strong"), *svg.time_axis(across, _TOP - 12, bottom, 6)]
    for k, (fabric, bars, sum_s) in enumerate(zip(shown, medians, sums, strict=True)):
        y, start = _TOP + k * _ROW, 0.0
        for phase, seconds in bars:
            title = f"{phase}: {formatting.seconds(seconds)} (median)"
            drawn.append(svg.bar(across, start, start + seconds, y, _BAR, f"p-{phase}", title))
            start += seconds
        middle = formatting.seconds(median(map(duration_s, fabric.changes)))
        drawn.append(svg.label(across(sum_s) + 8, y + 13, middle, "figure"))
        for change in fabric.changes:
            seconds = duration_s(change)
            title = formatting.printable(f"{_name(change)}: {formatting.seconds(seconds)}")
            drawn.append(svg.circle(across(seconds), y + _BAR + 11, 3.5, "dot", title))
    return drawn


def _name(change: ReconfigurationResult) -> str:
    layer = "" if change.layer is None else f"layer {change.layer} {change.direction}".strip()
    return ", ".join(part for part in (change.region, change.reason, layer) if part)
