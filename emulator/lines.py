"""Lines over a unix socket, both ways, in one thread that waits for many."""

import json
import selectors
import socket
from collections.abc import Callable
from typing import Any, Final

from emulator.loop import Loop

MOST_BYTES: Final = 8 << 20
"""Who leaves so much unread, or sends a line so long, is hung up on."""


class Lines:
    """One end of a connection that speaks by the line."""

    def __init__(
        self, sock: socket.socket, loop: Loop, heard: Callable[[bytes], None], gone: Callable[[], None]
    ) -> None:
        """`heard` gets each line without its end; a ValueError or KeyError of it ends the connection. `gone` is called once."""
        self._sock, self._loop, self._heard, self._gone = sock, loop, heard, gone
        self._unended, self._unsent = bytearray(), bytearray()
        self._closed = False

    def begin(self) -> None:
        """Listen from now on; what was to be sent goes."""
        self._sock.setblocking(False)
        self._flush()

    def send(self, told: Any) -> bool:
        """Send a value as a line of JSON; whether there is anybody."""
        if not self._closed:
            self._unsent += json.dumps(told).encode() + b"\n"
            self._flush()
        return not self._closed

    def close(self) -> None:
        """Hang up. Twice is no fault."""
        if self._closed:
            return
        self._closed = True
        self._loop.watch(self._sock, 0, self._ready)
        self._sock.close()
        self._gone()

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush()
        if events & selectors.EVENT_READ and not self._closed:
            self._hear()

    def _hear(self) -> None:
        try:
            part = self._sock.recv(64 * 1024)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        self._unended += part
        if not part or len(self._unended) > MOST_BYTES:
            self.close()
            return
        *lines, self._unended = self._unended.split(b"\n")
        for line in lines:
            try:
                self._heard(bytes(line))
            except (ValueError, KeyError, TypeError):
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
        if len(self._unsent) > MOST_BYTES:
            self.close()
            return
        self._loop.watch(
            self._sock, selectors.EVENT_READ | selectors.EVENT_WRITE * bool(self._unsent), self._ready
        )
