"""Time, as an experiment waits for it."""

import time
from typing import Final, Protocol

from moefabric.units import NS_PER_S

LONGEST_WAIT_NS: Final = 250_000_000
"""So long connections rest, and control planes end what they have begun, before the next operation."""


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


class SkippingClock:
    """A clock on which long waits have passed in full, though all but `LONGEST_WAIT_NS` of each is skipped.

    Nothing is skipped while it is `held`: packets, light and whatever else keeps the wall's time may be on their way then.
    """

    def __init__(self, wall: Clock) -> None:
        self._wall = wall
        self.skipped_ns = 0
        """How far this clock is ahead of the wall's."""
        self.held = 0
        """How many have asked that nothing be skipped."""
        self._skips: list[tuple[int, int]] = []

    def now_ns(self) -> int:
        """The wall's time, and what was skipped."""
        return self._wall.now_ns() + self.skipped_ns

    def sleep_until(self, instant_ns: int) -> None:
        """Return when this clock shows `instant_ns`."""
        self.skip_towards(instant_ns)
        self._wall.sleep_until(instant_ns - self.skipped_ns)

    def skip_towards(self, instant_ns: int) -> None:
        """Be at most `LONGEST_WAIT_NS` before `instant_ns`, unless held."""
        now = self.now_ns()
        if not self.held and instant_ns - now > LONGEST_WAIT_NS:
            self._skips.append((now - self.skipped_ns, instant_ns - now - LONGEST_WAIT_NS))
            self.skipped_ns += self._skips[-1][1]

    def wall_ns(self, instant_ns: int) -> int:
        """When that is on the wall's clock, as far as was skipped till now."""
        return instant_ns - self.skipped_ns

    def was_ns(self, wall_ns: int) -> int:
        """What this clock showed at an instant of the wall's that has passed."""
        return wall_ns + sum(skipped for at, skipped in self._skips if at < wall_ns)

    def wall_was_ns(self, instant_ns: int) -> int:
        """When this clock showed an instant that has passed, on the wall's; when it was skipped, if it was."""
        ahead = 0
        for at, skipped in self._skips:
            if instant_ns <= at + ahead:
                break
            ahead = min(ahead + skipped, instant_ns - at)
        return instant_ns - ahead
