"""Figures of a fabric by name: columns of tables of runs and of predictions.

A time is in model seconds. A figure that a run or a prediction lacks is None.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from moefabric.report import formatting
from moefabric.report.summary import FabricSummary
from moefabric.runner.result_model import FabricPrediction

Text = Callable[[float | None], str]


@dataclass(frozen=True)
class Figure:
    """A figure of a fabric.

    Attributes:
        title: Its name in words.
        text: Format of its values.
        measured: Its value in a run.
        predicted: Its value in a prediction; None if predictions don't have it.
    """

    title: str
    text: Text
    measured: Callable[[FabricSummary], float | None]
    predicted: Callable[[FabricPrediction], float | None] | None = None


FIGURES: Final[Mapping[str, Figure]] = MappingProxyType(
    {
        "iteration_s": Figure(
            "Iteration time", formatting.seconds, lambda f: f.iteration_s, lambda p: p.iteration_s
        ),
        "predicted_iteration_s": Figure(
            "Iteration time, as predicted for a run",
            formatting.seconds,
            lambda f: f.predicted_iteration_s,
        ),
        "compute_s": Figure(
            "Computation", formatting.seconds, lambda f: f.compute_s, lambda p: p.compute_s
        ),
        "exposed_comm_s": Figure(
            "Exposed communication",
            formatting.seconds,
            lambda f: f.exposed_s,
            lambda p: p.exposed_comm_s,
        ),
        "all_to_all_s": Figure(
            "All-to-all time", formatting.seconds, lambda f: f.measured_s, lambda p: p.all_to_all_s
        ),
        "predicted_all_to_all_s": Figure(
            "All-to-all time, as predicted for a run", formatting.seconds, lambda f: f.predicted_s
        ),
        "error": Figure("Error of all-to-alls", formatting.deviation, lambda f: f.error),
        "vs_eps": Figure(
            "All-to-all time relative to EPS",
            formatting.ratio,
            lambda f: f.measured_ratio,
            lambda p: p.all_to_all_vs_eps,
        ),
        "predicted_vs_eps": Figure(
            "All-to-all time relative to EPS, as predicted for a run",
            formatting.ratio,
            lambda f: f.predicted_ratio,
        ),
        "optical_share": Figure(
            "Bytes by OCS",
            formatting.percentage,
            lambda f: f.optical_share,
            lambda p: p.light_share,
        ),
        "reconfigurations": Figure(
            "Reconfigurations",
            formatting.number,
            lambda f: len(f.result.reconfigurations),
            lambda p: p.reconfigurations,
        ),
        "reconfiguration_s": Figure(
            "Reconfiguration time", formatting.seconds, lambda f: f.total_s
        ),
        "dark_s": Figure("Dark time of an iteration", formatting.seconds, lambda f: f.dark_s),
        "network_usd": Figure(
            "Price of the network",
            formatting.usd,
            lambda f: f.result.cost.network_usd,
            lambda p: p.cost.network_usd,
        ),
        "performance_per_dollar": Figure(
            "Iterations per second and dollar",
            formatting.number,
            lambda f: f.result.cost.performance_per_dollar,
            lambda p: p.cost.performance_per_dollar,
        ),
    }
)
"""Figures by the names of their columns."""
