"""Removes fabrics of a test session that ended without removing them, by SIGKILL for example.

`python -m moefabric.testing.reaper` reads a line for each fabric, `up NAME` or `down NAME`. At the
end of its input, which is the end of the session's process, it removes the fabrics that are up,
and those that the session's runs of experiments have left.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Self


def fabrics_left(lines: Iterable[str]) -> list[str]:
    """Return the fabrics that are up after the lines, in the order in which they came up."""
    names: dict[str, None] = {}
    for line in lines:
        command, _, name = line.strip().partition(" ")
        if command == "up":
            names[name] = None
        else:
            names.pop(name, None)
    return list(names)


class Reaper:
    """The process that outlives a test session. Closing it ends it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moefabric.testing.reaper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,  # Ctrl-C is for the session, which then cleans up by itself
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def watch(self, name: str) -> None:
        """Have a fabric removed if this process ends before `release`."""
        self._tell(f"up {name}")

    def release(self, name: str) -> None:
        """Leave a fabric alone from now on."""
        self._tell(f"down {name}")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


def main() -> int:
    """Read lines to their end, and remove what is up."""
    session = os.getppid()
    names = fabrics_left(sys.stdin)
    from moefabric.emulator.fabric import lifecycle

    for name in [*names, *lifecycle.fabrics_left_by(session)]:
        lifecycle.down(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
