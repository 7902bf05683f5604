"""The best of several measurements on a machine that has other work."""

from collections.abc import Callable


def least(measure: Callable[[], float], enough: float, attempts: int = 5) -> float:
    """Measure a duration until it is short enough.

    Other work delays packets and processes and never speeds them up, so the least of several
    durations is the fairest one. What is too slow by itself is so in every attempt.

    Args:
        measure: Returns a duration, in any unit.
        enough: The longest duration after which no other attempt is made.
        attempts: How often to measure at most.

    Returns:
        The least duration.
    """
    best = measure()
    for _ in range(attempts - 1):
        if best <= enough:
            break
        best = min(best, measure())
    return best
