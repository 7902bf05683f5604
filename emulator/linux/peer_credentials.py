"""Process and user at the other end of a Unix socket (SO_PEERCRED, unix(7))."""

import os
import socket
import struct
from typing import Final

_CREDENTIALS: Final = struct.Struct("3i")


def peer(sock: socket.socket) -> tuple[int, bool]:
    """Return the pid of the peer, and whether it runs as root or as the caller's user."""
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(packed)
    return pid, uid in {0, os.geteuid()}
