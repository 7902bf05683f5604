"""Time, as it comes in by the door: the wall's, or one that passes when it is told to."""

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Seconds since some instant, and a way to let them pass."""

    def now_s(self) -> float:
        """Seconds since some instant."""

    def wait_until(self, instant_s: float) -> None:
        """Return once it is `instant_s`, or at once if that is over."""


class WallClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        """Seconds of CLOCK_MONOTONIC."""
        return time.monotonic()

    def wait_until(self, instant_s: float) -> None:
        """Sleep until then."""
        time.sleep(max(0.0, instant_s - self.now_s()))


@dataclass
class VirtualClock:
    """Time that passes only while someone waits: a settle of 25 ms costs a test nothing."""

    seconds: float = 0.0

    def now_s(self) -> float:
        """What has been waited for so far."""
        return self.seconds

    def wait_until(self, instant_s: float) -> None:
        """It is then."""
        self.seconds = max(self.seconds, instant_s)
