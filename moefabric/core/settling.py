"""Distribution of the time until the last cross-connect of a command has light."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import erf, log
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric.core.ocs import Ocs, SettleTime

_TAIL: Final = 0.001
"""Probability of a time below the least, and of one above the most."""
_STEPS: Final = 4001


@dataclass(frozen=True)
class LastLight:
    """Times until all cross-connects of a command have light, in ns.

    Attributes:
        mean_ns: The mean.
        deviation_ns: The standard deviation.
        least_ns: One time in a thousand is shorter.
        most_ns: One time in a thousand is longer.
    """

    mean_ns: float
    deviation_ns: float
    least_ns: float
    most_ns: float


@lru_cache
def last_light(ocs: Ocs, circuits: int) -> LastLight:
    """Return how long a switch takes until new circuits have working links, by its profile.

    A circuit is two cross-connects. Controllers remove cross-connects in the way by a command of
    its own, so that the switch has no conflict to resolve.

    Example:
        >>> from moefabric.core.ocs import DeviceProfile
        >>> settle = SettleTime(jitter_ns=2_000_000)
        >>> last = last_light(Ocs("ocs0", 4, 25_000_000, profile=DeviceProfile(settle=settle)), 1)
        >>> round(last.mean_ns / 1e6, 2), round(last.most_ns / 1e6, 2)
        (25.67, 27.0)
    """
    settle, connects = ocs.profile.settle, max(1, 2 * circuits)
    shift = ocs.settle_ns + ocs.link_up_ns + settle.bulk_ns * (connects > 1)
    later = settle.per_connection_ns * np.arange(connects)
    if not settle.jitter_ns:
        last = float(shift + later[-1])
        return LastLight(last, 0.0, last, last)
    draws = later if settle.jitter_per == "connection" else later[-1:]
    width = settle.jitter_ns * max(6.0, log(connects / _TAIL) + 1)
    times = np.linspace(later[-1] - width, later[-1] + width, _STEPS)
    below = np.prod([_below(settle, times - draw) for draw in draws], axis=0)
    masses, centers = np.diff(below), (times[1:] + times[:-1]) / 2
    mean = float(masses @ centers / masses.sum())
    variance = float(masses @ (centers - mean) ** 2 / masses.sum())
    least, most = np.interp((_TAIL, 1 - _TAIL), below, times).tolist()
    light = LastLight(mean, variance**0.5, least, most)
    return replace(
        light, mean_ns=mean + shift, least_ns=max(0.0, least + shift), most_ns=most + shift
    )


def _below(settle: SettleTime, offsets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability that the random part is at most each of these."""
    width = settle.jitter_ns
    match settle.distribution:
        case "uniform":
            return np.clip((offsets + width) / (2 * width), 0.0, 1.0)
        case "normal":
            return np.array([(1 + erf(offset / width / 2**0.5)) / 2 for offset in offsets.tolist()])
        case "exponential":
            return 1 - np.exp(-np.maximum(offsets, 0.0) / width)
