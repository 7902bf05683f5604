"""Calibration: the speed of each model's GPUs, from the published fat-tree column alone.

The paper doesn't tell how fast its GPUs compute. In its fat-tree column the iteration is compute plus all-to-all, and only the latter falls with the NIC's
rate: how the column falls is how fast the GPUs are. Two numbers a model are taken from it, the GPUs' utilisation and the unit of the normalised
time; no other column is looked at.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, log
from statistics import mean
from typing import Final

from moefabric.paper.iteration import iteration
from moefabric.paper.job import Job
from moefabric.paper.network import NETWORKS

COLUMN: Final = "fat-tree"


@dataclass(frozen=True)
class Calibrated:
    """A job whose GPUs have the speed that the column tells; `unit_s` is one unit of the published normalised time. `error` is the worst misfit."""

    job: Job
    unit_s: float
    error: float


def calibrated(job: Job, column: Mapping[float, float]) -> Calibrated:
    """The job at the utilisation with which its fat-tree iterations follow `column` (NIC rate to normalised time) most closely.

    Least squares of the logarithms, by golden section. The utilisation is against the stated GPU and may come out above 1: it is how fast the
    paper's simulated GPUs computed relative to the FLOPs that we count.
    """
    parts = {rate: iteration(job, NETWORKS[COLUMN], rate) for rate in column}

    def offsets(faster: float) -> list[float]:
        """log(ours / published) at each rate, were the GPUs so much faster."""
        return [
            log((part.seconds - part.compute_s + part.compute_s / faster) / column[rate])
            for rate, part in parts.items()
        ]

    def misfit(power: float) -> float:
        off = offsets(exp(power))
        return sum((each - mean(off)) ** 2 for each in off)

    faster = exp(_least(misfit, log(1e-3), log(1e3)))
    off = offsets(faster)
    fitted = job.computing(job.training.utilisation * faster)
    return Calibrated(fitted, exp(mean(off)), max(abs(exp(each - mean(off)) - 1) for each in off))


def _least(of: Callable[[float], float], low: float, high: float) -> float:
    """Where a function of one valley is least, to a millionth of the span."""
    golden = (5**0.5 - 1) / 2
    end = 1e-6 * (high - low)
    while high - low > end:
        left, right = high - golden * (high - low), low + golden * (high - low)
        if of(left) < of(right):
            high = right
        else:
            low = left
    return (low + high) / 2
