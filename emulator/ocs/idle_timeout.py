"""Idle timeout of a session."""

from collections.abc import Callable

from moefabric.runtime.event_loop import Timer, Timers


class IdleTimeout:
    """Calls a function once a session has been idle for too long."""

    def __init__(
        self,
        timers: Timers,
        limit_ns: Callable[[], int],
        is_busy: Callable[[], bool],
        expire: Callable[[], None],
    ) -> None:
        """Start without a timer.

        Args:
            timers: clock and timers of the device's thread.
            limit_ns: returns the limit; 0: none.
            is_busy: returns whether a command is in progress, which counts as activity.
            expire: ends the session.
        """
        self._timers, self._limit_ns, self._is_busy = timers, limit_ns, is_busy
        self._expire = expire
        self._timer: Timer | None = None
        self.active()

    def active(self) -> None:
        """Record that the session is active now."""
        self._active_ns = self._timers.now_ns()

    def restart(self) -> None:
        """Start, move or stop the timer by the limit that holds now."""
        self.stop()
        if limit_ns := self._limit_ns():
            due_ns = max(self._active_ns + limit_ns, self._timers.now_ns())
            self._timer = self._timers.call_at(due_ns, self._check)

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        if self._is_busy():
            self.active()
        if self._timers.now_ns() < self._active_ns + self._limit_ns():
            self.restart()
        else:
            self._expire()
