"""Logs of a fabric's processes: their size, and their place after a failed start."""

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from moefabric.runtime.run_directory import RunDirectory, run_root

MOST_BYTES: Final = 1 << 20
"""Size above which the beginning of a log is removed: the run directory is in memory."""
KEPT_BYTES: Final = 256 * 1024
"""Size of the end that stays."""
TRIM_S: Final = 1.0
"""Seconds between two looks at the logs."""
_FOLDER: Final = ".failed"
"""Folder of the logs; no fabric's name begins with a dot."""
_KEPT: Final = 4


class CapturedLogs:
    """Logs of a folder that are cut when they are too large; their processes go on appending."""

    def __init__(self, folder: Path) -> None:
        """Take the logs of a folder, also later ones."""
        self._folder, self._next_s = folder, 0.0

    def trim(self) -> None:
        """Cut logs that are too large, once a second at most."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + TRIM_S
        for log in self._folder.glob("*.log"):
            with suppress(OSError):  # a full file system, or the fabric is being removed
                if log.stat().st_size > MOST_BYTES:
                    _trim(log)


def _trim(log: Path) -> None:
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(size - KEPT_BYTES)
        file.readline()  # the rest of a line
        end = file.read()
    os.truncate(log, 0)
    with log.open("ab") as file:
        file.write(f"({size - len(end)} bytes of this log were removed)\n".encode() + end)


def keep_logs(run_dir: RunDirectory) -> Path | None:
    """Move the logs of a fabric to the folder of failed starts, which keeps the newest ones.

    Returns:
        The folder with the logs; None if there are none.
    """
    logs, folder = run_dir.log_file("any").parent, _folder(run_dir.name)
    try:
        if not any(log.stat().st_size for log in logs.iterdir()):
            return None
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(exist_ok=True)
        logs.rename(folder)
    except OSError:  # nothing was started, or the folder can't be written
        return None
    newest = sorted(folder.parent.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in newest[_KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def forget(fabric: str) -> None:
    """Remove the logs of an earlier failure to bring a fabric up."""
    shutil.rmtree(_folder(fabric), ignore_errors=True)
    with suppress(OSError):  # logs of other fabrics, or none
        _folder(fabric).parent.rmdir()


def _folder(fabric: str) -> Path:
    return run_root() / _FOLDER / fabric
