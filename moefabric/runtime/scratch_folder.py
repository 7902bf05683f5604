"""Temporary folders that don't outlive their processes for long, however these end.

The module travels with the agent, so it needs the standard library of Python 3.8 only.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK = "lock"


@contextmanager
def scratch_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder, and remove it at the end; remove those of processes that were killed.

    Args:
        prefix: Start of the names of such folders, which nothing else uses.
        parent: Where they are. Default: the folder for temporary files.
    """
    root = parent or Path(tempfile.gettempdir())
    for old in root.glob(f"{prefix}*"):
        with suppress(OSError):
            _remove_left(old)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
    try:
        with (folder / "new").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / "new").rename(folder / _LOCK)  # locked before others can find it
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_left(old: Path) -> None:
    """Remove a folder whose process has ended; raise OSError if there is none of this user.

    Others may put folders, links and pipes of such names beside ours. Nothing of theirs is opened
    but folders, and opening waits for nobody.
    """
    careful = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    folder = os.open(old, careful | os.O_DIRECTORY)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            return
        lock = os.open(_LOCK, careful, dir_fd=folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            os.close(lock)
    finally:
        os.close(folder)
