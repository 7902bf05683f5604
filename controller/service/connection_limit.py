"""Limit of a listener's connections, and the choice of the one to close for a new one."""

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

_MOST_STRANGERS: Final = 64
_MOST_TRUSTED: Final = 256
"""Each region's controller, the clients of a run, and observers have one each."""

C = TypeVar("C", bound=Hashable)


class ConnectionLimit(Generic[C]):
    """Open connections, ordered by idle time, the longest first.

    A connection is trusted after its first accepted request. Peers that have no token can therefore
    crowd out only each other.

    Args:
        close: Ends a connection; whoever serves it then removes it.
        most_strangers: The most connections without an accepted request.
        most_trusted: The most connections with one.
    """

    def __init__(
        self,
        close: Callable[[C], object],
        most_strangers: int = _MOST_STRANGERS,
        most_trusted: int = _MOST_TRUSTED,
    ) -> None:
        self._close = close
        self._most_strangers, self._most_trusted = most_strangers, most_trusted
        self._strangers: dict[C, None] = {}
        self._idle: dict[C, None] = {}
        self._busy: set[C] = set()
        self.evicted = 0
        """Connections that were closed for others."""

    def __len__(self) -> int:
        return len(self._strangers) + len(self._idle) + len(self._busy)

    def add(self, connection: C) -> None:
        """Keep a new connection; close the oldest one without an accepted request if need be."""
        if len(self._strangers) >= self._most_strangers:
            self._evict(self._strangers)
        self._strangers[connection] = None

    def begin_request(self, connection: C) -> bool:
        """Trust a connection whose request is accepted.

        Returns:
            Whether the request may be served; not if too many others are being served.
        """
        if len(self._busy) >= self._most_trusted:
            return False
        self.remove(connection)
        if len(self._idle) + len(self._busy) >= self._most_trusted:
            self._evict(self._idle)
        self._busy.add(connection)
        return True

    def end_request(self, connection: C) -> None:
        """Regard a connection as idle, since its response has been sent."""
        if connection in self._busy:
            self._busy.remove(connection)
            self._idle[connection] = None

    def remove(self, connection: C) -> None:
        """Forget a connection."""
        self._strangers.pop(connection, None)
        self._idle.pop(connection, None)
        self._busy.discard(connection)

    def _evict(self, connections: dict[C, None]) -> None:
        oldest = next(iter(connections))
        del connections[oldest]
        self.evicted += 1
        self._close(oldest)
