"""Connections: those a server has opened, those its peers opened, and the port where they do."""

from __future__ import annotations

import socket
from collections.abc import Callable

from agents.engine.arrivals import Arrivals
from agents.engine.errors import RefusedError, said
from agents.engine.incoming import Incoming
from agents.engine.loop import IN
from agents.engine.outgoing import Outgoing
from agents.engine.server import Server
from agents.engine.ways import Way


class Connections:
    """All data connections of one server, by peer and path."""

    def __init__(self, server: Server, arrivals: Arrivals) -> None:
        self.server, self.arrivals = server, arrivals
        self.listening: socket.socket | None = None
        self.outgoing: dict[tuple[str, str], Outgoing] = {}
        self.incoming: dict[tuple[str, str], Incoming] = {}
        self.strangers: set[Incoming] = set()

    def listen(self, address: str, port: int) -> tuple[str, int]:
        """Open the data port; port 0 lets the kernel choose. Asked again, the same port is told."""
        if self.listening is None:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((address, port))
                sock.listen(1024)
            except OSError as error:
                sock.close()
                raise RefusedError(f"can't listen on {address} port {port}: {said(error)}") from error
            self.listening = sock
            self.server.loop.watch(sock.fileno(), IN, self._accept)
        where = self.listening.getsockname()
        if where[0] != address or port not in (0, where[1]):
            raise RefusedError(
                f"can't listen on {address} port {port}: listens on {where[0]} port {where[1]} already"
            )
        return where[0], where[1]

    def open(self, way: Way, congestion: str, sndbuf: int, settled: Callable[[Outgoing], None]) -> Outgoing:
        """Open a connection, in the place of the one that goes that way already."""
        old = self.outgoing.pop((way.peer, way.path), None)
        if old is not None:
            old.lose("replaced by a newer one")
        connection = Outgoing(self.server, way, congestion, sndbuf, settled)
        self.outgoing[way.peer, way.path] = connection
        return connection

    def close(self) -> None:
        """Close every connection and the data port."""
        for out in list(self.outgoing.values()):
            out.lose("closed by request")
        for into in [*self.incoming.values(), *self.strangers]:
            into.lose("closed by request")
        self.outgoing.clear()
        if self.listening is not None:
            self.server.loop.forget(self.listening.fileno())
            self.listening.close()
            self.listening = None

    def _accept(self, _mask: int) -> None:
        assert self.listening is not None
        try:
            sock, _ = self.listening.accept()
        except BlockingIOError:
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.strangers.add(Incoming(self.server, self.arrivals, sock, self._up, self._lost))

    def _up(self, connection: Incoming) -> None:
        """A peer has said who it is."""
        self.strangers.discard(connection)
        old = self.incoming.get((connection.peer, connection.path))
        if old is not None:
            old.lose("replaced by a newer one")
        self.incoming[connection.peer, connection.path] = connection

    def _lost(self, connection: Incoming, why: str) -> None:
        """A peer's connection is gone; what was expected by it won't come."""
        self.strangers.discard(connection)
        came_by = (connection.peer, connection.path)
        if self.incoming.get(came_by) is not connection:
            return
        del self.incoming[came_by]
        under_way = connection.receive
        if under_way is not None and connection.wrong:
            self.server.counts["corrupt"] += 1
            under_way.end(connection.wrong)
        waiting = self.arrivals.by(*came_by)
        for receive in [under_way, *waiting] if under_way is not None else waiting:
            come = f"{receive.moved} of {receive.bytes} bytes had come"
            receive.end(f"connection from {receive.peer} by {receive.path}: {why}; {come}")
