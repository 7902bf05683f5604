"""Limit of a listener's connections: peers that are trusted, and strangers by their source.

Trust is known when a peer connects, as from a reserved port of this machine, or with its first
message: a token, a proof. Strangers have places of their own, so that they can crowd out only each
other.

The module travels with the agent, so it needs the standard library of Python 3.8 only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

FIRST_REQUEST_S = 10.0
"""Time for a new connection to bring its first request."""
C = TypeVar("C", bound=Hashable)


@dataclass(eq=False)
class ConnectionLimit(Generic[C]):
    """Open connections of a listener, of each kind the one that is idle for longest first.

    Attributes:
        close: Ends a connection; whoever serves it then removes it.
        most_strangers: The most connections of peers that aren't trusted.
        most_of_source: The most of these from one source.
        most_trusted: The most connections of trusted peers.
        replaces: Whether a new stranger takes the place of an idle one, as is right where the first
            message of a peer can make it trusted. Otherwise it is refused.
    """

    close: Callable[[C], object]
    most_strangers: int = 64
    most_of_source: int = 64
    most_trusted: int = 256
    replaces: bool = True
    refused: int = field(default=0, init=False)
    """Number of connections that were refused or closed for others."""
    _sources: dict[C, str] = field(default_factory=dict, init=False)
    _strangers: dict[str, dict[C, None]] = field(default_factory=dict, init=False)
    """Strangers by source, idle or not."""
    _trusted: dict[C, None] = field(default_factory=dict, init=False)
    _busy: set[C] = field(default_factory=set, init=False)

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._sources))

    def add(self, connection: C, source: str = "", *, trusted: bool = False) -> bool:
        """Keep a new connection, if there is a place for it.

        Args:
            source: Origin of the connection: strangers of one source have a limit of their own.
            trusted: Whether the connection's peer is trusted already.

        Returns:
            Whether it is kept.
        """
        admitted = self._admit_trusted() if trusted else self._admit_stranger(source)
        if not admitted:
            self.refused += 1
            return False
        self._sources[connection] = source
        (self._trusted if trusted else self._strangers.setdefault(source, {}))[connection] = None
        return True

    def begin_request(self, connection: C, *, trusted: bool = True) -> bool:
        """Keep a connection while its request is served, and trust its peer from now on.

        Args:
            trusted: Whether the request makes its peer trusted.

        Returns:
            Whether the request may be served; not if too many others are being served.
        """
        if connection not in self._sources:
            return False
        if trusted and connection not in self._trusted:
            if not self._admit_trusted():
                return False
            self._forget_stranger(connection)
            self._trusted[connection] = None
        self._busy.add(connection)
        return True

    def end_request(self, connection: C) -> None:
        """Regard a connection as idle, since its response has been sent."""
        self._busy.discard(connection)
        if connection in self._trusted:
            self._trusted[connection] = self._trusted.pop(connection)

    def remove(self, connection: C) -> None:
        """Forget a connection."""
        self._busy.discard(connection)
        if connection in self._trusted:
            del self._trusted[connection], self._sources[connection]
        elif connection in self._sources:
            self._forget_stranger(connection)
            del self._sources[connection]

    def _admit_trusted(self) -> bool:
        is_free = len(self._trusted) < self.most_trusted
        return is_free or (self.replaces and self._evict(self._trusted))

    def _admit_stranger(self, source: str) -> bool:
        of_source = self._strangers.get(source, {})
        is_full = sum(map(len, self._strangers.values())) >= self.most_strangers
        if len(of_source) < self.most_of_source and not is_full:
            return True
        if not self.replaces:
            return False
        return self._evict(of_source) if len(of_source) >= self.most_of_source else self.make_room()

    def make_room(self) -> bool:
        """Close an idle stranger's connection, of the source with most; return whether one was."""
        return self._evict(max(self._strangers.values(), key=len, default={}))

    def _evict(self, connections: dict[C, None]) -> bool:
        """Close the connection that is idle for longest; return whether there is one."""
        idle = next((open_ for open_ in connections if open_ not in self._busy), None)
        if idle is None:
            return False
        self.refused += 1
        self.remove(idle)
        self.close(idle)
        return True

    def _forget_stranger(self, connection: C) -> None:
        source = self._sources[connection]
        del self._strangers[source][connection]
        if not self._strangers[source]:
            del self._strangers[source]
