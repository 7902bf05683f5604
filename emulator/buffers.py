"""Socket buffers of ovs-vswitchd in user space: they hold every frame that waits in a shaped link, so they are made large.

Its one sending AF_PACKET socket drops silently when its buffer (net.core.wmem_default, 208 kB) is full of waiting frames, and TCP then
waits 200 ms; its receiving ones hold three 64 kB frames. The sysctls are the whole machine's, and read-only in a namespace of one's
own, so the sockets themselves are reached, by pidfd_getfd(2), and told (SO_SNDBUFFORCE, socket(7); CAP_NET_ADMIN).
"""

import ctypes
import os
import platform
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

SEND_BYTES: Final = 64 << 20
RECEIVE_BYTES: Final = 32 << 20
_SO_SNDBUFFORCE: Final = 32
_SO_RCVBUFFORCE: Final = 33
_PIDFD_GETFD: Final = 438
"""The system call's number on every architecture but alpha."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def enlarge(pid: int) -> int:
    """Enlarge the buffers of all AF_PACKET sockets of process `pid`, read back; their number. OSError where this isn't allowed."""
    if platform.machine() == "alpha":
        raise OSError("pidfd_getfd has another number here")
    return sum(_enlarged(sock) for sock in _sockets(pid))


def _sockets(pid: int) -> Iterator[socket.socket]:
    """Duplicates of a process's sockets."""
    process = os.pidfd_open(pid)
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            target = ""
            with suppress(FileNotFoundError):  # closed meanwhile
                target = str(link.readlink())
            if target.startswith("socket:"):
                fd = _LIBC.syscall(_PIDFD_GETFD, process, int(link.name), 0)
                if fd < 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                with socket.socket(fileno=fd) as sock:
                    yield sock
    finally:
        os.close(process)


def _enlarged(sock: socket.socket) -> bool:
    if sock.family != socket.AF_PACKET:
        return False
    sock.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, SEND_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BYTES)
    # The kernel says twice what it was asked for: it counts its own book-keeping.
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < SEND_BYTES:
        raise OSError("the send buffer stayed small")
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) < RECEIVE_BYTES:
        raise OSError("the receive buffer stayed small")
    return True
