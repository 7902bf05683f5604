"""Lateness of a relay: how long after their time frames were passed on."""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

BUCKET_NS: Final = 10_000
_BUCKETS: Final = 10_000


@dataclass(frozen=True)
class Lateness:
    """Lateness of frames in nanoseconds.

    Attributes:
        frames: Number of frames.
        p50_ns: Median, rounded up to 10 µs.
        p99_ns: 99th percentile, rounded up to 10 µs.
        max_ns: The largest one.
    """

    frames: int = 0
    p50_ns: int = 0
    p99_ns: int = 0
    max_ns: int = 0


class LatenessHistogram:
    """Counts frames by their lateness, in steps of 10 µs up to 100 ms."""

    def __init__(self) -> None:
        """Start without frames."""
        self._counts = [0] * _BUCKETS
        self._max_ns = 0

    def add(self, late_ns: int) -> None:
        """Count a frame that was passed on late by this time."""
        self._counts[min(max(late_ns, 0) // BUCKET_NS, _BUCKETS - 1)] += 1
        self._max_ns = max(self._max_ns, late_ns)

    def summary(self) -> Lateness:
        """Return percentiles of all frames so far."""
        sums = list(accumulate(self._counts))
        frames = sums[-1]
        if not frames:
            return Lateness()
        buckets = (bisect_left(sums, share * frames) for share in (0.5, 0.99))
        p50_ns, p99_ns = (min((bucket + 1) * BUCKET_NS, self._max_ns) for bucket in buckets)
        return Lateness(frames, p50_ns, p99_ns, self._max_ns)
