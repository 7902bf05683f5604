"""The loop: who is called when a descriptor is ready, or an instant has come."""

from __future__ import annotations

import heapq
import itertools
import select
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from agents.engine.clock import NOW

SPIN_NS = 60_000  # a sleeping process wakes up to this late
IN, OUT, BROKEN = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR | select.EPOLLHUP


class Timer:
    """Something to do at an instant; `precise` ones are waited for with the processor, at the very end."""

    def __init__(self, when_ns: int, do: Callable[[], None], *, precise: bool) -> None:
        self.when_ns, self.do, self.precise = when_ns, do, precise
        self.cancelled = False


class Watcher(ABC):
    """Someone whom the loop calls."""

    @abstractmethod
    def fault(self, error: Exception) -> None:
        """An unforeseen fault has happened while it was called."""


class Loop:
    """One epoll and its timers."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.masks: dict[int, int] = {}
        self.watchers: dict[int, Callable[[int], None]] = {}
        self.timers: list[tuple[int, int, Timer]] = []
        self.tie = itertools.count()
        self.faults = 0
        self.running = True

    def watch(self, fd: int, mask: int, watcher: Callable[[int], None]) -> None:
        """Call `watcher` when the descriptor is ready for what `mask` says."""
        before = self.masks.get(fd)
        self.watchers[fd] = watcher
        if before == mask:
            return
        self.masks[fd] = mask
        if before is None:
            self.epoll.register(fd, mask)
        else:
            self.epoll.modify(fd, mask)

    def forget(self, fd: int) -> None:
        """No longer watch the descriptor."""
        if self.masks.pop(fd, None) is not None:
            del self.watchers[fd]
            self.epoll.unregister(fd)

    def at(self, when_ns: int, do: Callable[[], None], *, precise: bool = False) -> Timer:
        """Do something at an instant."""
        timer = Timer(when_ns, do, precise=precise)
        heapq.heappush(self.timers, (when_ns, next(self.tie), timer))
        return timer

    def stop(self) -> None:
        """Let `run` return."""
        self.running = False

    def run(self) -> None:
        """Serve until told to stop."""
        while self.running:
            for fd, mask in self._wait():
                watcher = self.watchers.get(fd)
                if watcher is not None:
                    self._guard(watcher, mask)
            while self.timers and (self.timers[0][2].cancelled or self.timers[0][0] <= NOW()):
                timer = heapq.heappop(self.timers)[2]
                if not timer.cancelled:
                    self._guard(timer.do)

    def _wait(self) -> list[tuple[int, int]]:
        while self.timers and self.timers[0][2].cancelled:
            heapq.heappop(self.timers)
        if not self.timers:
            return self.epoll.poll(-1)
        when_ns, _, timer = self.timers[0]
        ahead = when_ns - NOW() - (SPIN_NS if timer.precise else 0)
        if ahead > 5_000_000 or not timer.precise:
            # epoll rounds up to milliseconds
            return self.epoll.poll(max(0, ahead - 2_000_000 * timer.precise) / 1e9)
        if ahead > 0:
            select.select([self.epoll], [], [], ahead / 1e9)
        return self.epoll.poll(0)

    def _guard(self, do: Callable[..., None], *arguments: Any) -> None:
        """A fault of ours costs the connection it happened on, never the agent; it is told, not swallowed."""
        try:
            do(*arguments)
        except Exception as error:  # noqa: BLE001 - an unforeseen fault must not end the agent of a server
            self.faults += 1
            traceback.print_exc()
            owner = getattr(do, "__self__", None)
            if isinstance(owner, Watcher):
                owner.fault(error)
