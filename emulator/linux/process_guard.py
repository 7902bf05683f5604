"""Guard of a job: kills all processes of the job as soon as the process that started it has ended.

`python -m moefabric.emulator.linux.process_guard NAME VALUE` waits for the end of its standard
input, which is the end of the process that holds the other end of the pipe, however it ended. Then
it kills every process that has the variable NAME=VALUE in its environment. Children of a job's
processes inherit the variable, so they end as well, also if they have become orphans.
"""

import os
import subprocess
import sys
from typing import Self


class ProcessGuard:
    """The guard of the processes with a variable in their environment. Closing it kills them."""

    def __init__(self, name: str, value: str) -> None:
        """Start the guard; later processes with the variable belong to the job."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "moefabric.emulator.linux.process_guard", name, value],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            # With PYTHONSAFEPATH `python -m` doesn't import from the caller's folder.
            env={**os.environ, "PYTHONSAFEPATH": "1"},
            start_new_session=True,  # Ctrl-C on a terminal is for the caller, which then closes
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the processes of the job that are left, and wait for their end."""
        self._process.communicate()


def main(name: str, value: str) -> int:
    """Wait for the end of the input, then kill."""
    from moefabric.emulator.linux.marked_processes import kill_with_variable

    sys.stdin.buffer.read()
    kill_with_variable(name, value)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
