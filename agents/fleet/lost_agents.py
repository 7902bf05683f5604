"""Lost agents: ends the collective that they interrupted, and readmits those that return."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from moefabric.agents.fleet.channel import Channel, wait
from moefabric.core.errors import AgentError

ABANDON_S: Final = 5.0
"""Timeout for agents to confirm that they have ended a collective."""


def abandon(channels: Iterable[Channel], collective: int) -> None:
    """Make agents end a collective; skip agents that are gone, as later requests report them."""
    requests = dict[Channel, int]()
    for channel in channels:
        with suppress(AgentError):
            requests[channel] = channel.post("abandon", collective=collective)
    wait(requests, lambda channel: requests[channel] in channel.replies, ABANDON_S)
    for channel, number in requests.items():
        channel.forget(number)
        channel.reports.pop(collective, None)


class LostAgents:
    """Agents that were lost. Each gets a probe, whose answer shows that the agent is back."""

    def __init__(self) -> None:
        self._probes: dict[str, tuple[Channel, int]] = {}

    def add(self, channel: Channel) -> None:
        """Add a lost agent."""
        number = 0
        with suppress(AgentError):
            number = channel.post("clock")
        self._probes[channel.name] = channel, number

    @property
    def names(self) -> frozenset[str]:
        """The servers of the lost agents."""
        return frozenset(self._probes)

    def take_returned(self, unreachable: Callable[[str], bool]) -> list[Channel]:
        """Remove and return the agents that have answered; drop their old replies and reports.

        Args:
            unreachable: Returns whether a server is cut off; the agent of such a server stays lost.
        """
        returned = []
        for name, (channel, number) in list(self._probes.items()):
            channel.read()
            if number in channel.replies and not unreachable(name):
                channel.replies.clear()
                channel.reports.clear()
                del self._probes[name]
                returned.append(channel)
        return returned

    def close(self) -> None:
        """Close the channels of all lost agents."""
        for channel, _ in self._probes.values():
            channel.close()
