"""The solver of integer programs: HiGHS, by way of scipy, which takes half a second to load and is loaded when it is first wanted."""

import importlib
import sys
import threading
from typing import Final

_PARTS: Final = ("scipy.sparse", "scipy.optimize")


class _Loading:
    """How this process loads it: at once, or in a thread of its own while it goes on without."""

    aside = False
    thread: threading.Thread | None = None


def load_aside() -> None:
    """Have it loaded beside whatever this process does, and do without until then: for a process that answers others."""
    _Loading.aside = True


def ready() -> bool:
    """Whether there is a solver now. Where it isn't loaded, this does it: at once, or begins it (`load_aside`)."""
    if _Loading.thread is not None and _Loading.thread.is_alive():
        return False
    if not set(_PARTS) <= sys.modules.keys() and _Loading.aside and _Loading.thread is None:
        _Loading.thread = threading.Thread(target=_load, name="solver", daemon=True)
        _Loading.thread.start()
        return False
    _load()
    return True


def _load() -> None:
    for part in _PARTS:
        importlib.import_module(part)
