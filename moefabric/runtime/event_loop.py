"""Event loop of one thread: calls back when a descriptor is ready or an instant has come.

The module travels with the agent, so it needs the standard library of Python 3.8 only.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

log = logging.getLogger(__name__)

IN, OUT, BROKEN = select.EPOLLIN, select.EPOLLOUT, select.EPOLLERR | select.EPOLLHUP
NOW = time.monotonic_ns
"""Returns the time of CLOCK_MONOTONIC, to which all instants of a loop refer."""
SPIN_NS = 60_000
"""Time before a precise timer in which the loop polls: a sleeping process may wake that late."""
RETRY_NS = 1_000_000_000
"""Pause of a descriptor whose callback failed: a failure that lasts must not occupy a core."""
MIN_SWEPT = 1024
"""Number of timers below which cancelled ones are kept until their instants."""
MAX_LOGGED = 20
"""Number of failures of callbacks that are logged; later ones are counted only."""
_COARSE_NS = 5_000_000
_LONGEST_S = 86_400.0
"""Longest wait at once: epoll(7) takes less than 2**31 ms."""
_MAX_SELECT_FD = 1023


class Timer:
    """Call at an instant, unless it is cancelled before.

    Args:
        call: The function.
        precise: Whether the loop polls instead of sleeping just before the instant.
        owner: By whom `EventLoop.withdraw` finds it.
    """

    def __init__(
        self, call: Callable[[], object], *, precise: bool = False, owner: object = None
    ) -> None:
        self.call, self.precise, self.owner = call, precise, owner
        self.cancelled = False

    def cancel(self) -> None:
        """Prevent the call, and release the objects that it refers to."""
        self.cancelled, self.call = True, _nothing


def _nothing() -> None:
    """Do nothing, as a cancelled timer does."""


class Timers(Protocol):
    """Clock with timers."""

    def now_ns(self) -> int:
        """Return the time of CLOCK_MONOTONIC."""

    def call_at(self, at_ns: int, call: Callable[[], object]) -> Timer:
        """Call at that instant or just after: in the loop's thread, never before returning."""


class Loop(Protocol):
    """Event loop, or the part of one that a user of several has: `EventLoop` documents both."""

    now_ns: Callable[[], int]

    @property
    def faults(self) -> int:
        """Number of callbacks that have failed in the process."""

    def watch(self, fd: int, mask: int, callback: Callable[[int], object]) -> None:
        """Call `callback(events)` whenever a descriptor is ready for one of the mask's events."""

    def forget(self, fd: int) -> None:
        """Stop watching a descriptor."""

    def call_at(self, at_ns: int, call: Callable[[], object], *, precise: bool = False) -> Timer:
        """Call a function at an instant of the loop's clock or just after."""


class CallbackOwner(ABC):
    """Object whose methods are callbacks of the loop, and which handles their exceptions."""

    @abstractmethod
    def callback_failed(self, error: Exception) -> None:
        """Handle a programming error in one of the object's callbacks."""


