"""Process and user at the other end of a Unix socket (SO_PEERCRED, unix(7))."""

import os
import socket
import struct
from dataclasses import dataclass
from typing import Final, Self

_CREDENTIALS: Final = struct.Struct("3i")


@dataclass(frozen=True)
class Peer:
    """Process that connected, with its user and group at that time."""

    pid: int
    uid: int
    gid: int

    @classmethod
    def of(cls, sock: socket.socket) -> Self:
        """Return the peer of a connected Unix socket."""
        packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return cls(*_CREDENTIALS.unpack(packed))

    @property
    def is_trusted(self) -> bool:
        """Whether it runs as root or as the caller's user."""
        return self.uid in {0, os.geteuid()}
