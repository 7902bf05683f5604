"""Line-based connection over a socket, which closes when its peer sends an invalid line."""

import logging
import socket
from collections.abc import Callable
from typing import Final

from moefabric.runtime.event_loop import EventLoop
from moefabric.runtime.line_channel import LineChannel

log = logging.getLogger(__name__)

MAX_BUFFER_BYTES: Final = 8 << 20
"""Limit of an incomplete line and of unsent output; the connection closes when it is exceeded."""


class LineConnection(LineChannel):
    """End of a line-based connection, which owns the socket."""

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

        def take(line: bytes) -> None:
            try:
                on_line(line)
            except (ValueError, KeyError, TypeError, RecursionError):
                self.close()
            except Exception:  # a defect costs one connection, not the others
                log.exception("a line of %d bytes failed", len(line))
                self.close()

        def end() -> None:
            sock.close()
            on_close()

        super().__init__(loop, (sock.fileno(), sock.fileno()), take, end, MAX_BUFFER_BYTES)