class EventLoop:
    """Timers and descriptors of one thread. Callbacks must not block.

    A callback that fails costs neither the others nor the process. If it is a method of a
    `CallbackOwner`, the owner handles the exception; else its descriptor is ignored for a second.

    Args:
        clock_ns: The clock of the timers.

    Example:
        loop = EventLoop()
        loop.watch(sock.fileno(), IN, lambda _events: print(sock.recv(4096)))
        loop.call_at(loop.now_ns() + 1_000_000_000, loop.stop)
        loop.run()
    """

    def __init__(self, clock_ns: Callable[[], int] = NOW) -> None:
        self.now_ns = clock_ns
        self.epoll = select.epoll()
        self.masks: dict[int, int] = {}
        self.callbacks: dict[int, Callable[[int], object]] = {}
        self.timers: list[tuple[int, int, Timer]] = []
        self.faults = 0
        self._paused: dict[int, Timer] = {}
        self._tie_breaker = itertools.count()
        self._sweep_at = MIN_SWEPT
        self.running = True

    def watch(self, fd: int, mask: int, callback: Callable[[int], object]) -> None:
        """Call `callback(events)` whenever a descriptor is ready for one of the mask's events.

        Args:
            fd: The descriptor; `forget` it before it is closed.
            mask: IN, OUT, both or none; BROKEN is always told.
            callback: Takes the events that occurred.
        """
        if self._paused and (pause := self._paused.pop(fd, None)) is not None:
            pause.cancel()
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
            with suppress(OSError):  # it is closed
                self.epoll.unregister(fd)
        elif (pause := self._paused.pop(fd, None)) is not None:
            pause.cancel()

    def call_at(
        self, at_ns: int, call: Callable[[], object], *, precise: bool = False, owner: object = None
    ) -> Timer:
        """Call a function at an instant of the loop's clock or just after."""
        timer = Timer(call, precise=precise, owner=owner)
        if len(self.timers) >= self._sweep_at:
            self._sweep()
        heapq.heappush(self.timers, (at_ns, next(self._tie_breaker), timer))
        return timer

    def withdraw(self, owner: object) -> list[tuple[int, int, Timer]]:
        """Remove an owner's timers and return them for `restore`."""
        withdrawn = [entry for entry in self.timers if entry[2].owner is owner]
        self.timers = [entry for entry in self.timers if entry[2].owner is not owner]
        heapq.heapify(self.timers)
        return withdrawn

    def restore(self, withdrawn: list[tuple[int, int, Timer]]) -> None:
        """Take timers back; those whose instants have passed are called in the next turn."""
        for entry in withdrawn:
            heapq.heappush(self.timers, entry)

    def _sweep(self) -> None:
        """Remove cancelled timers, whose instants may be far away."""
        self.timers = [entry for entry in self.timers if not entry[2].cancelled]
        heapq.heapify(self.timers)
        self._sweep_at = max(MIN_SWEPT, 2 * len(self.timers))

    def stop(self) -> None:
        """Make `run` return after the callbacks of the present turn."""
        self.running = False

    def run(self) -> None:
        """Call the callbacks of descriptors and timers until `stop` is called."""
        while self.running:
            ready = self._wait()
            self.fire_timers()
            for fd, events in ready:
                callback = self.callbacks.get(fd)
                if callback is not None and not self._guard(callback, events):
                    self._pause(fd, callback)
                self.fire_timers()  # in time, though many descriptors are ready

    def close(self) -> None:
        """End all watches. The descriptors stay open."""
        self.epoll.close()

    def fire_timers(self) -> None:
        """Call the timers that are due; those that they add wait for the next turn."""
        timers = self.timers
        if not timers:
            return
        now_ns, due = self.now_ns(), []
        while timers and (timers[0][0] <= now_ns or timers[0][2].cancelled):
            due.append(heapq.heappop(timers)[2])
        for timer in due:
            if not timer.cancelled:
                self._guard(timer.call)

    def _wait(self) -> list[tuple[int, int]]:
        """Wait until a descriptor is ready or a timer due: epoll(7) to 1 ms, select(2) to 1 µs."""
        if not self.timers:
            return self.epoll.poll(-1)
        at_ns, _, timer = self.timers[0]
        ahead_ns = at_ns - self.now_ns() - SPIN_NS * timer.precise
        if ahead_ns > _COARSE_NS:
            return self.epoll.poll(min((ahead_ns - _COARSE_NS // 2) / 1e9, _LONGEST_S))
        if (ready := self.epoll.poll(0)) or ahead_ns <= 0:
            return ready
        if self.epoll.fileno() > _MAX_SELECT_FD:
            return self.epoll.poll(ahead_ns / 1e9)
        select.select([self.epoll], [], [], ahead_ns / 1e9)
        return self.epoll.poll(0)

    def _guard(self, callback: Callable[..., object], *arguments: Any) -> bool:
        """Call a callback; return False if it failed and no owner handles that."""
        try:
            callback(*arguments)
        except Exception as error:  # noqa: BLE001 - an unforeseen error must not end the process
            self._count_fault()
            owner = getattr(callback, "__self__", None)
            if not isinstance(owner, CallbackOwner):
                return False
            try:
                owner.callback_failed(error)
            except Exception:  # noqa: BLE001 - nor must one in its handling
                self._count_fault()
        return True

    def _count_fault(self) -> None:
        """Count the exception that is handled; log the first ones."""
        self.faults += 1
        if self.faults <= MAX_LOGGED:
            log.error("a callback failed", exc_info=True)  # noqa: LOG014 - the caller handles it

    def _pause(self, fd: int, callback: Callable[[int], object]) -> None:
        """Ignore a descriptor for a while, unless its callback has changed or ended its watch."""
        mask = self.masks.get(fd)
        if mask is None or self.callbacks[fd] != callback:
            return
        self.forget(fd)
        self._paused[fd] = self.call_at(
            self.now_ns() + RETRY_NS, lambda: self.watch(fd, mask, callback)
        )
