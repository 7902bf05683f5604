"""Client connections: replies are sent in order; input is read while the client reads replies."""

import contextlib
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable

from moefabric.emulator.ocs.front_end import ReplySlot, Session
from moefabric.runtime.event_loop import BROKEN, IN, OUT, EventLoop

log = logging.getLogger(__name__)

RECEIVE_BYTES = 4096
"""The server reads so much of a client in turn, so that no flood of requests delays others."""
UNREAD_BYTES = 64 * 1024
"""The server stops reading from a client that leaves this many bytes of replies unread."""
MAX_UNREAD_BYTES = 1 << 20
"""The server disconnects a client that leaves this many bytes of replies unread."""
MAX_SLOTS = 256
"""The server stops reading from a client with this many pending replies."""
LINGER_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER that makes `close` send a TCP reset."""


class ClientConnection:
    """Server side of a client's connection; implements `Client` for the session."""

    def __init__(
        self,
        sock: socket.socket,
        loop: EventLoop,
        on_closed: Callable[["ClientConnection"], None],
        receive_bytes: Callable[[], int] = lambda: RECEIVE_BYTES,
    ) -> None:
        """Use a connected socket.

        Args:
            on_closed: called once, when the socket is closed.
            receive_bytes: returns how much the server reads at most in this turn.
        """
        self._sock, self._loop, self._on_closed = sock, loop, on_closed
        self._receive_bytes = receive_bytes
        self.peer = "{}:{}".format(*sock.getpeername()[:2])
        """The client's address: `198.18.0.1:40312`."""
        self.has_sent = False
        """Whether the client has sent anything."""
        self._slots: deque[ReplySlot] = deque()
        self._unsent = bytearray()
        self._closing = self._muted = self._closed = False
        self.accepts_input: Callable[[], bool] = lambda: True
        """Called when bytes arrive; if it returns False, the session does not get them."""
        self.session: Session

    def start(self, session: Session) -> None:
        """Pass received bytes to a session from now on."""
        self.session = session
        self._watch()

    def reserve_reply(self) -> ReplySlot:
        """Reserve the next place among the replies."""
        slot = ReplySlot(self._send_filled)
        self._slots.append(slot)
        return slot

    def send(self, data: bytes) -> None:
        """Send at once, before pending replies."""
        if self._closed:
            return
        self._unsent += data
        if len(self._unsent) > MAX_UNREAD_BYTES:
            self.reset()
        else:
            self._flush()

    def close(self) -> None:
        """Close after all replies have been sent."""
        self._closing = True
        if not self._closed:
            self._flush()

    def reset(self) -> None:
        """Close with a TCP reset, and drop unsent output."""
        if not self._closed:
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
            self.disconnect()

    def mute(self) -> None:
        """Drop all output from now on."""
        self._muted = True

    def disconnect(self) -> None:
        """Close the socket at once. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._loop.forget(self._sock.fileno())
        self._sock.close()
        self._slots.clear()
        self.session.end()
        self._on_closed(self)

    def _send_filled(self) -> None:
        if self._closed:
            return
        while self._slots and self._slots[0].reply is not None:
            self._unsent += self._slots.popleft().reply or b""
        self._flush()

    def _on_ready(self, events: int) -> None:
        if events & OUT:
            self._flush()
        if events & (IN | BROKEN) and not self._closed:
            self._read()

    def _read(self) -> None:
        try:
            data = self._sock.recv(self._receive_bytes())
        except BlockingIOError:
            return
        except OSError:
            self.disconnect()
            return
        if not data:
            self.close()  # the client may still read its replies
        elif self.accepts_input():
            self.has_sent = True
            try:
                self.session.receive(data)
            except Exception:  # a bug in one session must not end others
                log.exception("%s: the session failed", self.peer)
                self.reset()
            self._watch()

    def _flush(self) -> None:
        """Send as much as the socket accepts; disconnect if nothing is left to do."""
        if self._muted:
            self._unsent.clear()
        if self._unsent:
            try:
                del self._unsent[: self._sock.send(self._unsent)]
            except BlockingIOError:
                pass
            except OSError:
                self.disconnect()
                return
        if self._closing and not self._unsent and not self._slots:
            self.disconnect()
        else:
            self._watch()

    def _watch(self) -> None:
        if self._closed:
            return
        unread = len(self._unsent) + sum(len(slot.reply or b"") for slot in self._slots)
        reads = not self._closing and unread < UNREAD_BYTES and len(self._slots) < MAX_SLOTS
        if events := IN * reads | OUT * bool(self._unsent):
            self._loop.watch(self._sock.fileno(), events, self._on_ready)
        else:
            self._loop.forget(self._sock.fileno())
