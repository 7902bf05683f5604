"""Iteration time and price of networks as the replicas of a job grow (section D.5 of the paper)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from moefabric.api.charts import Axis, Panel, curve, document_picture, plot
from moefabric.api.networks import paper_network_usd
from moefabric_studies.paper.evaluation import Evaluation
from moefabric_studies.paper.job import GPUS_PER_SERVER
from moefabric_studies.paper.measures import efficiency
from moefabric_studies.paper.network import NETWORKS

JOB: Final = "mixtral-8x7b"
RATE_BPS: Final = 400e9
REPLICAS: Final = (1, 2, 4, 8, 16, 32, 64)
"""Factors by which the replicas of the paper's job of 1,024 GPUs are multiplied. The paper ends at
32."""
BASE: Final = "fat-tree"
_COLOURS: Final = {BASE: 7, "rail-optimised": 0, "mixnet": 4, "mixnet-joint": 3}


@dataclass(frozen=True)
class GrowthPoint:
    """A job on a network.

    Attributes:
        gpus: GPUs of the job.
        relative: Duration of an iteration, relative to that of the smallest job on the fat-tree.
        million_usd: Price of the network.
        efficiency: Performance per dollar, relative to the fat-tree's.
    """

    gpus: int
    relative: float
    million_usd: float
    efficiency: float


def growth_points(evaluation: Evaluation, network: str) -> list[GrowthPoint]:
    """Return the points of a network, from 1,024 to 65,536 GPUs."""
    gpus, base = evaluation.jobs[JOB].gpus, evaluation.iteration(JOB, BASE, RATE_BPS)
    cost_model, points = NETWORKS[network].cost_model, []
    for replicas in REPLICAS:
        iteration = evaluation.iteration(JOB, network, RATE_BPS, replicas=replicas)
        servers = gpus * replicas // GPUS_PER_SERVER
        points.append(
            GrowthPoint(
                gpus * replicas,
                iteration.seconds / base.seconds,
                paper_network_usd(cost_model, servers, RATE_BPS) / 1e6,
                efficiency(evaluation, JOB, network, BASE, RATE_BPS, replicas),
            )
        )
    return points


def growth_picture(evaluation: Evaluation) -> str:
    """Draw iteration time, price, and performance per dollar over the number of GPUs."""
    counts = {1024.0: "1k", 4096.0: "4k", 16_384.0: "16k", 65_536.0: "64k"}
    across = Axis(900, 72_000, counts, "GPUs", logarithmic=True)
    by_network = {network: growth_points(evaluation, network) for network in _COLOURS}

    def panel(heading: str, up: Axis, value: Callable[[GrowthPoint], float]) -> Panel:
        curves = (
            curve(
                _COLOURS[network],
                [(p.gpus, value(p), f"{network}, {p.gpus:,} GPUs: {value(p):.4g}") for p in points],
            )
            for network, points in by_network.items()
        )
        return plot(heading, across, up, curves)

    prices = {float(n): f"{n:,}" for n in (3, 10, 30, 100, 300, 1000)}
    panels = [
        panel("Iteration, relative", Axis.numbers(0.95, 1.05, most=2), lambda p: p.relative),
        panel(
            "Network, million USD", Axis(3, 1000, prices, logarithmic=True), lambda p: p.million_usd
        ),
        panel("Performance per dollar, relative", Axis.numbers(0, 2.5), lambda p: p.efficiency),
    ]
    title = (
        "Mixtral 8x7B at 400 Gb/s from 1,024 to 65,536 GPUs; iteration of 1,024 on the fat-tree = 1"
    )
    legend = [(f"t{colour}", name) for name, colour in _COLOURS.items()]
    return document_picture(title, panels, columns=3, legend=legend)
