"""The event loop: calls back when a descriptor is ready or an instant has come."""

from __future__ import annotations

import heapq
import itertools
import logging
import select
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from moefabric.agents.engine.clock import NOW

log = logging.getLogger(__name__)

SPIN_NS = 60_000  # the most by which a sleeping process wakes late
LEAST_SWEPT = 1024  # timers; fewer are kept until their instants, even if they are cancelled
SHOWN_FAULTS = 20  # logged; more would fill the log, and are counted only
IN, OUT, BROKEN = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR | select.EPOLLHUP


class Timer:
    """A call at an instant. The loop polls instead of sleeping just before a `precise` one."""

    def __init__(self, call: Callable[[], object], *, precise: bool) -> None:
        self.call, self.precise = call, precise
        self.cancelled = False

    def cancel(self) -> None:
        """Don't make the call, and release what it refers to."""
        self.cancelled, self.call = True, _nothing


def _nothing() -> None:
    """Do what a cancelled timer does."""


class CallbackOwner(ABC):
    """An object whose methods are callbacks of the loop."""

    @abstractmethod
    def callback_failed(self, error: Exception) -> None:
        """Handle a programming error in one of its callbacks."""


class Loop:
    """An event loop: one epoll descriptor and timers."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.masks: dict[int, int] = {}
        self.callbacks: dict[int, Callable[[int], None]] = {}
        self.timers: list[tuple[int, int, Timer]] = []
        self.tie_breaker = itertools.count()
        self.sweep_at = LEAST_SWEPT
        self.faults = 0
        self.running = True

    def watch(self, fd: int, mask: int, callback: Callable[[int], None]) -> None:
        """Call `callback` with the events whenever a descriptor is ready for one in the mask."""
        before = self.masks.get(fd)
        self.callbacks[fd], self.masks[fd] = callback, mask
        if before is None:
            self.epoll.register(fd, mask)
        elif before != mask:
            self.epoll.modify(fd, mask)

    def forget(self, fd: int) -> None:
        """Stop watching a descriptor."""
        if self.masks.pop(fd, None) is not None:
            del self.callbacks[fd]
            self.epoll.unregister(fd)

    def call_at(self, when_ns: int, call: Callable[[], object], *, precise: bool = False) -> Timer:
        """Call a function at an instant."""
        timer = Timer(call, precise=precise)
        if len(self.timers) >= self.sweep_at:
            self._sweep()
        heapq.heappush(self.timers, (when_ns, next(self.tie_breaker), timer))
        return timer

    def _sweep(self) -> None:
        """Remove cancelled timers, whose instants may be far away."""
        self.timers = [entry for entry in self.timers if not entry[2].cancelled]
        heapq.heapify(self.timers)
        self.sweep_at = max(LEAST_SWEPT, 2 * len(self.timers))

    def stop(self) -> None:
        """Make `run` return."""
        self.running = False

    def run(self) -> None:
        """Call the callbacks of descriptors and timers until `stop` is called."""
        while self.running:
            ready = self._wait()
            self._fire_timers()
            for fd, mask in ready:
                callback = self.callbacks.get(fd)
                if callback is not None:
                    self._guard(callback, mask)
                    self._fire_timers()  # a collective begins in time though many peers have sent

    def _fire_timers(self) -> None:
        while self.timers and (self.timers[0][2].cancelled or self.timers[0][0] <= NOW()):
            timer = heapq.heappop(self.timers)[2]
            if not timer.cancelled:
                self._guard(timer.call)

    def _wait(self) -> list[tuple[int, int]]:
        if not self.timers:
            return self.epoll.poll(-1)
        when_ns, _, timer = self.timers[0]
        ahead_ns = when_ns - NOW() - (SPIN_NS if timer.precise else 0)
        if ahead_ns > 5_000_000 or not timer.precise:
            # epoll rounds up to milliseconds
            return self.epoll.poll(max(0, ahead_ns - 2_000_000 * timer.precise) / 1e9)
        if ahead_ns > 0:
            select.select([self.epoll], [], [], ahead_ns / 1e9)
        return self.epoll.poll(0)

    def _guard(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call a callback; a programming error ends the connection concerned, not the agent."""
        try:
            callback(*arguments)
        except Exception as error:  # noqa: BLE001 - an unforeseen error must not end the agent
            self._count_fault()
            owner = getattr(callback, "__self__", None)
            if isinstance(owner, CallbackOwner):
                try:
                    owner.callback_failed(error)
                except Exception:  # noqa: BLE001 - nor must one in its handling
                    self._count_fault()

    def _count_fault(self) -> None:
        """Count the exception that is handled; log the first ones."""
        self.faults += 1
        if self.faults <= SHOWN_FAULTS:
            log.error("a callback failed", exc_info=True)  # noqa: LOG014 - the caller handles it
