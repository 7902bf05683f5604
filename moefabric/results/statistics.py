"""Meaning of an experiment's figures: one statistic for each word.

Tables, pages, JSON, progress lines and predictions take their figures from here, and their
glossaries the words.
"""

import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Final, TypeVar

Key = TypeVar("Key")

MEANINGS: Final[Mapping[str, str]] = {
    "iteration": (
        "One forward and one backward pass over all layers: computation and exposed "
        "communication. The figure is the median over the iterations of all jobs."
    ),
    "exposed comm": (
        "Exposed communication: time in which servers wait for the network or for light and "
        "compute nothing; the median over the iterations, and its share of the iteration."
    ),
    "all-to-all": (
        "Completion time from the first byte sent to the last byte received: the median over "
        "all dispatches and combines of all regions."
    ),
    "vs EPS": (
        "Completion time of an all-to-all relative to that of the same all-to-all of the "
        "baseline: the median of these ratios, not the ratio of two medians. The baseline is "
        "the fabric with policy eps, whose NICs all end on packet switches, and with the least "
        "oversubscription. Below 1x is faster."
    ),
}
"""Meaning of each figure by its heading in tables."""


def median_of(values: Iterable[float | None]) -> float | None:
    """Return the median of the finite values: the statistic of iterations and of all-to-alls."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return median(finite) if finite else None


def median_ratio(times: Mapping[Key, float], base: Mapping[Key, float]) -> float | None:
    """Return the statistic `vs EPS`: the median of the ratios of times with the same key.

    Args:
        times: Times of a fabric's all-to-alls.
        base: Times of the baseline's. Times of 0 have no ratio.
    """
    return median_of(time / base[key] for key, time in times.items() if base.get(key))
