"""Work that goes on while its caller waits for something else."""

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Background(Protocol):
    """Calls functions while the caller waits for something else."""

    def __call__(self, function: Callable[[], T]) -> Callable[[], T]:
        """Call a function at once or soon; return what waits for its result or error."""


def call_at_once(function: Callable[[], T]) -> Callable[[], T]:
    """Call a function now; return what returns its result."""
    result = function()
    return lambda: result
