"""Graceful shutdown on SIGTERM and SIGHUP."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def graceful_shutdown() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into KeyboardInterrupt, so that a command cleans up as after Ctrl-C.

    A signal that is ignored, as SIGHUP is under nohup(1), stays ignored.
    """
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in handlers.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
