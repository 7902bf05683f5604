"""Launched: collectives that go on beside each other, which agents hear of them, and who has told how they went."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from threading import Lock

from agents.channel import Bell, Channel, Line, refuse_the_gone
from moefabric.errors import AgentError
from moefabric.seams import PacedFlow


@dataclass(frozen=True)
class Flying:
    """A collective that was launched: what agents were asked in which request, and when they should long have told."""

    flows: tuple[PacedFlow, ...]
    asked: dict[Channel, int]
    until_ns: int


@dataclass(frozen=True)
class Landed:
    """A collective that has ended: its flows, and what each agent told of them."""

    flows: Sequence[PacedFlow]
    told: dict[str, Line]


class Launched:
    """All that flies. Instants are CLOCK_MONOTONIC of this process."""

    def __init__(self) -> None:
        self._flying: dict[int, Flying] = {}
        self._numbers = count(time.monotonic_ns())
        self._bell: Bell | None = None
        self._hanging = Lock()

    def number(self) -> int:
        """One that no collective had before, here or in another fleet with the same agents."""
        return next(self._numbers)

    def add(self, number: int, flying: Flying) -> None:
        """Another one flies."""
        self._flying[number] = flying

    def ended(self, until_ns: int | None) -> dict[int, Landed]:
        """Wait until one ends, the bell rings or the instant has come; those that have ended since.

        AgentError where an agent refuses, is gone, or has said nothing long after its deadline.
        """
        while not (over := self._over()):
            due = min([flying.until_ns for flying in self._flying.values()], default=None)
            ends = min([at for at in (until_ns, due) if at is not None], default=None)
            left = None if ends is None else (ends - time.monotonic_ns()) / 1e9
            if left is not None and left <= 0:
                self._refuse_silence(due)
                break
            concerned = {channel for flying in self._flying.values() for channel in flying.asked}
            if self._hung().heard(concerned, left):
                return self._over()
        return over

    def ring(self) -> None:
        """Let `ended` return; any thread may."""
        self._hung().ring()

    def close(self) -> None:
        """Wait for nothing any more."""
        if self._bell is not None:
            self._bell.close()

    def _hung(self) -> Bell:
        with self._hanging:
            self._bell = self._bell or Bell()
        return self._bell

    def _over(self) -> dict[int, Landed]:
        landed = {}
        for number, flying in list(self._flying.items()):
            if why := _refusal(flying.asked):
                del self._flying[number]
                raise AgentError(why)
            refuse_the_gone(flying.asked)
            if all(done(channel, number) is not None for channel in flying.asked):
                told = {channel.name: taken(channel, number) for channel in flying.asked}
                landed[number] = Landed(flying.flows, told)
                del self._flying[number]
        return landed

    def _refuse_silence(self, due_ns: int | None) -> None:
        if due_ns is None or time.monotonic_ns() < due_ns:
            return
        number, flying = min(self._flying.items(), key=lambda item: item[1].until_ns)
        names = ", ".join(sorted(channel.name for channel in flying.asked if done(channel, number) is None))
        raise AgentError(f"agents {names}: not a word on collective {number} after its deadline")


def done(channel: Channel, collective: int) -> Line | None:
    """What an agent has told of how a collective went; None is nothing yet."""
    found = (e for e in channel.events if e["event"] == "done" and e["collective"] == collective)
    return next(found, None)


def taken(channel: Channel, collective: int) -> Line:
    """The same of one that it has told of, once."""
    event = done(channel, collective)
    assert event is not None
    channel.events.remove(event)
    return event


def _refusal(asked: dict[Channel, int]) -> str:
    """Take the replies that have come to requests; what one says that says no."""
    for channel, number in asked.items():
        reply = channel.replies.pop(number, None)
        if reply is not None and not reply["ok"]:
            return f"agent {reply['error']}"
    return ""
