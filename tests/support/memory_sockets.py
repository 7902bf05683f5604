"""TCP sockets in memory, for the data connections of agents."""

import os
import socket

_MOST = 1 << 20


class MemorySocket:
    """A connected socket with bytes to read; it takes what is sent and ignores options.

    Args:
        unread: The bytes.
        most: Bytes that one call reads at most.
    """

    family = socket.AF_INET

    def __init__(self, unread: bytes = b"", most: int = _MOST) -> None:
        self.unread, self.most = memoryview(unread), max(1, most)
        self._descriptor = os.eventfd(0)

    def fileno(self) -> int:
        """Return a descriptor that is never ready."""
        return self._descriptor

    def recv_into(self, place: memoryview) -> int:
        """Read bytes; return how many."""
        count = min(len(place), len(self.unread), self.most)
        place[:count] = self.unread[:count]
        self.unread = self.unread[count:]
        return count

    def recv(self, size: int) -> bytes:
        """Read bytes."""
        place = bytearray(size)
        return bytes(place[: self.recv_into(memoryview(place))])

    def send(self, data: bytes, _flags: int = 0) -> int:
        """Take all bytes."""
        return len(data)

    def sendall(self, data: bytes) -> None:
        """Take all bytes."""

    def setsockopt(self, *_option: object) -> None:
        """Ignore an option."""

    def getsockopt(self, _level: int, option: int, size: int = 0) -> int | bytes:
        """Return zeros, or a usual segment size."""
        if size:
            return bytes(size)
        return 1448 if option == socket.TCP_MAXSEG else 0

    def shutdown(self, _how: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Release the descriptor; nothing can be read then."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor, self.unread = -1, memoryview(b"")
