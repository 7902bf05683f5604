"""All data connections of an agent, and the port where peers open theirs."""

from __future__ import annotations

import socket
from collections.abc import Callable

from moefabric.agents.engine import wire
from moefabric.agents.engine.incoming import IncomingConnection
from moefabric.agents.engine.outgoing import OutgoingConnection
from moefabric.agents.engine.relays import Relay
from moefabric.agents.engine.requests import RefusedError, os_error_text
from moefabric.agents.engine.resources import DataConnection, Resources
from moefabric.agents.engine.sockets import Destination, set_congestion_control
from moefabric.agents.engine.transfers import Send
from moefabric.runtime.event_loop import IN, NOW
from moefabric.runtime.listener import Listener

GREETING_NS = 20_000_000_000  # how long a connection may take to bring its greeting


class UnnamedConnection(DataConnection):
    """A connection whose greeting makes it an incoming one, or one of a relay."""

    def __init__(self, resources: Resources, sock: socket.socket, source: str) -> None:
        super().__init__(resources)
        self.sock = sock
        self.deadline = self.loop.call_at(NOW() + GREETING_NS, self.refuse)
        self.greeting, self.size = b"", wire.GREETING.size  # what has come, and what is to come
        resources.unnamed.add(self, source)
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
        self.size = wire.greeting_size(self.greeting)
        if not self.size:
            self.refuse()
        elif len(self.greeting) == self.size:
            self._greeted()

    def _greeted(self) -> None:
        """Hand the socket over; the sender sends nothing before it has an answer."""
        resources, greeting = self.resources, wire.parse_greeting(self.greeting)
        if greeting is None or not greeting.admits(resources.name, resources.secret):
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
        self.resources.unnamed.remove(self)


class Connections:
    """The data port, and outgoing connections by peer and path."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.listeners: dict[str, Listener] = {}
        self.outgoing: dict[tuple[str, str], OutgoingConnection] = {}

    def listen(self, addresses: list[str], congestion: str = "") -> dict[str, int]:
        """Open data ports at addresses, unless they are open; return the port of each.

        Args:
            congestion: TCP congestion control of the connections that arrive; with DCTCP, both ends
                have to choose it (RFC 8257, section 3.2). Empty for the system's.
        """
        listeners = {address: self._listener(address) for address in addresses}
        for listener in listeners.values() if congestion else ():
            set_congestion_control(listener.sock, congestion)
        return {address: listener.sock.getsockname()[1] for address, listener in listeners.items()}

    def _listener(self, address: str) -> Listener:
        if address not in self.listeners:
            sock = self.resources.network.tcp_socket(address)
            try:
                sock.bind((address, 0))
                sock.listen(1024)
            except OSError as error:
                sock.close()
                why = os_error_text(error)
                raise RefusedError(
                    f"can't listen on {address}: {why}: give an address of this server's own NICs"
                ) from error
            loop = self.resources.loop
            self.listeners[address] = Listener(loop, sock, self._accepted, self.make_room)
        return self.listeners[address]

    def open(self, destination: Destination) -> OutgoingConnection:
        """Open a connection; it replaces an earlier one to the same peer by the same path."""
        key = destination.peer, destination.path
        earlier = self.outgoing.pop(key, None)
        if earlier is not None:
            earlier.lose("replaced by a newer one")
        if not destination.relay:
            self.resources.destinations[destination.peer] = destination
        self.outgoing[key] = connection = OutgoingConnection(self.resources, destination)
        return connection

    def open_all(
        self,
        destinations: list[Destination],
        deadline_ns: int,
        on_settled: Callable[[list[OutgoingConnection]], object],
    ) -> None:
        """Open connections; those that are not up by the deadline are closed.

        Args:
            on_settled: Called with the connections when all are up or lost.
        """
        connections = [self.open(destination) for destination in destinations]
        waiting = {out for out in connections if out.state != "lost"}

        def settled(connection: OutgoingConnection) -> None:
            if connection in waiting:
                waiting.remove(connection)
                if not waiting:
                    on_settled(connections)

        def end() -> None:
            for connection in list(waiting):
                connection.lose(f"still {connection.state} at the deadline")

        for connection in waiting:
            connection.on_settled = settled
        self.resources.loop.call_at(deadline_ns, end)
        if not waiting:
            on_settled(connections)

    def prepare(self, send: Send, start_ns: int) -> None:
        """Do what can be done for a transfer before its start on the monotonic clock."""
        connection = self.outgoing.get((send.peer, send.path))
        if connection is not None:
            connection.prepare(send, start_ns)

    def send(self, send: Send) -> None:
        """Send a transfer by its connection; without one, the transfer fails."""
        connection = self.outgoing.get((send.peer, send.path))
        if connection is None:
            send.end(f"no connection to {send.peer} by {send.path}; connect first")
        else:
            connection.send(send)

    def abandon(self, send: Send) -> None:
        """Give up a transfer; its connection is closed if it has begun."""
        connection = self.outgoing.get((send.peer, send.path))
        if connection is not None:
            connection.abandon(send)

    def close(self) -> None:
        """Close every connection and the data port."""
        resources = self.resources
        opened = [*resources.incoming.values(), *resources.unnamed, *resources.relays.values()]
        for connection in [*self.outgoing.values(), *opened]:
            connection.lose("closed by request")
        self.outgoing.clear()
        for listener in self.listeners.values():
            listener.close()
        self.listeners.clear()

    def _accepted(self, sock: socket.socket) -> None:
        """Await the greeting of a new connection."""
        try:
            source = sock.getpeername()[0]
        except OSError:  # the peer has gone
            sock.close()
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        UnnamedConnection(self.resources, sock, source)

    def make_room(self) -> bool:
        """Close the oldest connection without a greeting; return whether there was one."""
        return self.resources.unnamed.make_room()
