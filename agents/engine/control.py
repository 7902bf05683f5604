"""Control channels: lines of JSON, in and out."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from typing import Any

from agents.engine.loop import BROKEN, IN, OUT, Loop, Watcher

LONGEST_LINE = 64 * 1024 * 1024


class Control(Watcher):
    """A control channel: `take` is given each line that comes, `ended` is called at its end."""

    def __init__(
        self,
        loop: Loop,
        reads: int,
        writes: int,
        take: Callable[[Control, bytes], None],
        ended: Callable[[], None],
    ) -> None:
        self.loop, self.reads, self.writes = loop, reads, writes
        self.take, self.ended = take, ended
        self.inbox, self.outbox = bytearray(), bytearray()
        self.open = True
        for fd in (reads, writes):
            fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NONBLOCK)
        loop.watch(reads, IN, self.ready)

    def ready(self, mask: int) -> None:
        """Something came, or more can be said."""
        try:
            if mask & OUT:
                self.flush()
            if mask & (IN | BROKEN) and self.open:
                came = os.read(self.reads, 1 << 20)
                if not came:
                    self.close()
                self.inbox += came
        except BlockingIOError:
            return
        except OSError:
            self.close()
        *lines, rest = self.inbox.split(b"\n")
        self.inbox = rest
        if len(rest) > LONGEST_LINE:
            self.close()
        for line in lines:
            if line.strip():
                self.take(self, bytes(line))

    def say(self, words: dict[str, Any]) -> None:
        """Say one line."""
        if self.open:
            self.outbox += json.dumps(words).encode() + b"\n"
            self.flush()

    def flush(self) -> None:
        try:
            while self.outbox:
                del self.outbox[: os.write(self.writes, self.outbox)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        mask = OUT if self.outbox else 0
        if self.writes == self.reads:
            self.loop.watch(self.writes, IN | mask, self.ready)
        elif mask:
            self.loop.watch(self.writes, mask, self.ready)
        else:
            self.loop.forget(self.writes)

    def close(self) -> None:
        if self.open:
            self.open = False
            self.loop.forget(self.reads)
            self.loop.forget(self.writes)
            self.ended()

    def fault(self, error: Exception) -> None:
        """Tell what happened while a line was taken."""
        self.say({"event": "fault", "error": repr(error)})
