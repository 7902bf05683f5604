"""The clocks of a run."""

import time
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, Protocol

from moefabric.core.units import NS_PER_S

LONGEST_WAIT_NS: Final = 20_000_000
"""Part of a wait that is never skipped: connections become idle and controllers finish in it."""


class Clock(Protocol):
    """Time, and waiting for it."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds."""

    def sleep_until(self, instant_ns: int) -> None:
        """Return at `instant_ns`, or at once where it has passed."""


class MonotonicClock:
    """This machine's CLOCK_MONOTONIC, which the agents and the kernel's dark times use too."""

    def now_ns(self) -> int:
        """Return the time in nanoseconds."""
        return time.monotonic_ns()

    def sleep_until(self, instant_ns: int) -> None:
        """Return at `instant_ns`, or at once where it has passed."""
        if (left := instant_ns - time.monotonic_ns()) > 0:
            time.sleep(left / NS_PER_S)


class SkippingClock:
    """Clock that shows the whole of each long wait, but skips most of it.

    It goes back over waits that the modelled cluster wouldn't have had.
    """

    def __init__(self, wall: Clock) -> None:
        self._wall = wall
        self.skipped_ns = 0
        """Time by which this clock is ahead of the wall clock."""
        self._skips: list[tuple[int, int]] = []
        self._forgotten_ns = 0

    def now_ns(self) -> int:
        """Return the wall time plus all skipped time."""
        return self._wall.now_ns() + self.skipped_ns

    def sleep_until(self, instant_ns: int) -> None:
        """Return when this clock shows `instant_ns`."""
        self.skip_towards(instant_ns)
        self._wall.sleep_until(instant_ns - self.skipped_ns)

    def skip_towards(self, instant_ns: int) -> None:
        """Skip ahead, so that at most `LONGEST_WAIT_NS` are left until `instant_ns`.

        Nothing that depends on wall time may be under way.
        """
        now = self.now_ns()
        if instant_ns - now > LONGEST_WAIT_NS:
            self._skips.append((now - self.skipped_ns, instant_ns - now - LONGEST_WAIT_NS))
            self.skipped_ns += self._skips[-1][1]

    def go_back(self, instant_ns: int) -> None:
        """Show an earlier instant again, as if no time of the model had passed since.

        Nothing that depends on wall time may be under way.
        """
        now = self.now_ns()
        if instant_ns < now:
            self._skips.append((now - self.skipped_ns, instant_ns - now))
            self.skipped_ns += self._skips[-1][1]

    def wall_ns(self, instant_ns: int) -> int:
        """Return the instant on the wall clock, given the skips so far."""
        return instant_ns - self.skipped_ns

    def forget_skips(self) -> None:
        """Forget single skips so far: nobody will convert instants before the present one."""
        self._skips.clear()
        self._forgotten_ns = self.skipped_ns

    def past_run_ns(self, wall_ns: int) -> int:
        """Return the time that this clock showed at a past instant of the wall clock."""
        skipped = sum(skipped for at, skipped in self._skips if at < wall_ns)
        return wall_ns + self._forgotten_ns + skipped

    def past_wall_ns(self, instant_ns: int) -> int:
        """Return the wall time at which this clock showed a past instant.

        For an instant that was skipped, it is the wall time of the skip. For one that was shown
        twice, it is the later one.
        """
        ahead = self._forgotten_ns
        for at, skipped in self._skips:
            if instant_ns <= at + ahead + min(0, skipped):
                break
            ahead = min(ahead + skipped, instant_ns - at)
        return instant_ns - ahead


class RunTimers:
    """Actions due at instants; those of one instant are taken in the order of their addition."""

    def __init__(self) -> None:
        self._due: list[tuple[int, int, list[Callable[[], object]]]] = []
        self._count = 0

    def add(self, instant_ns: int, action: Callable[[], object]) -> Callable[[], None]:
        """Schedule an action at an instant, and return a function that cancels it."""
        self._count += 1
        entry = (instant_ns, self._count, [action])
        heappush(self._due, entry)
        return entry[2].clear

    def clear(self) -> None:
        """Forget all actions."""
        self._due.clear()

    @property
    def next_ns(self) -> int | None:
        """The instant of the next action."""
        while self._due and not self._due[0][2]:
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def fire(self, now_ns: int) -> None:
        """Take all actions that are due, and those that they add."""
        while (instant := self.next_ns) is not None and instant <= now_ns:
            for action in heappop(self._due)[2]:
                action()
