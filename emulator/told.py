"""What an optical switch tells others than its clients: its events to those who follow them, answers to those who asked."""

import itertools
import json
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from emulator.lines import Lines
from emulator.loop import Loop

EVENTS_KEPT: Final = 1000
ANSWER_NS: Final = 5_000_000_000
CALLERS: Final = 32

Forward = Callable[[dict[str, Any]], bool]


class Told:
    """The callers of one switch's fabric side. A caller sends a line of JSON: `{"do": "events", "follow": true}`, or what the process is asked."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self._callers: set[Lines] = set()
        self._followers: set[Lines] = set()
        self._asked: dict[int, Lines] = {}
        self._serial = itertools.count(1)

    def caller(self, sock: socket.socket, forward: Forward) -> None:
        """Somebody calls. `forward` asks the process, and says whether there is one."""
        caller = Lines(
            sock, self._loop, lambda line: self._heard(caller, line, forward), lambda: self._gone(caller)
        )
        self._callers.add(caller)
        caller.begin()
        if len(self._callers) > CALLERS:
            caller.close()

    def event(self, event: dict[str, Any]) -> None:
        """The switch tells of something."""
        self._events.append(event)
        for follower in list(self._followers):
            follower.send(event)

    def answer(self, number: int, said: dict[str, Any]) -> None:
        """The switch answers."""
        if (caller := self._asked.pop(number, None)) is not None:
            caller.send(said)

    def left(self) -> None:
        """The process that was asked is gone."""
        for number in list(self._asked):
            self.answer(number, {"error": "its process has ended"})

    def close(self) -> None:
        """Hang up on everybody."""
        for caller in list(self._callers):
            caller.close()

    def _heard(self, caller: Lines, line: bytes, forward: Forward) -> None:
        asked = json.loads(line)
        if asked["do"] == "events":
            for event in self._events:
                caller.send(event)
            if asked.get("follow"):
                self._followers.add(caller)
            else:
                caller.send({"end": True})
            return
        number = next(self._serial)
        self._asked[number] = caller
        if not forward({"ask": number, **asked}):
            self.answer(number, {"error": "no process serves it"})
            return
        self._loop.at(
            self._loop.now_ns() + ANSWER_NS,
            lambda: self.answer(number, {"error": "no answer from its process"}),
        )

    def _gone(self, caller: Lines) -> None:
        self._callers.discard(caller)
        self._followers.discard(caller)
        self._asked = {number: one for number, one in self._asked.items() if one is not caller}
