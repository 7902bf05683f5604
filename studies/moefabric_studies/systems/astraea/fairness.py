"""Fairness, convergence and steadiness of flows from their rates over time; pure."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Rates = NDArray[np.float64]

LATE_S: Final = 5.0
"""The end of a run, in which flows are compared."""
STEADY_BIN_S: Final = 0.5
"""Time over which throughput is averaged before its deviation is taken."""
WINDOW_S: Final = 1.0
"""Time over which throughput has to be near the fair share, for a flow to have converged."""
NEAR: Final = 0.15


def jain(rates: Rates) -> float:
    """Return Jain's index of rates: 1 if they are equal, 1/n if one of n has everything."""
    total = float(np.sum(rates))
    return total**2 / (len(rates) * float(np.sum(rates**2))) if total else 0.0


def late_rates(rates: Rates, bin_s: float) -> Rates:
    """Return each flow's mean rate at the end of a run.

    Args:
        rates: [flows, bins].
        bin_s: Length of a bin in s.
    """
    means: Rates = rates[:, -round(LATE_S / bin_s) :].mean(axis=1)
    return means


def convergence_s(rates: Rates, bin_s: float, start_s: float, share: float) -> float | None:
    """Return how long after its start a flow first has its share for a second, within 15 %.

    Args:
        rates: [bins]: The flow's rates.
        bin_s: Length of a bin in s.
        start_s: The flow's start in s.
        share: The fair share, in the rates' unit.

    Returns:
        The end of that second, in s after the start; None if there is none.
    """
    width, first = round(WINDOW_S / bin_s), round(start_s / bin_s)
    flow_rates = rates[first:]
    if len(flow_rates) < width:
        return None
    means = np.convolve(flow_rates, np.full(width, 1 / width), mode="valid")
    near = np.flatnonzero(np.abs(means - share) <= NEAR * share)
    return float((near[0] + width) * bin_s) if len(near) else None


def deviation(rates: Rates, bin_s: float) -> float:
    """Return the mean over flows of the standard deviation of their late rates.

    Args:
        rates: [flows, bins].
        bin_s: Length of a bin in s.
    """
    width = round(STEADY_BIN_S / bin_s)
    late = rates[:, -round(LATE_S / bin_s) :]
    means = late[:, : late.shape[1] // width * width].reshape(len(late), -1, width).mean(axis=2)
    return float(means.std(axis=1).mean())
