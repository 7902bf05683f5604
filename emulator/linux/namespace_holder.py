"""Namespace holders: processes that only keep the network and mount namespaces of nodes open.

`python -S -E emulator/linux/namespace_holder.py N` forks N holders and exits, so that the nearest
subreaper inherits them (`processes.adopt_orphans`). Each holder prints its pid, or the reason why
it has no namespaces. A holder takes as much memory as its parent, so this module imports little,
and the prefork server, which has imported much, doesn't fork the holders.
"""

import ctypes
import os
import signal
import sys

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_MS_REC, _MS_PRIVATE = 1 << 14, 1 << 18
_SYS = b"/sys"


def main(count: int) -> int:
    """Fork the holders."""
    for _ in range(count):
        if os.fork() == 0:
            _hold()
    return 0


def _hold() -> None:
    """Unshare the namespaces, report, and sleep; never returns."""
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.unshare(_CLONE_NEWNET | _CLONE_NEWNS) < 0
    # Private mounts: a /sys that shows this namespace's interfaces, where that is allowed.
    failed = failed or libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) < 0
    line = os.strerror(ctypes.get_errno()) if failed else str(os.getpid())
    if not failed:
        libc.mount(b"sysfs", _SYS, b"sysfs", 0, None)
    os.write(1, f"{line}\n".encode())
    if failed:
        os._exit(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
