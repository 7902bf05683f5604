"""Publishes a switch's events to local processes, and forwards their requests to the switch."""

import itertools
import json
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from moefabric.emulator.linux.line_connection import LineConnection
from moefabric.runtime.event_loop import EventLoop

MAX_EVENTS: Final = 1000
"""Number of events that are stored for later subscribers."""
TIMEOUT_NS: Final = 5_000_000_000
MAX_CALLERS: Final = 32
MAX_REQUEST_BYTES: Final = 64 * 1024
MAX_BRACKETS: Final = 64
"""Limit of the brackets in a request, and so of its depth."""
MAX_PENDING: Final = 64
"""Limit of the requests, of all callers, that the switch's process hasn't answered."""

Forward = Callable[[dict[str, Any]], bool]
"""Sends a request to the switch's process; returns False if there is no process."""


class EventPublisher:
    """Serves the callers of a switch's control socket.

    A caller sends one line of JSON: `{"do": "events", "follow": true}`, or a request for the
    switch's process. `{"end": true}` follows the stored events.
    """

    def __init__(self, loop: EventLoop, forward: Forward) -> None:
        self._loop, self._forward = loop, forward
        self._events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        self._callers: set[LineConnection] = set()
        self._subscribers: set[LineConnection] = set()
        self._pending: dict[int, LineConnection] = {}
        self._numbers = itertools.count(1)

    def accept(self, sock: socket.socket) -> None:
        """Serve a new caller."""
        caller = LineConnection(
            sock,
            self._loop,
            lambda line: self._on_line(caller, line),
            lambda: self._on_closed(caller),
        )
        self._callers.add(caller)
        caller.start()
        if len(self._callers) > MAX_CALLERS:
            caller.close()

    def publish(self, event: dict[str, Any]) -> None:
        """Send an event to all subscribers."""
        self._events.append(event)
        for subscriber in list(self._subscribers):
            subscriber.send(event)

    def reply(self, number: int, reply: dict[str, Any]) -> None:
        """Send the reply to a request, unless it has been answered."""
        if (caller := self._pending.pop(number, None)) is not None:
            caller.send(reply)

    def fail_pending(self) -> None:
        """Answer all pending requests with an error: the switch's process has ended."""
        for number in list(self._pending):
            self.reply(number, {"error": "its process has ended"})

    def close(self) -> None:
        """Disconnect all callers."""
        for caller in list(self._callers):
            caller.close()

    def _on_line(self, caller: LineConnection, line: bytes) -> None:
        brackets = line.count(b"[") + line.count(b"{")
        if len(line) > MAX_REQUEST_BYTES or brackets > MAX_BRACKETS:
            raise ValueError("too long or nested too deeply")
        request = json.loads(line)
        if request["do"] == "events":
            for event in self._events:
                caller.send(event)
            caller.send({"end": True})
            if request.get("follow"):
                self._subscribers.add(caller)
            return
        if len(self._pending) >= MAX_PENDING:
            caller.send({"error": "its process has not answered earlier requests yet"})
            return
        number = next(self._numbers)
        self._pending[number] = caller
        if not self._forward({"request": number, **request}):
            self.reply(number, {"error": "no process serves it"})
            return
        timeout = {"error": "no answer from its process"}
        self._loop.call_at(self._loop.now_ns() + TIMEOUT_NS, lambda: self.reply(number, timeout))

    def _on_closed(self, caller: LineConnection) -> None:
        self._callers.discard(caller)
        self._subscribers.discard(caller)
        self._pending = {n: other for n, other in self._pending.items() if other is not caller}
