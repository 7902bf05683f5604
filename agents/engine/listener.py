"""Listening sockets that survive a lack of descriptors."""

from __future__ import annotations

import errno
import resource
import socket
from collections.abc import Callable

from moefabric.agents.engine.clock import NOW
from moefabric.runtime.event_loop import IN, EventLoop

BATCH = 16  # connections accepted in one turn of the loop
PAUSE_NS = 200_000_000  # how long a listener without descriptors leaves connections waiting
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open descriptors as far as it may; return the limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


class Listener:
    """Accepts connections, and pauses while there are no descriptors for them.

    Args:
        loop: The event loop.
        sock: A listening socket that doesn't block.
        accepted: Called with the socket of each connection.
        make_room: Closes a connection that is worth less than a new one; returns whether there
            was one.
    """

    def __init__(
        self,
        loop: EventLoop,
        sock: socket.socket,
        accepted: Callable[[socket.socket], object],
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        self.loop, self.sock, self.accepted, self.make_room = loop, sock, accepted, make_room
        self.shortages = 0
        self.closed = False
        self._resume()

    def accept(self, _mask: int = IN) -> None:
        """Accept connections that wait."""
        for _ in range(BATCH):
            try:
                sock, _ = self.sock.accept()
            except OSError as error:
                if error.errno in _SHORTAGES:
                    self.shortages += 1
                    if not self.make_room():
                        self.loop.forget(self.sock.fileno())
                        self.loop.call_at(NOW() + PAUSE_NS, self._resume)
                return
            sock.setblocking(False)
            self.accepted(sock)

    def close(self) -> None:
        """Close the socket."""
        if not self.closed:
            self.closed = True
            self.loop.forget(self.sock.fileno())
            self.sock.close()

    def _resume(self) -> None:
        if not self.closed:
            self.loop.watch(self.sock.fileno(), IN, self.accept)
