"""How a command ends that is told to: a job that is cancelled, or a terminal that is closed, leaves as little behind as Ctrl-C."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_ENDS: Final = (signal.SIGTERM, signal.SIGHUP)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def ended_in_order() -> Iterator[None]:
    """SIGTERM and SIGHUP interrupt what is done meanwhile, unless they are ignored (nohup)."""
    before = {number: signal.getsignal(number) for number in _ENDS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
