"""Waiting: for something that has no event of its own, or is done beside; and never without an end."""

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


class Beside:
    """Something that is done meanwhile, by a thread in the network namespace of the one that asked for it."""

    def __init__(self, what: str, do: Callable[[], object]) -> None:
        """Begin it; `what` it is, for a fault's sake."""
        self._what = what
        self._raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._do, args=(do,), name=what, daemon=True)
        self._thread.start()

    def _do(self, do: Callable[[], object]) -> None:
        try:
            do()
        except BaseException as fault:  # noqa: BLE001 - raised again in the thread that waits
            self._raised.append(fault)

    def done(self, deadline: Deadline) -> None:
        """Return when it is done, with its exception if it raised one; FabricError when the time is over."""
        self._thread.join(deadline.left_s)
        if self._raised:
            raise self._raised[0]
        if self._thread.is_alive():
            raise FabricError(f"{self._what} was not ready in time")
