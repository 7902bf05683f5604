"""Survivors: the agents that are left when some are lost, how they end what was under way, and how the lost come back."""

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Protocol, TypeVar

from agents.channel import Channel, Line, wait
from agents.pulse import told
from moefabric.errors import AgentError

MENDING_S = 10.0
"""How long connections between the living may take to open again."""
ABANDON_S = 5.0
"""How long agents may take to say that they have ended a collective."""


class Ends(Protocol):
    """A way, by the servers at its ends."""

    @property
    def src(self) -> str: ...
    @property
    def dst(self) -> str: ...


W = TypeVar("W", bound=Ends)


def abandon(channels: Collection[Channel], collective: int) -> None:
    """Have all end a collective as it is. Who is gone or doesn't answer is found lost by whoever speaks with it next."""
    asked = dict[Channel, int]()
    for channel in channels:
        with suppress(AgentError):
            asked[channel] = channel.post("abandon", collective=collective)
    wait(asked, lambda channel: asked[channel] in channel.replies, ABANDON_S)
    for channel, number in asked.items():
        channel.forget(number)
    for channel in channels:
        channel.events = [e for e in channel.events if e["event"] != "done" or e["collective"] != collective]


def broken(told_by: dict[str, Line], living: Collection[str]) -> set[tuple[str, str, str]]:
    """(from, to, path) of the connections between the living that are not up, as their agents tell it."""
    return {
        (src, connection["peer"], connection["path"])
        for src, said in told_by.items()
        for connection in said["connections"]
        if connection["state"] != "up" and connection["peer"] in living
    }


class Absent:
    """Agents that were lost, each with a question that it will answer when it is back."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[Channel, int]] = {}

    def add(self, channel: Channel) -> None:
        """This one is lost; it is asked something, in case that it only was silent."""
        number = 0
        with suppress(AgentError):
            number = channel.post("clock")
        self._waiting[channel.name] = channel, number

    @property
    def names(self) -> frozenset[str]:
        """Who is absent."""
        return frozenset(self._waiting)

    def returned(self, unreachable: Callable[[str], bool] = lambda _: False) -> list[Channel]:
        """Those that have answered by now and aren't cut off; they are no longer absent, and what they had to say of the past is forgotten."""
        back = []
        for name, (channel, number) in list(self._waiting.items()):
            channel.read()
            if number in channel.replies and not unreachable(name):
                channel.replies.clear()
                channel.events = [event for event in channel.events if event["event"] == "rank"]
                back.append(self._waiting.pop(name)[0])
        return back

    def close(self) -> None:
        """Wait for none of them any more."""
        for channel, _ in self._waiting.values():
            channel.close()


def ranks(channels: Collection[Channel], dead: set[str]) -> None:
    """Take in what the agents have told of their ranks until now."""
    for channel in channels:
        channel.read()
        told(channel, dead)


def between(ways: Iterable[W], living: Collection[str], some: Collection[str]) -> list[W]:
    """The ways from and to some servers, whose other end lives too."""
    return [way for way in ways if {way.src, way.dst} & {*some} and {way.src, way.dst} <= {*living, *some}]
