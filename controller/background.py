"""Work that goes on while its caller waits for something else."""

from collections.abc import Callable
from functools import partial
from typing import NoReturn, Protocol, TypeVar

from moefabric.core.errors import ControlError

T = TypeVar("T")


class Background(Protocol):
    """Calls functions while the caller waits for something else."""

    def __call__(self, function: Callable[[], T], *, now: bool = False) -> Callable[[], T]:
        """Call a function; return what waits for its result or raises its error.

        Args:
            function: The function.
            now: Whether it begins now, or else when the caller waits for something.
        """


def call_at_once(function: Callable[[], T], *, now: bool = False) -> Callable[[], T]:  # noqa: ARG001 - it always is
    """Call a function now; return what returns its result or raises its error."""
    try:
        result = function()
    except ControlError as error:
        return partial(_raise, error)
    return lambda: result


def _raise(error: ControlError) -> NoReturn:
    raise error
