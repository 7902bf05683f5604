"""Control channels: JSON lines in and out."""

from __future__ import annotations

import fcntl
import json
import os
import select
from collections.abc import Callable
from typing import Any

from moefabric.agents.engine.clock import NOW
from moefabric.agents.engine.loop import BROKEN, IN, OUT, CallbackOwner, Loop

LONGEST_LINE = 64 * 1024 * 1024


class ControlChannel(CallbackOwner):
    """A control channel over a pair of descriptors, or one for both directions.

    Args:
        loop: The event loop.
        reads: Descriptor to read requests from.
        writes: Descriptor to write replies and events to.
        on_line: Called with each line.
        on_end: Called when the channel ends.
    """

    def __init__(
        self,
        loop: Loop,
        reads: int,
        writes: int,
        on_line: Callable[[ControlChannel, bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        self.loop, self.reads, self.writes = loop, reads, writes
        self.on_line, self.on_end = on_line, on_end
        self.inbox, self.outbox = bytearray(), bytearray()
        self.open = True
        self.heard_ns = NOW()
        for fd in (reads, writes):
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NONBLOCK)
        loop.watch(reads, IN, self.ready)

    def ready(self, mask: int) -> None:
        """Read or write, as far as the descriptors are ready for it."""
        try:
            if mask & OUT:
                self._flush()
            if mask & (IN | BROKEN) and self.open:
                data = os.read(self.reads, 1 << 20)
                if not data:
                    self._close()
                self.inbox += data
                self.heard_ns = NOW()
        except BlockingIOError:
            return
        except OSError:
            self._close()
        *lines, rest = self.inbox.split(b"\n")
        self.inbox = rest
        if len(rest) > LONGEST_LINE:
            self._close()
        for line in lines:
            if line.strip():
                self.on_line(self, bytes(line))

    def end_in_silence(self, silence_ns: int) -> None:
        """End the channel once nothing has arrived for a time: the other side is gone.

        A cut cable leaves the connection open at this end. What has arrived but wasn't read, while
        the agent was busy or stopped, counts.
        """
        if not self.open:
            return
        if NOW() - self.heard_ns < silence_ns:
            due_ns = self.heard_ns + silence_ns
        elif select.select([self.reads], [], [], 0)[0]:
            due_ns = NOW() + silence_ns
        else:
            self._close()
            return
        self.loop.call_at(due_ns, lambda: self.end_in_silence(silence_ns))

    def send(self, message: dict[str, Any]) -> None:
        """Send one line."""
        if self.open:
            self.outbox += json.dumps(message).encode() + b"\n"
            self._flush()

    def _flush(self) -> None:
        try:
            while self.outbox:
                del self.outbox[: os.write(self.writes, self.outbox)]
        except BlockingIOError:
            pass
        except OSError:
            self._close()
            return
        mask = (OUT if self.outbox else 0) | (IN if self.writes == self.reads else 0)
        if mask:
            self.loop.watch(self.writes, mask, self.ready)
        else:
            self.loop.forget(self.writes)

    def _close(self) -> None:
        if self.open:
            self.open = False
            self.loop.forget(self.reads)
            self.loop.forget(self.writes)
            self.on_end()

    def callback_failed(self, error: Exception) -> None:
        """Report a programming error that occurred while a line was handled."""
        self.send({"event": "fault", "error": repr(error)})
