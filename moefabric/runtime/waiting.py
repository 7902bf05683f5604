"""Deadlines and background tasks; every wait has a time limit."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Generic, Self, TypeVar

from moefabric.core.errors import FabricError

_POLL_INTERVAL_S: Final = 0.02
T = TypeVar("T")


@dataclass(frozen=True)
class Deadline:
    """Instant of `time.monotonic()` at which a wait gives up, and the seconds that it lasts."""

    at_s: float
    wait_s: float

    @classmethod
    def after(cls, seconds: float) -> Self:
        """Return the deadline that many seconds from now."""
        return cls(time.monotonic() + seconds, seconds)

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline; 0 after it."""
        return max(0.0, self.at_s - time.monotonic())

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Poll until `condition()` is true; meant for conditions that no event announces.

        Args:
            condition: function to poll; it may raise an exception to end the wait.
            what: what the caller waits for, as the error message calls it.

        Raises:
            FabricError: if the deadline passes first.
        """
        while not condition():
            if not self.remaining_s:
                raise FabricError(f"{what} was not ready in time")
            time.sleep(_POLL_INTERVAL_S)


class BackgroundTask(Generic[T]):
    """Function that runs in a new thread, in the namespaces of the thread that created it."""

    def __init__(self, name: str, function: Callable[[], T]) -> None:
        """Start the thread; error messages call the task `name`."""
        self._name, self._outcome = name, Future[T]()
        self._thread = threading.Thread(target=self._run, args=(function,), name=name, daemon=True)
        self._thread.start()

    def _run(self, function: Callable[[], T]) -> None:
        try:
            self._outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self._outcome.set_exception(error)

    def result(self, deadline: Deadline) -> T:
        """Wait for the function and return its result, or raise its exception.

        Raises:
            FabricError: if the deadline passes first.
        """
        self._thread.join(deadline.remaining_s)
        if not self._outcome.done():
            raise FabricError(f"{self._name} was not ready in time")
        return self._outcome.result()
