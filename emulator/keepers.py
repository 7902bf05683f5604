"""Keepers: a process for each node that does nothing but hold its network and mount namespace open.

`python -S -E emulator/keepers.py N` forks N of them and ends, so that they go to whoever adopts orphans (emulator.processes). Each
says its pid on standard output, or why it has no namespaces. It imports little, for its children are as large as it is.
"""

import ctypes
import os
import signal
import sys

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_MS_REC, _MS_PRIVATE = 1 << 14, 1 << 18
_SYS = b"/sys"


def main(words: list[str]) -> int:
    """Make so many keepers."""
    for _ in range(int(words[0])):
        if os.fork() == 0:
            _keep()
    return 0


def _keep() -> None:
    """The life of a keeper; never returns."""
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.unshare(_CLONE_NEWNET | _CLONE_NEWNS) < 0
    # What is mounted here is seen here alone: a /sys that tells of this namespace's interfaces, where that is allowed.
    failed = failed or libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) < 0
    line = os.strerror(ctypes.get_errno()) if failed else str(os.getpid())
    if not failed:
        libc.mount(b"sysfs", _SYS, b"sysfs", 0, None)
    os.write(1, f"{line}\n".encode())
    if failed:
        os._exit(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
