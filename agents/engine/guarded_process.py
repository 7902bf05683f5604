"""Runs a command on a host; it ends with the SSH session, or when that is silent for too long.

The program stands alone: its source travels on the command line. Its words are the silence in
seconds, the folder to start in, and the command.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

GRACE_S = 5.0
_NOT_FOUND = 127


def main(words: list[str]) -> int:
    """Run a command and return its exit status, or 128 + the signal that ended it."""
    silence_s, folder, command = float(words[0]), words[1], words[2:]
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            cwd=folder if Path(folder).is_dir() else None,
            start_new_session=True,
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return _NOT_FOUND
    while process.poll() is None:
        ready = select.select([0, woken], [], [], silence_s)[0]
        if not ready or (0 in ready and not os.read(0, 1 << 16)):
            end(process)
            break
        if woken in ready:
            os.read(woken, 1 << 16)
    kill(process, signal.SIGKILL)  # what the command has left running
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a command and its children, and kill them after the grace period."""
    kill(process, signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        kill(process, signal.SIGKILL)
        process.wait()


def kill(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a command and its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
