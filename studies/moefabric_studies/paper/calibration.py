"""Calibration: GPU speed of each model from the published fat-tree column.

The paper doesn't say how fast its GPUs compute. In its fat-tree column an iteration is compute plus
all-to-all, and only the all-to-all becomes shorter with the NIC rate. The slope of the column
therefore yields the GPU speed. Two numbers per model are calibrated, the GPU utilisation and the
unit of the normalised time. No other column is used.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, log
from statistics import mean
from typing import Final

from moefabric_studies.paper.iteration import compose_iteration
from moefabric_studies.paper.job import PaperJob
from moefabric_studies.paper.network import NETWORKS, PaperNetwork

CALIBRATION_NETWORK: Final = "fat-tree"


@dataclass(frozen=True)
class CalibratedJob:
    """A job with calibrated GPU speed.

    Attributes:
        unit_s: one unit of the published normalised time, in seconds.
        error: largest relative deviation from the column.
    """

    job: PaperJob
    unit_s: float
    error: float


def calibrate(
    job: PaperJob,
    column: Mapping[float, float],
    network: PaperNetwork = NETWORKS[CALIBRATION_NETWORK],
) -> CalibratedJob:
    """Return the job with the GPU utilisation that fits a column best.

    The fit is by least squares of the logarithms, with a golden-section search. The utilisation may
    exceed 1: it compares the speed of the paper's simulated GPUs with the FLOPs counted here.

    Args:
        column: published normalised iteration times by NIC rate in bits per second.
        network: the column's network.
    """
    all_to_alls = {rate: network.all_to_all(job, rate) for rate in column}

    def at_speed(speed_up: float) -> PaperJob:
        return job.with_utilisation(job.training.utilisation * speed_up)

    def log_ratios(speed_up: float) -> list[float]:
        """Return log(predicted / published) for each rate, with GPUs faster by `speed_up`."""
        faster = at_speed(speed_up)
        iterations = {
            rate: compose_iteration(faster, all_to_all, network.eps_bytes_s(rate))
            for rate, all_to_all in all_to_alls.items()
        }
        return [log(part.seconds / column[rate]) for rate, part in iterations.items()]

    def squared_error(log_speed_up: float) -> float:
        ratios = log_ratios(exp(log_speed_up))
        return sum((ratio - mean(ratios)) ** 2 for ratio in ratios)

    speed_up = exp(_minimise(squared_error, log(1e-3), log(1e3)))
    ratios = log_ratios(speed_up)
    error = max(abs(exp(ratio - mean(ratios)) - 1) for ratio in ratios)
    return CalibratedJob(at_speed(speed_up), exp(mean(ratios)), error)


def _minimise(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the minimum of a unimodal function, to a millionth of the interval."""
    golden = (5**0.5 - 1) / 2
    tolerance = 1e-6 * (high - low)
    while high - low > tolerance:
        left, right = high - golden * (high - low), low + golden * (high - low)
        if function(left) < function(right):
            high = right
        else:
            low = left
    return (low + high) / 2
