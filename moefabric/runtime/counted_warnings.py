"""Warnings that any peer can cause: a flood is logged as one line a second and a count."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

BURST: Final = 20
"""Lines that may come at once, after as many seconds without one."""


@dataclass(eq=False)
class CountedWarnings:
    """Logs similar warnings: `BURST` at once, then one a second with the number of the others.

    Attributes:
        log: Where the warnings go.
        clock: Returns the seconds of a monotonic clock.
    """

    log: logging.Logger
    clock: Callable[[], float] = time.monotonic
    _allowed: float = field(default=BURST, init=False)
    """Lines that may be logged now."""
    _left_out: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Begin to allow lines now."""
        self._last_s = self.clock()

    def warn(self, text: str, *arguments: object) -> None:
        """Log a warning, with the number of those since the last line; or only count it."""
        now_s = self.clock()
        self._allowed = min(BURST, self._allowed + now_s - self._last_s)
        self._last_s = now_s
        if self._allowed < 1:
            self._left_out += 1
            return
        if self._left_out:
            text, arguments = f"{text} (and %d more like it)", (*arguments, self._left_out)
        self._allowed, self._left_out = self._allowed - 1, 0
        self.log.warning(text, *arguments)
