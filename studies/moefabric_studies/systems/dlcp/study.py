"""The study of DLCP: from measured times to the values that its claims name."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric.api.charts import Axis, Mark, Panel, curve, document_picture, formatting, plot
from moefabric_studies.grids import Grid, captions, grid
from moefabric_studies.systems.dlcp import measurements, transports
from moefabric_studies.systems.dlcp.incast import IncastTimes, pooled
from moefabric_studies.systems.dlcp.measurements import Incasts, Measurements
from moefabric_studies.systems.dlcp.setup import Setup
from moefabric_studies.systems.dlcp.training import Progress
from moefabric_studies.systems.study import Measure, Outcome, StudyContext

Statistic = Callable[[IncastTimes], float]
_DLCP: Final = transports.bounded_loss(1).name
_LOSSLESS: Final = transports.bounded_loss(0).name
_tail_s, _mean_s, _round_tail_s = map(attrgetter, ("tail_s", "mean_s", "round_tail_s"))
_TICKS_MS = (2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
_SHARES = {0.0: "0", 0.25: "25 %", 0.5: "50 %", 0.75: "75 %", 1.0: "100 %"}
_TAIL_SHARES = {1.0: "100 %", 0.1: "10 %", 0.01: "1 %", 0.001: "0.1 %"}
_POINTS = 150
"""Points of a curve; further ones coincide on the screen."""


class DlcpStudy:
    """Measures the claims of DLCP."""

    setup = Setup

    def measure(self, setup: Setup, context: StudyContext) -> Outcome:
        """Measure incasts and trainings under every transport.

        Args:
            setup: Sizes and rates of links, incasts and trainings.
            context: Shows progress.

        Raises:
            MoefabricError: The machine lacks what the study needs.
        """
        return outcome(measurements.measure_all(setup, context), setup)


def outcome(measured: Measurements, setup: Setup) -> Outcome:
    """Return measures, pictures and tables of the measurements."""
    measures = {**incast_measures(measured), **training_measures(measured, setup)}
    late_ns = max(lateness.p99_ns for lateness in measured.lateness())
    if late_ns > measurements.MOST_LATE_NS:
        note = f"The 99th percentile of a link's lateness was {late_ns / 1e6:.1f} ms."
        measures = {name: Measure(None, one.samples, note) for name, one in measures.items()}
    incasts = [(f"{setup.workers} workers", measured.incast)]
    incasts.append((f"{setup.deep_workers} workers", measured.deep))
    grids = [_incast_grid(title, incast, late_ns) for title, incast in incasts]
    grids += [_training_grid(measured, setup)]
    return Outcome(
        measures,
        {"dlcp-completion": completion_curves(incasts), "dlcp-training": accuracy_curves(measured)},
        captions("systems/dlcp"),
        grids,
    )


def incast_measures(measured: Measurements) -> dict[str, Measure]:
    """Return the measures of incasts."""
    few, deep = measured.incast, measured.deep
    whole, compressed = measured.whole
    bounded = transports.bounded_loss(1, ideas=1).name
    single_path, sprayed = transports.bounded_loss(1, ideas=2).name, _DLCP
    return {
        "tail_saved": _saved(few, transports.DCTCP.name, _DLCP, _tail_s),
        "deep_tail_saved": _saved(deep, transports.DCTCP.name, _DLCP, _tail_s),
        "short_timeout_tail_saved": _saved(deep, transports.SHORT_TIMEOUT.name, _DLCP, _tail_s),
        "deep_round_tail_saved": _saved(deep, transports.DCTCP.name, _DLCP, _round_tail_s),
        "mean_saved": _saved(few, transports.DCTCP.name, _DLCP, _mean_s),
        "compressed_tail": Measure(
            compressed.tail_s / whole.tail_s, note=_compression_note(measured)
        ),
        "bounded_loss_gain": _ratio(few, transports.DCTCP.name, bounded, _tail_s),
        "spraying_gain": _ratio(measured.paths, single_path, sprayed, _round_tail_s),
        "loss_gain": _ratio(few, _LOSSLESS, _DLCP, _tail_s),
    }


def _compression_note(measured: Measurements) -> str:
    """Return the tails of flows and of rounds with whole and with compressed gradients."""
    tails = [
        f"{1e3 * times.tail_s:.0f} ms for flows and {1e3 * times.round_tail_s:.0f} ms for rounds"
        for times in measured.whole
    ]
    return f"The 99th percentiles are {tails[0]} with all bytes, {tails[1]} with 1/16."


def training_measures(measured: Measurements, setup: Setup) -> dict[str, Measure]:
    """Return the measures of trainings."""
    server, ring = measured.server, measured.ring
    speedup = _speedup(server[transports.PRIORITY_TCP.name], server[_DLCP])
    ring_speedup = _speedup(ring[transports.CUBIC.name], ring[_DLCP])
    tcp = (transports.CUBIC, transports.DCTCP, transports.SHORT_TIMEOUT, transports.PRIORITY_TCP)
    fastest = min((server[one.name] for one in tcp), key=lambda one: np.mean(one.iterations_s))
    bounded = server[transports.bounded_loss(1, ideas=1).name]
    lossless = measured.accuracy[0]
    changes = [
        100 * (lossy.accuracies[-1] - base.accuracies[-1])
        for lossy, base in zip(measured.accuracy[setup.loss_percent], lossless, strict=True)
    ]
    most = measured.accuracy[setup.most_loss_percent]
    return {
        "server_speedup": speedup,
        "server_gain": speedup.mapped(lambda ratio: 100 * (ratio - 1)),
        "ring_speedup": ring_speedup,
        "server_over_ring": Measure((speedup.value or 0.0) / (ring_speedup.value or 1.0)),
        "fastest_tcp_speedup": _speedup(fastest, server[_DLCP]),
        "priority_gain": _speedup(bounded, server[_DLCP]),
        "accuracy_change": Measure(float(np.mean(changes)), tuple(changes)),
        "iterations_at_most_loss": _iteration_ratio(most, lossless, setup.target_accuracy),
    }


def _ratio(incasts: Incasts, base: str, other: str, statistic: Statistic) -> Measure:
    """Return the ratio of a statistic of all repeats; its samples are the repeats' ratios."""
    pairs = zip(incasts[base], incasts[other], strict=True)
    samples = tuple(statistic(times) / statistic(others) for times, others in pairs)
    whole = statistic(pooled(incasts[base])) / statistic(pooled(incasts[other]))
    return Measure(whole, samples)


