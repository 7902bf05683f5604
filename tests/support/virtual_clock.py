"""A clock for in-memory devices."""

from dataclasses import dataclass


@dataclass
class VirtualClock:
    """A monotonic clock that advances only by `wait_until`, so that waits take no real time."""

    seconds: float = 0.0

    def now_s(self) -> float:
        """Return the time so far."""
        return self.seconds

    def wait_until(self, instant_s: float) -> None:
        """Advance to an instant, unless it has passed."""
        self.seconds = max(self.seconds, instant_s)
