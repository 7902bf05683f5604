"""Failure timeline: the iterations with failures, with their injection, detection and recovery."""

from collections.abc import Iterator, Sequence
from functools import partial

from markupsafe import Markup

from moefabric.report import formatting, svg, time_strips
from moefabric.runner.result_parts import FailureResult

_HEAD, _ROW, _ROW_GAP = 46.0, 16.0, 3.0
_MARKS = ("injected", "detected", "recovered")


def failure_timeline(failures: Sequence[FailureResult]) -> Markup:
    """Draw the iteration of each failure for the servers concerned; empty if there is none."""
    strips, kinds = [], set()
    for failure in failures:
        if failure.lanes and failure.measured_s:
            servers = list(dict.fromkeys(lane.server for lane in failure.lanes))
            height = _HEAD + len(servers) * (_ROW + _ROW_GAP)
            draw = partial(_draw, failure, failure.measured_s, servers)
            strips.append(time_strips.Strip(failure.measured_s, height, draw))
            kinds |= {lane.kind for lane in failure.lanes} - {*time_strips.OPTICAL_ACTIVITIES}
    legend = time_strips.activity_legend(kinds) + [(f"m-{mark}", mark) for mark in _MARKS]
    return time_strips.timeline_picture(strips, legend, "Iterations with failures", gap=18.0)


def _draw(
    failure: FailureResult,
    length_s: float,
    servers: Sequence[str],
    across: svg.LinearScale,
    y: float,
) -> Iterator[Markup]:
    heading = formatting.printable(f"{failure.name}, iteration {failure.iteration}")
    x, top = time_strips.LEFT + svg.text_width(heading, 14) + 18, y + _HEAD
    slow_down = formatting.deviation(failure.slow_down)
    yield svg.label(time_strips.LEFT, y + 14, heading, "strong")
    yield svg.label(x, y + 14, _recovery(failure), "small")
    yield svg.label(time_strips.LEFT, y + 30, formatting.printable(failure.action), "small")
    yield svg.label(across(length_s) + 8, top + 12, slow_down, "strong")
    y = top
    for server in servers:
        yield from time_strips.row(server, length_s, across, y, _ROW)
        for lane in failure.lanes:
            if lane.server == server and lane.kind not in time_strips.OPTICAL_ACTIVITIES:
                class_ = f"k-{time_strips.activity_class(lane.kind)}"
                title = f"{server}: {lane.kind}, {formatting.seconds(lane.end_s - lane.start_s)}"
                yield svg.bar(
                    across, lane.start_s, lane.end_s, y, _ROW, class_, title, narrowest=0.5
                )
        y += _ROW + _ROW_GAP
    for name, at_s in failure.marks.items():
        if name in _MARKS and 0 <= at_s <= 1.02 * length_s:
            x = across(at_s)
            yield svg.tag(
                "g",
                svg.tag("title", f"{name} at {formatting.seconds(at_s)}"),
                svg.line(x, top - 5, x, y - _ROW_GAP + 5, f"m-{name}"),
                svg.rect(x - 3, top - 8, 6, 5, f"m-{name}"),
            )


def _recovery(failure: FailureResult) -> str:
    if failure.detected_s is None:
        return "no recovery needed" if failure.ok else "not detected"
    detected = f"detected after {formatting.seconds(failure.detected_s)}"
    if failure.recovered_s is None:
        return f"{detected}, not recovered"
    return f"{detected}, recovered after {formatting.seconds(failure.recovered_s)}"
