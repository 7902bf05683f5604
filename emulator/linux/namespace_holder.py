"""Namespace holders: processes that only keep the namespaces of nodes open.

`python -S -E emulator/linux/namespace_holder.py HOSTS NODE...` forks a holder for each node and
exits, so that the nearest subreaper inherits them (`moefabric.runtime.processes.adopt_orphans`). A
holder has a network, a mount and a UTS namespace: the node's name is its host name, and the file
HOSTS, unless that is empty, its /etc/hosts. NODE=PATH takes the network namespace at PATH instead
of a new one. It prints the node and its pid, or the reason why it has no namespaces. A holder takes
as much memory as its parent, so this module imports little, and the prefork server, which has
imported much, doesn't fork the holders.
"""

import ctypes
import os
import signal
import sys

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
_SYS, _HOSTS = b"/sys", b"/etc/hosts"


def main(hosts: str, nodes: list[str]) -> int:
    """Fork the holders."""
    for node in nodes:
        name, _, network = node.partition("=")
        if os.fork() == 0:
            _hold(os.fsencode(name), os.fsencode(hosts), network)
    return 0


def _hold(node: bytes, hosts: bytes, network: str) -> None:
    """Enter the namespaces, report, and sleep; never returns."""
    libc = ctypes.CDLL(None, use_errno=True)
    failed = not _enter_network(libc, network)
    failed = failed or libc.unshare(_CLONE_NEWNS | _CLONE_NEWUTS) < 0
    # Private mounts: a /sys that shows this namespace's interfaces, where that is allowed.
    failed = failed or libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) < 0
    failed = failed or libc.sethostname(node, len(node)) < 0
    if hosts and os.access(_HOSTS, os.F_OK):
        failed = failed or libc.mount(hosts, _HOSTS, None, _MS_BIND, None) < 0
    report = os.strerror(ctypes.get_errno()) if failed else str(os.getpid())
    if not failed:
        libc.mount(b"sysfs", _SYS, b"sysfs", 0, None)
    os.write(1, node + f" {report}\n".encode())
    if failed:
        os._exit(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    while True:
        signal.pause()


def _enter_network(libc: ctypes.CDLL, path: str) -> bool:
    """Enter a new network namespace or that at a path; errno tells why that has failed."""
    if not path:
        return bool(libc.unshare(_CLONE_NEWNET) == 0)
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError as error:
        ctypes.set_errno(error.errno or 0)
        return False
    return bool(libc.setns(fd, _CLONE_NEWNET) == 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
