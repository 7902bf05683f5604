"""Distribution of the time until the last cross-connect of a command has light."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric.core.ocs import Ocs, RandomTime

_TAIL: Final = 0.001
"""Probability of a time below the least, and of one above the most."""
_DRAWS: Final = 10_000
_Times = NDArray[np.float64]


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
    its own, so that the switch has no conflict to resolve. Random times are drawn.

    Example:
        >>> from moefabric.core.ocs import DeviceProfile, SettleTime
        >>> settle = SettleTime(jitter_ns=2_000_000)
        >>> last = last_light(Ocs("ocs0", 4, 25_000_000, profile=DeviceProfile(settle=settle)), 1)
        >>> round(last.mean_ns / 1e6, 1), round(last.most_ns / 1e6, 1)
        (25.7, 27.0)
    """
    settle, link_up, connects = ocs.profile.settle, ocs.link_up, max(1, 2 * circuits)
    fixed_ns = ocs.settle_ns + settle.bulk_ns * (connects > 1)
    generator = np.random.default_rng(0)

    def drawn(time: RandomTime) -> _Times:
        return _random_part(time, generator, _DRAWS if settle.jitter_ns or link_up.jitter_ns else 1)

    shared = drawn(settle)
    last_lit = last_link = last = np.zeros_like(shared)
    for k in range(connects):
        random = drawn(settle) if settle.jitter_per == "connection" else shared
        light = np.maximum(0, fixed_ns + k * settle.per_connection_ns + random)
        link = np.maximum(0, link_up.fixed_ns + drawn(link_up))
        last = np.maximum(last, light + link)
        last_lit, last_link = np.maximum(last_lit, light), np.maximum(last_link, link)
    times = last_lit + last_link if settle.lit == "together" else last
    least, most = np.quantile(times, (_TAIL, 1 - _TAIL)).tolist()
    return LastLight(float(times.mean()), float(times.std()), least, most)


def _random_part(time: RandomTime, generator: np.random.Generator, count: int) -> _Times:
    """Return draws of the random part, in ns."""
    width = time.jitter_ns
    match time.distribution if width else None:
        case "uniform":
            return generator.uniform(-width, width, count)
        case "normal":
            return generator.normal(0, width, count)
        case "exponential":
            return generator.exponential(width, count)
        case None:
            return np.zeros(count)
