"""Repeated measurements on a machine that has other work."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def measurements(
    measure: Callable[[], T], is_good: Callable[[T], bool], attempts: int = 5
) -> list[T]:
    """Measure until a measurement is good.

    Other work delays packets and processes and never speeds them up, so the best of several
    measurements is the fairest one. What is wrong by itself is so in every attempt.

    Args:
        measure: Returns a measurement.
        is_good: Whether another attempt is needless.
        attempts: How often to measure at most.

    Returns:
        All measurements; only the last one may be good.
    """
    measured = [measure()]
    while not is_good(measured[-1]) and len(measured) < attempts:
        measured.append(measure())
    return measured
