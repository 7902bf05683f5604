"""Serves emulated optical switches in a thread, for tests without a fabric."""

import socket

from moefabric.emulator.ocs.server import OcsServer
from moefabric.runtime.event_loop import IN


def serve_until(server: OcsServer, stop: socket.socket) -> None:
    """Serve until the loop is stopped, or `stop` is readable or closed by its peer."""
    server.loop.watch(stop.fileno(), IN, lambda _events: server.loop.stop())
    try:
        server.start()
        server.loop.run()
    finally:
        server.close()
        server.loop.close()
