"""Namespace holder: a process with a thread for each node that keeps the node's namespaces open.

`python -S -E emulator/linux/namespace_holder.py HOSTS NODE...` forks the holder and exits when the
namespaces are there, so that the nearest subreaper inherits the holder
(`moefabric.runtime.processes.adopt_orphans`). Each thread has a network, a mount and a UTS
namespace: the node's name is its host name, and the file HOSTS, unless that is empty, its
/etc/hosts. NODE=PATH takes the network namespace at PATH instead of a new one. It prints the node
and the number of its thread, which takes the place of a pid in /proc and in requests to the kernel,
or the reason why the node has no namespaces. A thread takes a twentieth of a process's memory.
"""

import _thread
import ctypes
import os
import sys

_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
_SYS, _HOSTS = b"/sys", b"/etc/hosts"
_STACK_BYTES = 128 * 1024


def main(hosts: str, nodes: list[str]) -> int:
    """Fork the holder; it keeps its output open until all nodes have their namespaces."""
    if os.fork():
        return 0
    _thread.stack_size(_STACK_BYTES)
    starting = []
    for node in nodes:
        name, _, network = node.partition("=")
        ready = _thread.allocate_lock()
        ready.acquire()
        starting.append(ready)
        _thread.start_new_thread(_hold, (os.fsencode(name), os.fsencode(hosts), network, ready))
    for ready in starting:
        ready.acquire()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    _wait_forever()
    return 1


def _wait_forever() -> None:
    forever = _thread.allocate_lock()
    forever.acquire()
    forever.acquire()


def _hold(node: bytes, hosts: bytes, network: str, ready: "_thread.LockType") -> None:
    """Enter the namespaces, report, and sleep; never returns."""
    libc = ctypes.CDLL(None, use_errno=True)
    failed = not _enter_network(libc, network)
    failed = failed or libc.unshare(_CLONE_NEWNS | _CLONE_NEWUTS) < 0
    # Private mounts: a /sys that shows this namespace's interfaces, where that is allowed.
    failed = failed or libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) < 0
    failed = failed or libc.sethostname(node, len(node)) < 0
    if hosts and os.access(_HOSTS, os.F_OK):
        failed = failed or libc.mount(hosts, _HOSTS, None, _MS_BIND, None) < 0
    report = os.strerror(ctypes.get_errno()) if failed else str(_thread.get_native_id())
    if not failed:
        libc.mount(b"sysfs", _SYS, b"sysfs", 0, None)
    os.write(1, node + f" {report}\n".encode())
    ready.release()
    _wait_forever()


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
