"""Non-blocking channel that exchanges lines of JSON, served by an event loop.

The module travels with the agent, so it needs the standard library of Python 3.8 only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from moefabric.runtime.event_loop import BROKEN, IN, OUT, Loop

_READ_BYTES = 1 << 16
"""Small enough for the heap: a larger buffer is mapped and unmapped for each read."""


class LineChannel:
    """Channel over two descriptors, or over one for both directions.

    Args:
        loop: The event loop.
        fds: The descriptor to read from and the one to write to.
        on_line: Called with each line that isn't blank, without its end.
        on_end: Called once, when the channel ends.
        limit_bytes: Largest incomplete line, and largest unsent output; the channel ends when one
            of them exceeds it.
    """

    def __init__(
        self,
        loop: Loop,
        fds: tuple[int, int],
        on_line: Callable[[bytes], None],
        on_end: Callable[[], None],
        limit_bytes: int,
    ) -> None:
        self.loop, self.limit_bytes = loop, limit_bytes
        self.reads, self.writes = fds
        self.on_line, self.on_end = on_line, on_end
        self.inbox, self.outbox = bytearray(), bytearray()
        self.open = True

    def start(self) -> None:
        """Begin to read, and send queued output."""
        for fd in (self.reads, self.writes):
            os.set_blocking(fd, False)
        self.loop.watch(self.reads, IN, self.ready)
        self._flush()

    def send(self, message: Any) -> bool:
        """Send a value as a line of JSON; return whether the channel is still open."""
        if self.open:
            self.outbox += json.dumps(message).encode() + b"\n"
            self._flush()
        return self.open

    def close(self) -> None:
        """End the channel. Idempotent."""
        if self.open:
            self.open = False
            self.loop.forget(self.reads)
            self.loop.forget(self.writes)
            self.on_end()

    def ready(self, events: int) -> None:
        """Read or write, as far as the descriptors are ready."""
        if events & OUT:
            self._flush()
        if events & (IN | BROKEN) and self.open:
            self.receive()

    def receive(self) -> None:
        """Read what has arrived, and handle the complete lines."""
        try:
            data = os.read(self.reads, _READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, self.inbox = (self.inbox + data).split(b"\n")
        if not data or len(self.inbox) > self.limit_bytes:
            self.close()
        for line in lines:
            if self.open and line.strip():
                self.on_line(bytes(line))

    def _flush(self) -> None:
        try:
            while self.outbox:
                del self.outbox[: os.write(self.writes, self.outbox)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        mask = (OUT if self.outbox else 0) | (IN if self.writes == self.reads else 0)
        if len(self.outbox) > self.limit_bytes:
            self.close()
        elif mask:
            self.loop.watch(self.writes, mask, self.ready)
        else:
            self.loop.forget(self.writes)
