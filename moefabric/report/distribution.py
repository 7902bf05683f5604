"""The distribution: which share of the all-to-alls was done within which time, measured and predicted, one panel a fabric."""

from collections.abc import Sequence

from markupsafe import Markup

from moefabric.report import svg, words
from moefabric.report.result import Result

_LEFT, _TOP, _GAP, _HEIGHT, _A_ROW = 44.0, 50.0, 28.0, 170.0, 4


def distribution(results: Sequence[Result]) -> Markup:
    """Every fabric's panel on one scale of time, the others faint behind it. Empty where no all-to-all was measured."""
    shown = [result for result in results if result.all_to_alls]
    if not shown:
        return Markup()
    times = [t for result in shown for t in _measured(result) + _predicted(result)]
    low, high = min(times), max(times)
    margin = 0.06 * (high - low or high or 1.0)
    columns = min(len(shown), _A_ROW)
    width = (svg.WIDTH - _LEFT - 8 - _GAP * (columns - 1)) / max(columns, 2)
    drawn = []
    for k, result in enumerate(shown):
        column, row = k % columns, k // columns
        x, y = _LEFT + column * (width + _GAP), _TOP + row * (_HEIGHT + 90)
        across = svg.Scale(max(0.0, low - margin), high + margin, x, x + width)
        up = svg.Scale(0.0, 1.0, y + _HEIGHT, y)
        drawn += _panel(result, shown, across, up, numbered=column == 0)
    height = _TOP + (-(-len(shown) // columns)) * (_HEIGHT + 90) - 62
    return svg.picture(svg.WIDTH, height, "Completion of the all-to-alls, measured against predicted", drawn)


def _measured(result: Result) -> list[float]:
    return sorted(a.measured_s for a in result.all_to_alls)


def _predicted(result: Result) -> list[float]:
    return sorted(a.predicted_s for a in result.all_to_alls if a.predicted_s is not None)


def _panel(
    result: Result, shown: Sequence[Result], across: svg.Scale, up: svg.Scale, *, numbered: bool
) -> list[Markup]:
    drawn = [*_axes(across, up, numbered=numbered), *_head(result, across, up)]
    drawn += [
        svg.path(_steps(_measured(other), across, up), "cdf others") for other in shown if other is not result
    ]
    drawn.append(svg.path(_steps(_measured(result), across, up), "cdf measured"))
    if predicted := _predicted(result):
        drawn.append(svg.path(_steps(predicted, across, up), "cdf predicted"))
    return drawn


def _head(result: Result, across: svg.Scale, up: svg.Scale) -> list[Markup]:
    said = f"median {words.seconds(result.measured_s)}"
    if result.error is not None:
        said += f", error {words.error(result.error)}"
    return [
        svg.label(across.start, up.end - 28, words.printable(result.name), "strong"),
        svg.label(across.start, up.end - 12, said, "small"),
    ]


def _axes(across: svg.Scale, up: svg.Scale, *, numbered: bool) -> list[Markup]:
    drawn = []
    for part in (0.0, 0.5, 1.0):
        drawn.append(svg.line(across.start, up(part), across.end, up(part), "grid"))
        if numbered:
            drawn.append(svg.label(across.start - 8, up(part) + 4, f"{part * 100:.0f} %", "tick", "end"))
    factor, unit = words.time_unit(across.high)
    marks = svg.ticks(across.low / factor, across.high / factor, 5)
    for mark in marks:
        x = across(mark * factor)
        drawn.append(svg.line(x, up.start, x, up.start + 4, "tickmark"))
        said = f"{mark:g} {unit}" if mark == marks[-1] else f"{mark:g}"
        drawn.append(svg.label(x, up.start + 18, said, "tick", "middle"))
    return drawn


def _steps(times: Sequence[float], across: svg.Scale, up: svg.Scale) -> list[tuple[float, float]]:
    """The staircase: it rises by one n-th at each of n times."""
    points, share = [], 0.0
    for k, time in enumerate(times):
        points.append((across(time), up(share)))
        share = (k + 1) / len(times)
        points.append((across(time), up(share)))
    return points
