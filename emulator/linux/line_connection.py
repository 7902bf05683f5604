"""Non-blocking connection that exchanges lines of JSON over a Unix socket."""

import json
import logging
import selectors
import socket
from collections.abc import Callable
from typing import Any, Final

from moefabric.emulator.linux.event_loop import EventLoop

log = logging.getLogger(__name__)

MAX_BUFFER_BYTES: Final = 8 << 20
"""Limit of an incomplete line and of unsent output; the connection closes when it is exceeded."""


class LineConnection:
    """One end of a line-based connection, served by an event loop."""

    def __init__(
        self,
        sock: socket.socket,
        loop: EventLoop,
        on_line: Callable[[bytes], None],
        on_close: Callable[[], None],
    ) -> None:
        """Take over a connected socket; `start` begins to read it.

        Args:
            sock: the socket, which the connection closes.
            loop: calls back when the socket is ready.
            on_line: called with each line, without its end. If it raises an exception, the
                connection closes: ValueError, KeyError, TypeError and RecursionError tell of an
                invalid line.
            on_close: called once, when the connection closes.
        """
        self._sock, self._loop, self._on_line, self._on_close = sock, loop, on_line, on_close
        self._received, self._unsent = bytearray(), bytearray()
        self._closed = False

    def start(self) -> None:
        """Begin to read, and send queued output."""
        self._sock.setblocking(False)
        self._flush()

    def send(self, message: Any) -> bool:
        """Send a value as a line of JSON; return whether the connection is still open."""
        if not self._closed:
            self._unsent += json.dumps(message).encode() + b"\n"
            self._flush()
        return not self._closed

    def close(self) -> None:
        """Close the connection; a second call has no effect."""
        if self._closed:
            return
        self._closed = True
        self._loop.watch(self._sock, 0, self._on_ready)
        self._sock.close()
        self._on_close()

    def _on_ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush()
        if events & selectors.EVENT_READ and not self._closed:
            self._receive()

    def _receive(self) -> None:
        try:
            part = self._sock.recv(64 * 1024)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        self._received += part
        if not part or len(self._received) > MAX_BUFFER_BYTES:
            self.close()
            return
        *lines, self._received = self._received.split(b"\n")
        for line in lines:
            try:
                self._on_line(bytes(line))
            except (ValueError, KeyError, TypeError, RecursionError):
                self.close()
            except Exception:  # a defect costs one connection, not the others
                log.exception("a line of %d bytes failed", len(line))
                self.close()
            if self._closed:
                return

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if len(self._unsent) > MAX_BUFFER_BYTES:
            self.close()
            return
        events = selectors.EVENT_READ | selectors.EVENT_WRITE * bool(self._unsent)
        self._loop.watch(self._sock, events, self._on_ready)