def _saved(incasts: Incasts, base: str, other: str, statistic: Statistic) -> Measure:
    """Return by how many percent a statistic is smaller."""
    return _ratio(incasts, other, base, statistic).mapped(lambda ratio: 100 * (1 - ratio))


def _speedup(base: Progress, other: Progress) -> Measure:
    """Return the ratio of mean times of an iteration; its samples are thirds of the trainings."""
    thirds = zip(
        np.array_split(base.iterations_s, 3), np.array_split(other.iterations_s, 3), strict=True
    )
    samples = tuple(float(np.mean(one) / np.mean(two)) for one, two in thirds)
    return Measure(float(np.mean(base.iterations_s) / np.mean(other.iterations_s)), samples)


def _iteration_ratio(
    others: Sequence[Progress], bases: Sequence[Progress], accuracy: float
) -> Measure:
    """Return the ratio of iterations to an accuracy; invalid if one never reached it."""
    counts = [
        (other.iterations_to(accuracy), base.iterations_to(accuracy))
        for other, base in zip(others, bases, strict=True)
    ]
    samples = tuple(other / base for other, base in counts if other and base)
    if len(samples) < len(counts):
        return Measure(None, samples, f"An accuracy of {accuracy:.0%} was not always reached.")
    return Measure(float(np.mean(samples)), samples)


def _incast_grid(title: str, incasts: Incasts, late_ns: int) -> Grid:
    rows = []
    for name, repeats in incasts.items():
        times = pooled(repeats)
        rows.append(
            (
                name,
                f"{len(times.flows_s)} / {len(times.rounds_s)}",
                *_ms(times.mean_s, times.tail_s),
                *_ms(float(np.mean(times.rounds_s)), times.round_tail_s),
                formatting.percentage(float(np.mean(times.lost_shares))),
                formatting.data_size(times.bytes / len(times.rounds_s)),
            )
        )
    return grid(
        "systems/dlcp/incast", rows, name=f"incast-{title}", title=title, late_ms=late_ns / 1e6
    )


def _training_grid(measured: Measurements, setup: Setup) -> Grid:
    rows = [_training_row("server", name, one) for name, one in measured.server.items()]
    rows += [
        _training_row("server", f"{_DLCP}, p = {percent} %", one)
        for percent, trainings in measured.accuracy.items()
        for one in trainings
        if percent != setup.loss_percent or one is not trainings[0]
    ]
    rows += [_training_row("ring", name, one) for name, one in measured.ring.items()]
    return grid("systems/dlcp/training", rows)


def _training_row(kind: str, name: str, training: Progress) -> tuple[str, ...]:
    times = training.iterations_s
    mean_s = float(np.mean(times))
    return (
        kind,
        name,
        str(len(times)),
        *_ms(mean_s, float(np.percentile(times, 99))),
        f"{1 / mean_s:.2f}",
        formatting.percentage(float(np.mean(training.lost_shares))),
        formatting.percentage(training.accuracies[-1]),
    )


def _ms(*values: float) -> Iterable[str]:
    return (f"{1e3 * value:.1f}" for value in values)


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
    chosen = [transports.CUBIC.name, transports.PRIORITY_TCP.name, _DLCP]
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
