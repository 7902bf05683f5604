"""One thread's waiting: for sockets, and for instants."""

import heapq
import itertools
import logging
import selectors
import socket
import time
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger(__name__)

Do = Callable[[], None]


class Timer:
    """Something that is due. `cancel` once it isn't wanted any more."""

    def __init__(self, at_ns: int, do: Do) -> None:
        self.at_ns, self._do = at_ns, do
        self.cancelled = False

    def cancel(self) -> None:
        """It will not be done. Twice, or too late, is no fault."""
        self.cancelled = True

    def ring(self) -> None:
        """Do it, unless it was cancelled; once."""
        if not self.cancelled:
            self.cancelled = True
            self._do()


class Timers(Protocol):
    """A clock, and things to be done when it has come so far."""

    def now_ns(self) -> int:
        """CLOCK_MONOTONIC."""

    def at(self, at_ns: int, do: Do) -> Timer:
        """Have this done at that instant or just after, in the thread of everything else; never before `at` returns."""


class _Due:
    """Timers in their order; of the same instant, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timer]] = []
        self._serial = itertools.count()

    def add(self, at_ns: int, do: Do) -> Timer:
        timer = Timer(at_ns, do)
        heapq.heappush(self._heap, (at_ns, next(self._serial), timer))
        return timer

    def next_ns(self) -> int | None:
        """When the next one is due."""
        while self._heap and self._heap[0][2].cancelled:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop(self) -> Timer:
        return heapq.heappop(self._heap)[2]


class Loop:
    """Timers and sockets of one thread. What is called by it must not block."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.now_ns = clock_ns
        self._due = _Due()
        # select(2) keeps time to the microsecond, epoll(7) to the millisecond; the few sockets here cost it nothing.
        self._waiting = selectors.SelectSelector()
        self._stopped = False

    def at(self, at_ns: int, do: Do) -> Timer:
        return self._due.add(at_ns, do)

    def watch(self, sock: socket.socket, events: int, do: Callable[[int], None]) -> None:
        """Call `do(events)` whenever the socket can be read (selectors.EVENT_READ) or written; no events: never mind it."""
        known = self._waiting.get_map().get(sock)
        if known is None:
            if events:
                self._waiting.register(sock, events, do)
        elif not events:
            self._waiting.unregister(sock)
        elif (known.events, known.data) != (events, do):
            self._waiting.modify(sock, events, do)

    def stop(self) -> None:
        """Let `run` return."""
        self._stopped = True

    def run(self) -> None:
        """Wait and call, until something that was called says `stop`."""
        while not self._stopped:
            for key, events in self._waiting.select(self._patience_s()):
                if self._waiting.get_map().get(key.fileobj) is key:  # unless another's turn has ended it
                    key.data(events)
            self._ring()

    def close(self) -> None:
        """Watch nothing any more. The sockets are their owners' to close."""
        self._waiting.close()

    def _patience_s(self) -> float | None:
        due = self._due.next_ns()
        return None if due is None else max(0, due - self.now_ns()) / 1e9

    def _ring(self) -> None:
        """Ring what is due now; what that asks for has its turn next time."""
        now = self.now_ns()
        due = []
        while (at_ns := self._due.next_ns()) is not None and at_ns <= now:
            due.append(self._due.pop())
        for timer in due:
            try:
                timer.ring()
            except Exception:  # a fault of ours in one of them stops none of the others
                log.exception("a timer failed")


class VirtualTimers:
    """Time that passes when it is told to: 25 ms of settling cost nobody anything."""

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns
        self._due = _Due()

    def now_ns(self) -> int:
        return self._now_ns

    def at(self, at_ns: int, do: Do) -> Timer:
        return self._due.add(at_ns, do)

    def pass_ns(self, time_ns: int) -> None:
        """Let so much time pass, ringing what is due at its own instant."""
        end = self._now_ns + time_ns
        while (at_ns := self._due.next_ns()) is not None and at_ns <= end:
            self._now_ns = max(self._now_ns, at_ns)
            self._due.pop().ring()
        self._now_ns = end

    def pass_all(self) -> None:
        """Let time pass until nothing is due any more."""
        while (at_ns := self._due.next_ns()) is not None:
            self.pass_ns(max(0, at_ns - self._now_ns))
