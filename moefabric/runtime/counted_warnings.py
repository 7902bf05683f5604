"""Warnings about what anybody can cause: one line a second at most, with the number of the others."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Final

_PERIOD_S: Final = 1.0


@dataclass(eq=False)
class CountedWarnings:
    """Logs the first of similar warnings in each second, and counts those in between.

    Attributes:
        log: Where the warnings go.
        clock: Returns the seconds of a monotonic clock.
    """

    log: logging.Logger
    clock: Callable[[], float] = time.monotonic
    _last_s: float = field(default=-inf, init=False)
    _left_out: int = field(default=0, init=False)

    def warn(self, text: str, *arguments: object) -> None:
        """Log a warning, with the number of those since the last line; or only count it."""
        now_s = self.clock()
        if now_s < self._last_s + _PERIOD_S:
            self._left_out += 1
            return
        if self._left_out:
            text, arguments = f"{text} (and %d more since)", (*arguments, self._left_out)
        self._last_s, self._left_out = now_s, 0
        self.log.warning(text, *arguments)
