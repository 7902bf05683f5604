"""Sockets on which a switch speaks OpenFlow with its controller and management tools."""

import errno
import os
import selectors
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from moefabric.core.errors import FabricError
from moefabric.emulator.openflow_switch.agent.session import ControllerSession

_READ_BYTES: Final = 1 << 16  # larger buffers would be mapped and unmapped for each read


class OpenFlowConnection:
    """A session and its non-blocking socket.

    Unread output is kept. While it is, no more input is read from the peer.
    """

    def __init__(
        self,
        sock: socket.socket,
        session: ControllerSession,
        selector: selectors.BaseSelector,
        ready: Callable[["OpenFlowConnection"], None],
    ) -> None:
        """Take ownership of the socket; `ready` is called when it can be read or written."""
        self.sock, self.session = sock, session
        self._selector, self._ready = selector, ready
        self._events, self._awaits_input = 0, False

    def receive(self, now_ns: int) -> str | None:
        """Read and process input; return why the connection has ended, if it has."""
        self._awaits_input = False
        try:
            received = self.sock.recv(_READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError as fault:
            return fault.strerror or str(fault)
        if not received:
            return "hung up"
        self.session.receive(received, now_ns)
        return None

    def update(self, now_ns: int) -> str | None:
        """Send output and select the next events; return why the connection has ended, if so."""
        try:
            self.session.transmit(self.sock.send, now_ns)
        except (BlockingIOError, ssl.SSLWantWriteError):
            pass
        except ssl.SSLWantReadError:  # TLS waits for the peer's part of the handshake
            self._awaits_input = True
        except OSError as fault:
            return fault.strerror or str(fault)
        if self.session.is_over:
            return "the session is over"
        reads = self.session.wants_input or self._awaits_input
        writes = bool(self.session.unsent_bytes) and not self._awaits_input
        events = selectors.EVENT_READ * reads | selectors.EVENT_WRITE * writes
        if events != self._events:
            select = self._selector.modify if self._events else self._selector.register
            select(self.sock, events, lambda: self._ready(self))
            self._events = events
        return None

    def close(self) -> None:
        """End the session and close the socket; unsent output is lost."""
        if self._events:
            with suppress(KeyError):
                self._selector.unregister(self.sock)
        self._events = 0
        self.session.close()
        self.sock.close()


def connecting_socket(controller: tuple[str, int]) -> socket.socket:
    """Return a socket that is connecting to a controller.

    Raises:
        OSError: If the connection fails at once.
    """
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    status = sock.connect_ex(controller)
    if status not in {0, errno.EINPROGRESS}:
        sock.close()
        raise OSError(status, os.strerror(status))
    return sock


def management_listener(path: Path) -> socket.socket:
    """Listen on a Unix socket for OpenFlow tools of this user and root.

    The new socket replaces a socket that an earlier process left.

    Raises:
        FabricError: If the socket can't be created.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        os.fchmod(sock.fileno(), 0o600)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_socket():
            path.unlink()
        sock.bind(str(path))
        sock.listen()
    except OSError as fault:
        sock.close()
        reason = fault.strerror or fault
        raise FabricError(f"{path}: no socket for OpenFlow tools: {reason}") from fault
    return sock


def close_listener(sock: socket.socket) -> None:
    """Close a management listener and remove its socket."""
    path = Path(sock.getsockname())
    sock.close()
    with suppress(FileNotFoundError):
        path.unlink()
