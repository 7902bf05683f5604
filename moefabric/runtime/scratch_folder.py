"""Temporary folders that don't outlive their processes for long, however these end."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_LOCK: Final = "lock"


@contextmanager
def scratch_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Yield a new folder, and remove it at the end; remove those of processes that were killed.

    Args:
        prefix: Start of the names of such folders, which nothing else uses.
        parent: Where they are. Default: the folder for temporary files.
    """
    root = parent or Path(tempfile.gettempdir())
    for old in root.glob(f"{prefix}*"):
        with suppress(OSError), (old / _LOCK).open() as lock:
            if os.fstat(lock.fileno()).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=root, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with (folder / "new").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (folder / "new").rename(folder / _LOCK)  # locked before others can find it
            yield folder
