"""Size of the logs that hold what processes print: the run directory is in memory."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

MOST_BYTES: Final = 1 << 20
"""Size above which the beginning of a log is removed."""
KEPT_BYTES: Final = 256 * 1024
"""Size of the end that stays."""
TRIM_S: Final = 1.0
"""Seconds between two looks at the logs."""


class CapturedLogs:
    """Logs of a folder that are cut when they are too large; their processes go on appending."""

    def __init__(self, folder: Path) -> None:
        """Take the logs of a folder, also those that will be there."""
        self._folder, self._next_s = folder, 0.0

    def trim(self) -> None:
        """Cut what is too large, once a second at most."""
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
