"""Background work of a reconciler that is done at once, in the caller's thread."""

from collections.abc import Callable
from functools import partial
from typing import NoReturn, TypeVar

from moefabric.core.errors import ControlError

T = TypeVar("T")


def call_at_once(function: Callable[[], T], *, now: bool = False) -> Callable[[], T]:
    """Call a function now; return a function that returns its result or raises its error."""
    try:
        result = function()
    except ControlError as error:
        return partial(_raise, error)
    return lambda: result


def _raise(error: ControlError) -> NoReturn:
    raise error
