"""Event loop of one thread for sockets and timers, and timers with a virtual clock for tests."""

import heapq
import itertools
import logging
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

log = logging.getLogger(__name__)

RETRY_NS: Final = 1_000_000_000
"""Pause of a socket whose callback failed, so that a failure that lasts occupies no core."""

Callback = Callable[[], None]


class Timer:
    """Callback that is due at an instant, unless it is cancelled."""

    def __init__(self, at_ns: int, callback: Callback) -> None:
        """Take the instant and the callback."""
        self.at_ns, self._callback = at_ns, callback
        self.cancelled = False

    def cancel(self) -> None:
        """Prevent the call; no effect if it has happened or is cancelled already."""
        self.cancelled = True

    def fire(self) -> None:
        """Call the callback once, unless the timer is cancelled."""
        if not self.cancelled:
            self.cancelled = True
            self._callback()


class Timers(Protocol):
    """Clock with timers."""

    def now_ns(self) -> int:
        """Return the time of CLOCK_MONOTONIC."""

    def call_at(self, at_ns: int, callback: Callback) -> Timer:
        """Call back at that instant or just after: in the loop's thread, never before returning."""


class _TimerQueue:
    """Queue of timers, ordered by instant and then by the order in which they were added."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._serial = itertools.count()

    def add(self, at_ns: int, callback: Callback) -> Timer:
        timer = Timer(at_ns, callback)
        heapq.heappush(self._heap, (at_ns, next(self._serial), timer))
        return timer

    def next_ns(self) -> int | None:
        """Return the instant of the next timer; None without timers."""
        while self._heap and self._heap[0][2].cancelled:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop(self) -> Timer:
        return heapq.heappop(self._heap)[2]


class EventLoop:
    """Timers and sockets of one thread. Callbacks must not block."""

    def __init__(
        self,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        selector: selectors.BaseSelector | None = None,
    ) -> None:
        """Take the clock of the timers, and what waits for sockets.

        Args:
            clock_ns: the clock.
            selector: default: select(2), which takes descriptors below 1024 only.
        """
        self.now_ns = clock_ns
        self._timers = _TimerQueue()
        # select(2) has a resolution of 1 µs, epoll(7) of 1 ms. For the few sockets of a device,
        # select(2) is as fast.
        self._selector = selector or selectors.SelectSelector()
        self._stopped = False

    def call_at(self, at_ns: int, callback: Callback) -> Timer:
        """Call back at that instant (ns of the loop's clock) or just after."""
        return self._timers.add(at_ns, callback)

    def watch(self, sock: socket.socket, events: int, callback: Callable[[int], None]) -> None:
        """Call `callback(events)` whenever the socket is ready; `events` 0 ends the watch.

        Args:
            sock: the socket.
            events: `selectors.EVENT_READ`, `EVENT_WRITE` or both.
            callback: called with the events that occurred.
        """
        key = self._selector.get_map().get(sock)
        if key is None:
            if events:
                self._selector.register(sock, events, callback)
        elif not events:
            self._selector.unregister(sock)
        elif (key.events, key.data) != (events, callback):
            self._selector.modify(sock, events, callback)

    def stop(self) -> None:
        """Make `run` return after the current callbacks."""
        self._stopped = True

    def run(self) -> None:
        """Wait for sockets and timers and call their callbacks, until `stop` is called."""
        while not self._stopped:
            for key, events in self._selector.select(self._timeout_s()):
                # An earlier callback may have ended the watch, and closed the socket.
                if self._key(key.fileobj) is key:
                    self._call(key, events)
            self._fire_due()

    def close(self) -> None:
        """End all watches. The sockets stay open."""
        self._selector.close()

    def _key(self, sock: Any) -> selectors.SelectorKey | None:
        """Return the watch of a socket; None if there is none or the socket is closed."""
        return self._selector.get_map().get(sock) if sock.fileno() >= 0 else None

    def _call(self, key: selectors.SelectorKey, events: int) -> None:
        try:
            key.data(events)
        except Exception:  # a faulty callback must not stop the others
            log.exception("the callback of a socket failed")
            self._pause(key)

    def _pause(self, key: selectors.SelectorKey) -> None:
        """End the watch of a socket, and resume it later unless it is closed or watched by then."""
        sock = key.fileobj
        assert isinstance(sock, socket.socket)
        if self._key(sock) is None:
            return
        self._selector.unregister(sock)

        def resume() -> None:
            if sock.fileno() >= 0 and self._key(sock) is None:
                self._selector.register(sock, key.events, key.data)

        self.call_at(self.now_ns() + RETRY_NS, resume)

    def _timeout_s(self) -> float | None:
        due_ns = self._timers.next_ns()
        return None if due_ns is None else max(0, due_ns - self.now_ns()) / 1e9

    def _fire_due(self) -> None:
        """Fire the timers that are due now; timers added meanwhile wait for the next turn."""
        now_ns = self.now_ns()
        due = []
        while (at_ns := self._timers.next_ns()) is not None and at_ns <= now_ns:
            due.append(self._timers.pop())
        for timer in due:
            try:
                timer.fire()
            except Exception:  # a faulty callback must not stop the others
                log.exception("a timer failed")


class VirtualTimers:
    """Timers whose clock moves only when a test advances it."""

    def __init__(self, now_ns: int = 0) -> None:
        """Set the clock."""
        self._now_ns = now_ns
        self._timers = _TimerQueue()

    def now_ns(self) -> int:
        """Return the virtual time."""
        return self._now_ns

    def call_at(self, at_ns: int, callback: Callback) -> Timer:
        """Call back when the clock reaches that instant."""
        return self._timers.add(at_ns, callback)

    def advance_ns(self, duration_ns: int) -> None:
        """Advance the clock and fire each timer at its own instant."""
        end_ns = self._now_ns + duration_ns
        while (at_ns := self._timers.next_ns()) is not None and at_ns <= end_ns:
            self._now_ns = max(self._now_ns, at_ns)
            self._timers.pop().fire()
        self._now_ns = end_ns

    def advance_all(self) -> None:
        """Advance the clock until no timer is left."""
        while (at_ns := self._timers.next_ns()) is not None:
            self.advance_ns(max(0, at_ns - self._now_ns))
