"""The paper's networks in the plane of cost and performance (figures 12 and 13).

Where the paper draws an iteration and prints no value, the prediction stands alone: it isn't
judged, and not counted with the rows.
"""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Final, NamedTuple

from moefabric import rate_text
from moefabric.api.charts import MISSING, Axis, Dot, Mark, Panel, curve, document_picture, plot
from moefabric.api.networks import paper_network_usd
from moefabric_studies.grids import Grid, grid
from moefabric_studies.paper.evaluation import RATES, Evaluation
from moefabric_studies.paper.measures import copper_usd

_OVERSUBSCRIBED: Final = "oversubscribed"
_COLOURS: Final = {
    "fat-tree": 7, "rail-optimised": 0, _OVERSUBSCRIBED: 1, "topoopt": 5, "mixnet": 4,
}  # fmt: skip
"""Colour of each of the paper's networks."""


class NetworkPoint(NamedTuple):
    """A network at a NIC rate: its price, and a job's iteration in the unit of the figures."""

    million_usd: float
    time: float
    network: str
    rate_bps: float

    @property
    def drawn(self) -> tuple[float, float, str]:
        """Price, performance and tooltip."""
        rate, performance = rate_text(self.rate_bps), 1 / self.time
        text = f"{self.network} at {rate}: {self.million_usd:.3g} million USD, {performance:.2f}"
        return self.million_usd, performance, text


def predicted_points(evaluation: Evaluation, job: str) -> list[NetworkPoint]:
    """Return a job's points as predicted.

    The unit of a model without published figures is its fastest iteration.
    """
    seconds = {
        (network, rate): evaluation.iteration(job, network, rate).seconds
        for network, rate in product(_COLOURS, RATES)
    }
    calibrated = evaluation.calibrations.get(job)
    unit_s = calibrated.unit_s if calibrated else min(seconds.values())
    times = {key: one / unit_s for key, one in seconds.items()}
    return list(_points(evaluation, job, times))


def published_points(evaluation: Evaluation, job: str) -> list[NetworkPoint]:
    """Return a job's points by the published figures, none of them on the 3:1 tree."""
    times = {(n, rate): time for (j, rate, n), time in evaluation.published.items() if j == job}
    return list(_points(evaluation, job, times))


def _points(
    evaluation: Evaluation, job: str, times: dict[tuple[str, float], float]
) -> Iterator[NetworkPoint]:
    for (network, rate), time in times.items():
        yield NetworkPoint(evaluation.usd(job, network, rate) / 1e6, time, network, rate)


def front(points: Iterable[NetworkPoint]) -> list[NetworkPoint]:
    """Return the points to which no other is both as cheap and as fast, the cheapest first."""
    best: list[NetworkPoint] = []
    for point in sorted(points):
        if not best or point.time < best[-1].time * (1 - 1e-9):
            best.append(point)
    return best


def _front_text(points: Iterable[NetworkPoint]) -> str:
    rates: dict[str, list[str]] = {}
    for point in sorted(front(points), key=lambda point: list(_COLOURS).index(point.network)):
        rates.setdefault(point.network, []).append(f"{point.rate_bps / 1e9:g}")
    return ", ".join(f"{network} {'/'.join(numbers)}" for network, numbers in rates.items())


def front_grid(evaluation: Evaluation) -> Grid:
    """Return the networks that are best for their price, predicted and published."""
    rows = (
        (job, _front_text(predicted_points(evaluation, job)), _front_text(published) or MISSING)
        for job in evaluation.jobs
        for published in [published_points(evaluation, job)]
    )
    return grid("paper/front", rows)


def unpublished_grid(evaluation: Evaluation) -> Grid:
    """Return the iterations that the paper draws without values, by NIC rate."""
    rows = []
    for job in evaluation.jobs:
        points = predicted_points(evaluation, job)
        for network in (_OVERSUBSCRIBED,) if job in evaluation.calibrations else _COLOURS:
            times = (f"{point.time:.2f}" for point in points if point.network == network)
            rows.append((job, network, *times))
    return grid("paper/unpublished", rows, header=("model", "network", *map(rate_text, RATES)))


def price_grid(_: Evaluation) -> Grid:
    """Return the prices of 4,096 GPUs with optics and with copper to the leaves (figure 24)."""
    rows = (
        (links, name, *(f"{usd(name, 512, rate) / 1e6:.2f}" for rate in RATES))
        for links, usd in (("optics", paper_network_usd), ("copper to the leaves", copper_usd))
        for name in _COLOURS
    )
    saved = {
        name.replace("-", "_"): f"{100 * (1 - copper_usd(name, 1, 4e11) / optics_usd):.0f}"
        for name in ("fat-tree", "mixnet")
        for optics_usd in [paper_network_usd(name, 1, 4e11)]
    }
    header = ("links", "network", *map(rate_text, RATES))
    return grid("paper/prices", rows, header=header, **saved)


def cost_performance_picture(evaluation: Evaluation) -> str:
    """Draw performance over the price of the network, with the published points as large dots."""
    prices = {float(n): f"{n}" for n in (1, 2, 5, 10, 20)}
    across = Axis(0.9, 22, prices, "network, million USD", logarithmic=True)
    up, panels = Axis.numbers(0, 1.1, most=6), list[Panel]()
    for job in evaluation.jobs:
        points, marks = predicted_points(evaluation, job), list[Iterable[Mark]]()
        for network, colour in _COLOURS.items():
            mine = (p.drawn for p in published_points(evaluation, job) if p.network == network)
            marks.append([Dot(x, y, f"t{colour}", text, 5.0) for x, y, text in mine])
            marks.append(curve(colour, [p.drawn for p in points if p.network == network]))
        panels.append(plot(job, across, up, marks))
    title = (
        "Performance (1 = fastest published) against cost, 100 to 800 Gb/s; large dots: published"
    )
    legend = [(f"t{colour}", name) for name, colour in _COLOURS.items()]
    return document_picture(title, panels, columns=3, legend=legend)
