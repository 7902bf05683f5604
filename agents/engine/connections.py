"""All data connections of an agent, the port where peers open theirs, and connect requests."""

from __future__ import annotations

import socket
from typing import Any

from moefabric.agents.engine.control import ControlChannel
from moefabric.agents.engine.incoming import IncomingConnection
from moefabric.agents.engine.loop import IN
from moefabric.agents.engine.outgoing import OutgoingConnection
from moefabric.agents.engine.requests import RefusedError, os_error_text
from moefabric.agents.engine.resources import Resources
from moefabric.agents.engine.tcp import Destination, tcp_socket


class Connections:
    """The data port, and outgoing connections by peer and path."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.listener: socket.socket | None = None
        self.outgoing: dict[tuple[str, str], OutgoingConnection] = {}

    def listen(self, address: str, port: int) -> tuple[str, int]:
        """Open the data port, unless it is open; return its address and number.

        Port 0 lets the kernel choose.
        """
        if self.listener is None:
            sock = tcp_socket(address)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((address, port))
                sock.listen(1024)
            except OSError as error:
                sock.close()
                why = os_error_text(error)
                raise RefusedError(f"can't listen on {address} port {port}: {why}") from error
            self.listener = sock
            self.resources.loop.watch(sock.fileno(), IN, self._accept)
        bound_address, bound_port = self.listener.getsockname()[:2]
        if bound_address != address or port not in (0, bound_port):
            why = f"listens on {bound_address} port {bound_port} already"
            raise RefusedError(f"can't listen on {address} port {port}: {why}")
        return bound_address, bound_port

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

    def close(self) -> None:
        """Close every connection and the data port."""
        for outgoing in list(self.outgoing.values()):
            outgoing.lose("closed by request")
        for incoming in [*self.resources.incoming.values(), *self.resources.unnamed]:
            incoming.lose("closed by request")
        for relay in list(self.resources.relays.values()):
            relay.lose("closed by request")
        self.outgoing.clear()
        if self.listener is not None:
            self.resources.loop.forget(self.listener.fileno())
            self.listener.close()
            self.listener = None

    def _accept(self, _mask: int) -> None:
        assert self.listener is not None
        try:
            sock, _ = self.listener.accept()
        except BlockingIOError:
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        IncomingConnection(self.resources, sock)


class ConnectRequest:
    """A connect request, answered when all its connections are up or lost.

    Args:
        control: The channel of the request.
        name: The agent's server.
        number: The request's number.
        connections: The connections that the request opened; some may be lost already.
    """

    def __init__(
        self, control: ControlChannel, name: str, number: Any, connections: list[OutgoingConnection]
    ) -> None:
        self.control, self.name, self.number = control, name, number
        self.connections = connections
        self.waiting = {out for out in connections if out.state != "lost"}
        for connection in self.waiting:
            connection.on_settled = self._connection_settled
        if not self.waiting:
            self._reply()

    def deadline(self) -> None:
        """Close the connections that are not up by the deadline."""
        for connection in list(self.waiting):
            connection.lose(f"still {connection.state} at the deadline")

    def _connection_settled(self, connection: OutgoingConnection) -> None:
        if connection in self.waiting:
            self.waiting.remove(connection)
            if not self.waiting:
                self._reply()

    def _reply(self) -> None:
        down = [f"{out.destination}: {out.why}" for out in self.connections if out.state != "up"]
        reply: dict[str, Any] = {"id": self.number, "ok": not down}
        if down:
            reply["error"] = f"{self.name}: no connection to " + "; ".join(down)
        self.control.send({**reply, "paths": [out.facts() for out in self.connections]})
