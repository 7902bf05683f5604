"""Control channels: JSON lines in and out."""

from __future__ import annotations

import select
from collections.abc import Callable

from moefabric.runtime.event_loop import NOW, CallbackOwner, Loop
from moefabric.runtime.line_channel import LineChannel

LONGEST_LINE = 64 * 1024 * 1024


class ControlChannel(LineChannel, CallbackOwner):
    """A control channel over a pair of descriptors, or one for both directions.

    Args:
        fds: The descriptors to read requests from, and to write replies and events to.
    """

    def __init__(
        self,
        loop: Loop,
        fds: tuple[int, int],
        on_line: Callable[[ControlChannel, bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(loop, fds, lambda line: on_line(self, line), on_end, LONGEST_LINE)
        self.heard_ns = NOW()
        self.start()

    def receive(self) -> None:
        """Read requests, and note when they came."""
        self.heard_ns = NOW()
        super().receive()

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
            self.close()
            return
        self.loop.call_at(due_ns, lambda: self.end_in_silence(silence_ns))

    def callback_failed(self, error: Exception) -> None:
        """Report a programming error that occurred while a line was handled."""
        self.send({"event": "fault", "error": repr(error)})
