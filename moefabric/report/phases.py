"""The phases: what a change of light is made of, as median bars, and beneath each bar every single change as a dot at its time.

The left panel has the whole; the right one leaves out settling, which is the optics' time, and shows the control plane's own.
"""

from collections.abc import Sequence

from markupsafe import Markup

from moefabric.report import svg, words
from moefabric.report.result import PHASES, Reconfiguration, Result

_NAMES, _GAP, _TOP, _ROW, _BAR = 124.0, 56.0, 70.0, 62.0, 16.0
_ROOM = 74.0


def phases(results: Sequence[Result]) -> Markup:
    """Both panels, of the fabrics whose light changed. Empty where none did."""
    shown = [result for result in results if result.reconfigurations]
    if not shown:
        return Markup()
    width = (svg.WIDTH - _NAMES - _GAP) / 2
    there = [phase for phase in PHASES if any(result.phase_s(phase) is not None for result in shown)]
    drawn = [svg.legend(_NAMES, 14, [(f"p-{phase}", phase) for phase in there])]
    for k, result in enumerate(shown):
        y = _y(k)
        count = result.count + (
            " change" if result.count == "1" else " changes" if result.count.isdigit() else " moved light"
        )
        drawn.append(svg.label(_NAMES - 16, y + 12, words.printable(result.name), "strong", "end"))
        drawn.append(svg.label(_NAMES - 16, y + 28, count, "small", "end"))
    own = [phase for phase in there if phase != "settle"]
    drawn += _panel(shown, there, _NAMES, width, "Demand in to last rule confirmed", whole=True)
    drawn += _panel(
        shown, own, _NAMES + width + _GAP, width, "The control plane's own time: all but settle", whole=False
    )
    return svg.picture(svg.WIDTH, _y(len(shown)) + 14, "Phases of the reconfigurations", drawn)


def _y(k: int) -> float:
    return _TOP + k * _ROW


def _took(change: Reconfiguration, *, whole: bool) -> float:
    return change.total_s if whole else change.control_s


def _panel(
    shown: Sequence[Result], stacked: Sequence[str], left: float, width: float, heading: str, *, whole: bool
) -> list[Markup]:
    longest = max(_took(change, whole=whole) for result in shown for change in result.changes)
    sums = [sum(result.phase_s(phase) or 0.0 for phase in stacked) for result in shown]
    across = svg.Scale(0.0, max(longest, *sums) or 1.0, left, left + width - _ROOM)
    bottom = _y(len(shown)) - 14
    drawn = [svg.label(left, 44, heading, "strong"), *_axis(across, bottom)]
    for k, (result, total) in enumerate(zip(shown, sums, strict=True)):
        drawn += _stack(result, stacked, across, _y(k))
        drawn.append(svg.label(across(total) + 8, _y(k) + 13, words.seconds(total), "figure"))
        drawn += [_dot(change, across, _y(k) + _BAR + 11, whole=whole) for change in result.changes]
    return drawn


def _stack(result: Result, stacked: Sequence[str], across: svg.Scale, y: float) -> list[Markup]:
    drawn, begun = [], 0.0
    for phase in stacked:
        seconds = result.phase_s(phase) or 0.0
        x, end = across(begun), across(begun + seconds)
        drawn.append(
            svg.rect(x, y, end - x, _BAR, f"p-{phase}", title=f"{phase}: {words.seconds(seconds)} (median)")
        )
        begun += seconds
    return drawn


def _dot(change: Reconfiguration, across: svg.Scale, y: float, *, whole: bool) -> Markup:
    seconds = _took(change, whole=whole)
    title = svg.tag("title", words.printable(f"{change.name}: {words.seconds(seconds)}"))
    return svg.tag("circle", title, cx=across(seconds), cy=y, r=3.5, class_="dot")


def _axis(across: svg.Scale, bottom: float) -> list[Markup]:
    factor, unit = words.time_unit(across.high)
    drawn, marks = [], svg.ticks(0, across.high / factor, 6)
    for mark in marks:
        x = across(mark * factor)
        said = f"{mark:g} {unit}" if mark == marks[-1] else f"{mark:g}"
        drawn += [
            svg.line(x, _TOP - 12, x, bottom, "grid"),
            svg.label(x, bottom + 16, said, "tick", "middle"),
        ]
    return drawn
