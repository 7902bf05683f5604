"""Listening sockets that survive a lack of descriptors.

The module travels with the agent, so it needs the standard library of Python 3.8 only.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Callable
from contextlib import suppress

from moefabric.runtime.event_loop import IN, NOW, Loop

BATCH = 16  # connections accepted in one turn of the loop
PAUSE_NS = 200_000_000  # how long a listener without descriptors leaves connections waiting
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors of `accept` that stay while descriptors or memory lack; the listener stays readable."""


def raise_descriptor_limit() -> None:
    """Raise this process's limit of open descriptors as far as it may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


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
        loop: Loop,
        sock: socket.socket,
        accepted: Callable[[socket.socket], object],
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        self.loop, self.sock, self.accepted, self.make_room = loop, sock, accepted, make_room
        self.most = BATCH
        """Connections accepted in one turn of the loop."""
        self.resume()

    def accept(self, _mask: int = IN) -> None:
        """Accept connections that wait."""
        for _ in range(self.most):
            try:
                sock, _ = self.sock.accept()
            except OSError as error:
                if error.errno in SHORTAGES and not self.make_room():
                    self.pause()
                    self.loop.call_at(NOW() + PAUSE_NS, self.resume)
                return
            sock.setblocking(False)
            self.accepted(sock)

    def pause(self) -> None:
        """Leave connections waiting."""
        self.loop.forget(self.sock.fileno())

    def resume(self) -> None:
        """Accept connections again, unless the socket was closed meanwhile."""
        if self.sock.fileno() >= 0:
            self.loop.watch(self.sock.fileno(), IN, self.accept)

    def close(self) -> None:
        """Close the socket."""
        if self.sock.fileno() >= 0:
            self.loop.forget(self.sock.fileno())
            self.sock.close()


class SpareDescriptors:
    """Descriptors kept for when a process has no others: to refuse connections, and to end.

    Args:
        count: Number of descriptors.
    """

    def __init__(self, count: int = 1) -> None:
        self._held: list[int] = []
        self._count = count
        self._hold()

    def accept(self, listener: socket.socket) -> socket.socket | None:
        """Return the next connection of a listener; refuse it if descriptors lack.

        Returns:
            None if there is no connection any more, or it was refused.
        """
        try:
            return listener.accept()[0]
        except OSError as error:
            if error.errno not in SHORTAGES or not self._held:
                return None
        os.close(self._held.pop())
        with suppress(OSError):
            listener.accept()[0].close()
        self._hold()
        return None

    def release(self) -> None:
        """Free all descriptors, for the end of the process."""
        while self._held:
            os.close(self._held.pop())

    def _hold(self) -> None:
        with suppress(OSError):
            while len(self._held) < self._count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
