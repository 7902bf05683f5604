"""Iteration time and price of networks as the replicas of a job grow (section D.5 of the paper)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from moefabric.core.network_cost import paper_network_usd
from moefabric.paper.evaluation import Evaluation
from moefabric.paper.job import GPUS_PER_SERVER
from moefabric.paper.measures import efficiency
from moefabric.paper.network import NETWORKS
from moefabric.report.small_charts import Axis, Chart, Curve, charts_picture

JOB: Final = "mixtral-8x7b"
RATE_BPS: Final = 400e9
REPLICAS: Final = (1, 2, 4, 8, 16, 32, 64)
"""Factors by which the replicas of the paper's job of 1,024 GPUs are multiplied. The paper ends at
32."""
BASE: Final = "fat-tree"
EFFICIENCY: Final = 2.0
"""The paper's performance per dollar at 32,768 GPUs, relative to the fat-tree's: "about 2"."""
_COLOURS: Final = {BASE: "7", "rail-optimised": "0", "mixnet": "4", "mixnet-joint": "3"}


@dataclass(frozen=True)
class GrowthPoint:
    """A job on a network.

    Attributes:
        gpus: GPUs of the job.
        iteration_s: Duration of an iteration.
        relative: The same, relative to that of the smallest job on the fat-tree.
        million_usd: Price of the network.
        efficiency: Performance per dollar, relative to the fat-tree's.
    """

    gpus: int
    iteration_s: float
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
                iteration.seconds,
                iteration.seconds / base.seconds,
                paper_network_usd(cost_model, servers, RATE_BPS) / 1e6,
                efficiency(evaluation, JOB, network, BASE, RATE_BPS, replicas),
            )
        )
    return points


def growth_picture(evaluation: Evaluation) -> str:
    """Draw iteration time, price, and performance per dollar over the number of GPUs."""
    across = Axis(900, 72_000, {1024: "1k", 4096: "4k", 16_384: "16k", 65_536: "64k"}, True, "GPUs")
    by_network = {network: growth_points(evaluation, network) for network in _COLOURS}

    def chart(title: str, up: Axis, value: Callable[[GrowthPoint], float]) -> Chart:
        curves = [
            Curve(
                _COLOURS[network],
                [
                    (
                        point.gpus,
                        value(point),
                        f"{network}, {point.gpus:,} GPUs: {value(point):.4g}",
                    )
                    for point in points
                ],
            )
            for network, points in by_network.items()
        ]
        return Chart(title, across, up, curves, None)

    relative = Axis(0.95, 1.05, {0.95: "0.95", 1.0: "1", 1.05: "1.05"})
    price = Axis(3, 1000, {3: "3", 10: "10", 30: "30", 100: "100", 300: "300", 1000: "1,000"}, True)
    share = Axis(0, 2.5, {0: "0", 0.5: "0.5", 1: "1", 1.5: "1.5", EFFICIENCY: "2", 2.5: "2.5"})
    charts = [
        chart("Iteration, relative", relative, lambda point: point.relative),
        chart("Network, million USD", price, lambda point: point.million_usd),
        chart("Performance per dollar, relative", share, lambda point: point.efficiency),
    ]
    title = (
        "Mixtral 8x7B at 400 Gb/s from 1,024 to 65,536 GPUs; iteration of 1,024 on the fat-tree = 1"
    )
    return charts_picture(
        title, charts, [(f"t{colour}", name) for name, colour in _COLOURS.items()]
    )
