"""Timers with a virtual clock."""

import heapq
import itertools
from collections.abc import Callable

from moefabric.runtime.event_loop import Timer


class VirtualTimers:
    """Timers whose clock moves only when a test advances it."""

    def __init__(self, now_ns: int = 0) -> None:
        """Set the clock."""
        self._now_ns = now_ns
        self._timers: list[tuple[int, int, Timer]] = []
        self._serial = itertools.count()

    def now_ns(self) -> int:
        """Return the virtual time."""
        return self._now_ns

    def call_at(self, at_ns: int, call: Callable[[], object]) -> Timer:
        """Call when the clock reaches that instant."""
        timer = Timer(call)
        heapq.heappush(self._timers, (at_ns, next(self._serial), timer))
        return timer

    def advance_ns(self, duration_ns: int) -> None:
        """Advance the clock and fire each timer at its own instant."""
        end_ns = self._now_ns + duration_ns
        while self._timers and self._timers[0][0] <= end_ns:
            at_ns, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                self._now_ns = max(self._now_ns, at_ns)
                timer.call()
        self._now_ns = end_ns

    def advance_all(self) -> None:
        """Advance the clock until no timer is left."""
        while live := [at_ns for at_ns, _, timer in self._timers if not timer.cancelled]:
            self.advance_ns(max(0, min(live) - self._now_ns))
