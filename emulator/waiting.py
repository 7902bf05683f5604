"""Waiting: for something that has no event of its own, and never without an end."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from moefabric.errors import FabricError

_LOOK_AGAIN_S: Final = 0.02


@dataclass(frozen=True)
class Deadline:
    """An instant of time.monotonic() after which nobody waits any more."""

    at_s: float

    @classmethod
    def after(cls, seconds: float) -> Self:
        """So long from now."""
        return cls(time.monotonic() + seconds)

    @property
    def left_s(self) -> float:
        """What is left; 0 when it is over."""
        return max(0.0, self.at_s - time.monotonic())

    def until(self, true: Callable[[], bool], what: str) -> None:
        """Return when `true()`; FabricError that `what` isn't there when the time is over. `true` may raise a reason to give up."""
        tried = threading.Event()
        while not true():
            if not self.left_s:
                raise FabricError(f"{what} was not ready in time")
            tried.wait(_LOOK_AGAIN_S)
