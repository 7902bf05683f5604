"""Completion of commands: calls back when the light of all earlier commands has settled."""

import itertools
from collections.abc import Callable
from functools import partial

from moefabric.emulator.ocs.device_failures import ActiveFailures, OcsFailureKind
from moefabric.emulator.ocs.light import LightTable
from moefabric.runtime.event_loop import Timers


class Completions:
    """Callbacks that wait for light. Failures may delay or suppress the calls."""

    def __init__(self, timers: Timers, light: LightTable, failures: ActiveFailures) -> None:
        self._timers, self._light, self._failures = timers, light, failures
        self._keys = itertools.count()
        self._waiting: dict[int, Callable[[], None]] = {}

    def add(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the light of all earlier commands has settled, or at once."""
        key = next(self._keys)
        self._waiting[key] = callback
        if self._failures.strike(OcsFailureKind.DROP_COMPLETION):
            return
        delay = self._failures.strike(OcsFailureKind.DELAY)
        at_ns = self._settled_ns() + round(delay.value * 1e9 if delay else 0)
        if at_ns <= self._timers.now_ns():
            self._call(key)
        else:
            self._timers.call_at(at_ns, partial(self._call, key))

    def resume(self) -> None:
        """Call those whose completion was suppressed, once light has settled."""
        for key in list(self._waiting):
            self._timers.call_at(self._settled_ns(), partial(self._call, key))

    def drop(self) -> None:
        """Forget all callbacks."""
        self._waiting.clear()

    def _settled_ns(self) -> int:
        return max(self._light.settled_at_ns, self._timers.now_ns())

    def _call(self, key: int) -> None:
        if callback := self._waiting.pop(key, None):
            callback()
