"""Graceful shutdown on SIGTERM and SIGHUP."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def graceful_shutdown() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into KeyboardInterrupt, so that the caller cleans up as after Ctrl-C.

    A signal that is ignored, as SIGHUP is under nohup(1), stays ignored, and one that the program
    handles itself stays handled. Only the main thread can receive signals: nothing changes in
    others.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {
        number: handler
        for number in _SIGNALS
        if (handler := signal.getsignal(number)) is signal.SIG_DFL
    }
    for number in handlers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
