"""Listening on Eventlet's one thread: each connection is served by a green thread of its own."""

import socket
from collections.abc import Callable
from contextlib import suppress

from controller.southbound.openflow import shim  # noqa: F401 - it has to come before Eventlet

# isort: split
import eventlet

from moefabric.errors import ControlError


class GreenEvent:
    """Something that happens once, and that a green thread waits for."""

    def __init__(self) -> None:
        self._event = eventlet.Event()

    def set(self) -> None:
        """It has happened. Twice is no fault."""
        if not self._event.ready():
            self._event.send()

    def wait(self, seconds: float) -> bool:
        """Whether it happens within so many seconds."""
        with eventlet.Timeout(seconds, False):
            self._event.wait()
        return bool(self._event.ready())


def listen(
    address: tuple[str, int], what: str, converse: Callable[[socket.socket, tuple[str, int]], object]
) -> None:
    """Serve every connection to `address` from now on. ControlError, saying `what` it was for, if the address is taken."""
    try:
        # Eventlet would share the port (SO_REUSEPORT) with a controller that was left over, and each would get some of the connections.
        listener = eventlet.listen(address, reuse_port=False)
    except OSError as fault:
        raise ControlError(f"{address[0]}:{address[1]}: can't listen for {what}: {fault.strerror}") from fault

    def served(connection: socket.socket, peer: tuple[str, int]) -> None:
        with (
            connection,
            suppress(ConnectionError, TimeoutError),
        ):  # who hangs up in the middle has heard enough
            converse(connection, peer)

    def welcome() -> None:
        while True:
            eventlet.spawn(served, *listener.accept())

    eventlet.spawn(welcome)
