"""Time, as an experiment waits for it."""

import time
from typing import Protocol

from moefabric.units import NS_PER_S


class Clock(Protocol):
    """Time, and waiting for it."""

    def now_ns(self) -> int: ...
    def sleep_until(self, instant_ns: int) -> None: ...


class MonotonicClock:
    """This machine's CLOCK_MONOTONIC, which the agents and the kernel's dark time use too."""

    def now_ns(self) -> int:
        """Nanoseconds."""
        return time.monotonic_ns()

    def sleep_until(self, instant_ns: int) -> None:
        """Return at `instant_ns`, or at once where it has passed."""
        if (left := instant_ns - time.monotonic_ns()) > 0:
            time.sleep(left / NS_PER_S)
