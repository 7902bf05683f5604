"""Light over a job: circuits of each pair of servers in each iteration, and how many moved."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, groupby
from typing import Final

from markupsafe import Markup

from moefabric.report import formatting, svg
from moefabric.report.demand_heatmap import opacity
from moefabric.report.summary import FabricSummary, changes_circuits
from moefabric.report.time_strips import Strip, timeline_picture
from moefabric.runner.result_parts import ReconfigurationResult

_HEAD, _ROW, _GAP, _BARS = 30.0, 15.0, 1.0, 34.0
_MOST_PAIRS: Final = 28
"""Pairs of servers up to which each has a row; more are left out."""


def light_over_time(fabrics: Sequence[FabricSummary]) -> Markup:
    """Draw the circuits of fabrics whose light moves; empty if none does.

    A cell is the mean number of a pair's circuits over the requests of an iteration. The bars
    beneath count the circuits that moved for a request, as a mean.
    """
    shown = [fabric for fabric in fabrics if fabric.result.reconfigurations and _ends(fabric)]
    strips = []
    for fabric in shown:
        lit = _circuits_by_pair(fabric)
        height = _HEAD + len(lit) * _ROW + _BARS
        strips.append(Strip(_ends(fabric)[-1], height, partial(_draw, fabric, lit)))
    legend = [("lit", "circuits of a pair of servers"), ("moved", "circuits moved for a request")]
    return timeline_picture(strips, legend, "Light over model time")


def _ends(fabric: FabricSummary) -> list[float]:
    """Return the end of each iteration in model seconds; empty if a duration is missing."""
    durations = [iteration.measured_s for iteration in fabric.result.iterations]
    known = [seconds for seconds in durations if seconds is not None]
    return list(accumulate(known)) if len(known) == len(durations) else []


def _by_iteration(fabric: FabricSummary) -> dict[int, list[ReconfigurationResult]]:
    ordered = sorted(fabric.result.reconfigurations, key=lambda one: one.iteration)
    return {number: list(own) for number, own in groupby(ordered, key=lambda one: one.iteration)}


def _circuits_by_pair(fabric: FabricSummary) -> dict[str, dict[int, float]]:
    """Return the mean number of circuits of each pair of servers, by iteration."""
    lit: dict[str, dict[int, float]] = {}
    for iteration, requests in _by_iteration(fabric).items():
        known = [one.circuits_after for one in requests if one.circuits_after is not None]
        total = Counter(_pair(circuit) for circuits in known for circuit in circuits)
        for pair, count in total.items():
            lit.setdefault(pair, {})[iteration] = count / len(known)
    return dict(sorted(lit.items())[:_MOST_PAIRS])


def _pair(circuit: str) -> str:
    """Return the servers of `s0/o0~s1/o2`: `s0 - s1`."""
    return formatting.printable(" - ".join(sorted(end.split("/")[0] for end in circuit.split("~"))))


def _moved(requests: Iterable[ReconfigurationResult]) -> float:
    """Return the mean number of circuits that requests lit anew."""
    counts = [
        len(set(one.circuits_after or ()) - set(one.circuits_before or ())) for one in requests
    ]
    return sum(counts) / max(1, len(counts))


def _draw(
    fabric: FabricSummary, lit: dict[str, dict[int, float]], across: svg.LinearScale, y: float
) -> Iterator[Markup]:
    ends, requests = _ends(fabric), _by_iteration(fabric)
    starts = [0.0, *ends[:-1]]
    name = svg.tag("tspan", fabric.name, class_="strong")
    figures = svg.tag("tspan", _summary(fabric.result.reconfigurations), dx=12, class_="small")
    yield svg.label(across.start, y + 16, name + figures)
    y += _HEAD
    most = max((count for own in lit.values() for count in own.values()), default=1.0)
    for pair, own in lit.items():
        yield svg.label(across.start - 10, y + _ROW * 0.5 + 4, pair, "tick", "end")
        yield svg.bar(across, 0.0, ends[-1], y, _ROW - _GAP, "lane")
        for iteration, count in own.items():
            title = f"{pair}, iteration {iteration}: {count:.2g} circuits"
            start, width = across(starts[iteration]), across(ends[iteration])
            yield svg.rect(
                start, y, width - start, _ROW - _GAP, "lit", title=title,
                opacity=opacity(count / most),
            )  # fmt: skip
        y += _ROW
    moved = {iteration: _moved(own) for iteration, own in requests.items()}
    up = svg.LinearScale(0.0, max(moved.values(), default=0.0) or 1.0, 0.0, _BARS - 8)
    yield svg.label(across.start - 10, y + _BARS - 10, "moved", "tick", "end")
    for iteration, count in moved.items():
        title = f"iteration {iteration}: {count:.2g} circuits moved for a request"
        start, end = across(starts[iteration]), across(ends[iteration])
        top, narrower = y + _BARS - 2 - up(count), min(1.0, 0.2 * (end - start))
        yield svg.rect(start, top, end - start - narrower, up(count), "moved", title=title)


def _summary(requests: Sequence[ReconfigurationResult]) -> str:
    changed = [one for one in requests if changes_circuits(one)]
    total = formatting.counted(len(requests), "request")
    each = f", {_moved(changed):.1f} each" if changed else ""
    return f"{len(changed)} of {total} moved circuits{each}"
