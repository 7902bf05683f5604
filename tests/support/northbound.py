"""The northbound interface of a controller on loopback, in a thread of its own."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from moefabric.controller.service.controller import Controller
from moefabric.controller.service.http_handler import HttpAccess, NorthboundService, hang_up
from moefabric.controller.southbound.openflow import green
from moefabric.runtime.connection_limit import ConnectionLimit

TOKEN = "5" * 64
TOKEN_FILE = Path("/run/elsewhere/lab/token")


@contextmanager
def served(
    controller: Controller,
    connections: ConnectionLimit[socket.socket] | None = None,
    hosts: frozenset[str] | None = None,
) -> Iterator[tuple[str, int]]:
    """Serve a controller as its process does; yield its address.

    Args:
        controller: The controller, whose token is `TOKEN`.
        connections: The limit of connections; None for the usual one.
        hosts: Addresses that clients may have; None for any.
    """
    bound = SimpleQueue[tuple[str, int]]()
    stop_receiver, stop_sender = socket.socketpair()

    def run() -> None:
        green.start_hub()
        limit = ConnectionLimit(hang_up) if connections is None else connections
        service = NorthboundService(controller, HttpAccess(TOKEN, ("", 0), TOKEN_FILE), limit)
        address = green.serve_connections(("127.0.0.1", 0), "requests", service.serve, hosts=hosts)
        service.access = HttpAccess(TOKEN, address, TOKEN_FILE)
        bound.put(address)
        green.wait_readable(stop_receiver.fileno())

    thread = threading.Thread(target=run, daemon=True)
    with stop_receiver, stop_sender:
        thread.start()
        try:
            yield bound.get(timeout=10)
        finally:
            stop_sender.send(b".")
            thread.join(30)
