"""Connections that peers opened and whose greetings have still to come."""

from __future__ import annotations

import socket

from moefabric.agents.engine import wire
from moefabric.agents.engine.clock import NOW
from moefabric.agents.engine.incoming import IncomingConnection
from moefabric.agents.engine.relays import Relay
from moefabric.agents.engine.requests import RefusedError
from moefabric.agents.engine.resources import DataConnection, Resources
from moefabric.runtime.event_loop import IN

GREETING_NS = 20_000_000_000  # how long a connection may take to bring its greeting


class UnnamedConnection(DataConnection):
    """A connection whose greeting makes it an incoming one, or one of a relay.

    Args:
        resources: Resources that the agent's connections share.
        sock: The connection's socket.
    """

    def __init__(self, resources: Resources, sock: socket.socket) -> None:
        super().__init__(resources)
        self.sock = sock
        self.deadline = self.loop.call_at(NOW() + GREETING_NS, self.refuse)
        self.greeting, self.size = b"", wire.GREETING.size  # what has come, and what is to come
        resources.unnamed[self] = None
        self.watch()

    def watch(self) -> None:
        """Wait for the greeting."""
        self.loop.watch(self.sock.fileno(), IN, self.ready)

    def transfer(self, _mask: int) -> None:
        """Read the greeting and no more, since what follows is not for this connection."""
        data = self.sock.recv(self.size - len(self.greeting))
        if not data:
            self.lose("closed by the peer")
        self.greeting += data
        if len(self.greeting) < self.size:
            return
        try:
            self.size = wire.greeting_size(self.greeting)
        except RefusedError:
            self.refuse()
            return
        if len(self.greeting) == self.size:
            self._greeted()

    def _greeted(self) -> None:
        """Hand the socket over; the sender sends nothing before it has an answer."""
        resources = self.resources
        try:
            greeting = wire.parse_greeting(self.greeting)
            greeting.check(resources.name, resources.secret)
        except RefusedError:
            self.send_bytes(wire.ACKNOWLEDGEMENT.pack(0, 0, False, 0))
            self.refuse()
            return
        kind = Relay if greeting.relay == resources.name else IncomingConnection
        kind(resources, self.sock, greeting)
        self.closed = True
        self._forget()

    def refuse(self) -> None:
        """Close a connection without a proper greeting."""
        self.resources.counters["refused"] += not self.closed
        self.lose("refused")

    def lose(self, _why: str) -> None:
        """Close the connection."""
        if self.close():
            self._forget()

    def _forget(self) -> None:
        self.deadline.cancel()
        del self.resources.unnamed[self]
