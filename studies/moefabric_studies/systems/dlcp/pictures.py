"""Pictures of the study: completion times of incasts, and accuracy over time."""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from moefabric.api.charts import Axis, Mark, Panel, curve, document_picture, plot
from moefabric_studies.systems.dlcp.incast import pooled
from moefabric_studies.systems.dlcp.measurements import Incasts, Measurements
from moefabric_studies.systems.dlcp.training import Progress
from moefabric_studies.systems.dlcp.transports import CUBIC, PRIORITY_TCP, bounded_loss

_TICKS_MS = (2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
_SHARES = {0.0: "0", 0.25: "25 %", 0.5: "50 %", 0.75: "75 %", 1.0: "100 %"}
_TAIL_SHARES = {1.0: "100 %", 0.1: "10 %", 0.01: "1 %", 0.001: "0.1 %"}
_POINTS = 150
"""Points of a curve; further ones coincide on the screen."""


def completion_curves(incasts: Sequence[tuple[str, Incasts]]) -> str:
    """Draw the share of flows that take longer than a time, a chart for each number of workers.

    Args:
        incasts: Title and times of each chart.
    """
    names = list(incasts[0][1])
    panels = [_distribution(title, times, names) for title, times in incasts]
    legend = [(f"t{number}", name) for number, name in enumerate(names)]
    title = "Share of an incast's flows that take longer"
    return document_picture(title, panels, columns=2, legend=legend)


def _distribution(title: str, incasts: Incasts, names: Sequence[str]) -> Panel:
    times_ms = {name: 1e3 * np.array(pooled(one).flows_s) for name, one in incasts.items()}
    low = min(float(times.min()) for times in times_ms.values())
    high = max(float(times.max()) for times in times_ms.values())
    curves = [
        curve(names.index(name), list(_tail(times)), marks=False)
        for name, times in times_ms.items()
    ]
    marks: dict[float, str] = {tick: f"{tick}" for tick in _TICKS_MS if low <= tick <= high}
    x = Axis(low, high, marks, "completion time, ms", logarithmic=True)
    y = Axis(min(_TAIL_SHARES), 1.0, _TAIL_SHARES, logarithmic=True)
    return plot(title, x, y, curves)


def _tail(times_ms: NDArray[np.float64]) -> Iterator[tuple[float, float, str]]:
    """Yield times and the share of flows that take at least as long, evenly on a log axis."""
    ordered = np.sort(times_ms)[::-1]
    counts = np.unique(np.geomspace(1, len(ordered), _POINTS).round().astype(int))
    for count in counts:
        time_ms, share = float(ordered[count - 1]), count / len(ordered)
        yield time_ms, share, f"{share:.1%} take {time_ms:.1f} ms or longer"


def accuracy_curves(measured: Measurements) -> str:
    """Draw the accuracy over time of transports, and over iterations of loss bounds."""
    server = measured.server
    chosen = [CUBIC.name, PRIORITY_TCP.name, bounded_loss(1).name]
    by_time = [(name, server[name]) for name in chosen]
    by_bound = [(f"p = {percent} %", ones[0]) for percent, ones in measured.accuracy.items()]
    longest_s = max(sum(training.iterations_s) for _, training in by_time)
    time = Axis.numbers(0, longest_s, title="time of training, s")
    count = len(by_bound[0][1].iterations_s)
    iterations = Axis.numbers(0, count, title="iterations")
    y, first = Axis(0.0, 1.0, _SHARES), len(by_time)
    times = (
        _accuracy(n, list(accumulate(one.iterations_s)), one) for n, (_, one) in enumerate(by_time)
    )
    bounds = (_accuracy(n, range(1, count + 1), one) for n, (_, one) in enumerate(by_bound, first))
    panels = [plot("by time", time, y, times), plot("by iteration, dlcp", iterations, y, bounds)]
    legend = [(f"t{n}", name) for n, (name, _) in enumerate([*by_time, *by_bound])]
    title = "Accuracy with a parameter server"
    return document_picture(title, panels, columns=2, legend=legend)


def _accuracy(colour: int, places: Sequence[float], training: Progress) -> Iterator[Mark]:
    values = zip(places, training.accuracies, strict=True)
    return curve(colour, [(x, y, f"{y:.1%}") for x, y in values], marks=False)
