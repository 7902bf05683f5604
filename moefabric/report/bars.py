"""The bars: iteration time, all-to-all against `eps`, and bytes by light, fabric beneath fabric on shared rows."""

from collections.abc import Callable, Sequence

from markupsafe import Markup

from moefabric.report import svg, words
from moefabric.report.result import Result

_NAMES, _GAP, _TOP, _ROW, _BAR = 124.0, 64.0, 62.0, 38.0, 16.0
_ROOM = 62.0
"""Kept free right of the longest bar for its figure."""

Row = Callable[[Result, svg.Scale, float], list[Markup]]


def bars(results: Sequence[Result]) -> Markup:
    """Three panels side by side. Empty where there is no fabric."""
    if not results:
        return Markup()
    width = (svg.WIDTH - _NAMES - 2 * _GAP) / 3
    drawn = []
    for k, result in enumerate(results):
        drawn.append(svg.label(_NAMES - 16, _y(k) + 13, words.printable(result.name), "strong", "end"))
    longest = max((max(r.iteration_s or 0, r.predicted_iteration_s or 0) for r in results), default=0) or 1.0
    slowest = max((max(r.ratio_measured or 0, r.ratio_predicted or 0) for r in results), default=0) or 1.0
    left = _NAMES
    for heading, key, scale, row in (
        (
            "Iteration time",
            [("k-expert", "compute"), ("k-dispatch", "exposed"), ("target", "predicted")],
            longest,
            _iteration,
        ),
        (
            "All-to-all relative to eps",
            [("bar", "measured"), ("target", "predicted")],
            max(slowest, 1.0),
            _ratio,
        ),
        ("Bytes by light", [("light", "by light"), ("by-eps", "by the EPS")], 1.0, _light),
    ):
        across = svg.Scale(0.0, scale, left, left + width - _ROOM)
        drawn += [svg.label(left, 16, heading, "strong"), svg.legend(left, 38, key)]
        if row is _ratio:
            drawn.append(svg.line(across(1.0), _TOP - 8, across(1.0), _y(len(results)) - 8, "reference"))
        for k, result in enumerate(results):
            drawn += row(result, across, _y(k))
        left += width + _GAP
    return svg.picture(svg.WIDTH, _y(len(results)), "The fabrics compared", drawn)


def _y(k: int) -> float:
    return _TOP + k * _ROW


def _iteration(result: Result, across: svg.Scale, y: float) -> list[Markup]:
    if result.iteration_s is None:
        return [_missing(across, y)]
    compute = min(result.compute_s or 0.0, result.iteration_s)
    exposed = f"exposed communication: {words.seconds(result.exposed_s)}, {words.share(result.exposed_share)}"
    middle, end = across(compute), across(result.iteration_s)
    drawn = [
        svg.rect(
            across.start,
            y,
            middle - across.start,
            _BAR,
            "k-expert",
            title=f"compute: {words.seconds(compute)}",
        ),
        svg.rect(middle, y, end - middle, _BAR, "k-dispatch", title=exposed),
        svg.label(
            max(end, across(result.predicted_iteration_s or 0)) + 8,
            y + 13,
            words.seconds(result.iteration_s),
            "figure",
        ),
    ]
    return drawn + _target(
        result.predicted_iteration_s, across, y, words.seconds(result.predicted_iteration_s, 4)
    )


def _ratio(result: Result, across: svg.Scale, y: float) -> list[Markup]:
    if result.ratio_measured is None:
        return [_missing(across, y)]
    end, said = across(result.ratio_measured), words.ratio(result.ratio_measured)
    drawn = [
        svg.rect(across.start, y, end - across.start, _BAR, "bar", title=f"measured: {said}"),
        svg.label(max(end, across(result.ratio_predicted or 0)) + 8, y + 13, said, "figure"),
    ]
    return drawn + _target(result.ratio_predicted, across, y, words.ratio(result.ratio_predicted))


def _light(result: Result, across: svg.Scale, y: float) -> list[Markup]:
    share = result.light_share
    if share is None:
        return [_missing(across, y)]
    middle = across(share)
    return [
        svg.rect(
            across.start,
            y,
            middle - across.start,
            _BAR,
            "light",
            title=f"by light: {words.amount(result.bytes_by_light)}",
        ),
        svg.rect(
            middle,
            y,
            across.end - middle,
            _BAR,
            "by-eps",
            title=f"by the EPS: {words.amount(result.bytes_by_eps)}",
        ),
        svg.label(across.end + 8, y + 13, f"{share * 100:.0f} %", "figure"),
    ]


def _target(value: float | None, across: svg.Scale, y: float, said: str) -> list[Markup]:
    """The prediction, as a stroke that the bar should end at."""
    if value is None:
        return []
    return [svg.rect(across(value) - 1.25, y - 4, 2.5, _BAR + 8, "target", title=f"predicted: {said}")]


def _missing(across: svg.Scale, y: float) -> Markup:
    return svg.label(across.start, y + 13, "not measured", "faint")
