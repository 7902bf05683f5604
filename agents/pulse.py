"""The pulse: who of the agents that one waits for still lives, by what they say unasked and by asking those that say nothing."""

import time
from collections.abc import Callable, Collection, Iterable
from typing import Final

from agents.channel import Channel, wait
from moefabric.errors import LostError

INTERVAL_S: Final = 0.5
"""So often are agents asked that one waits for."""
LOOK_S: Final = 0.1
"""So often it is looked whether others know more of them."""
SILENCE_S: Final = 30.0
"""Agents that don't answer for so long are lost, with their servers. Less, where somebody could take their places."""


def dead_ranks(channel: Channel) -> set[str]:
    """GPUs of this server whose ranks have died, as far as was heard and not taken in by `told`."""
    return {f"{channel.name}/{e['gpu']}" for e in channel.events if e["event"] == "rank" and not e["alive"]}


def told(channel: Channel, dead: set[str]) -> None:
    """Take in what was heard of ranks: `dead` are then those that are dead now."""
    for event in [event for event in channel.events if event["event"] == "rank"]:
        channel.events.remove(event)
        name = f"{channel.name}/{event['gpu']}"
        if event["alive"]:
            dead.discard(name)
        else:
            dead.add(name)


def refuse_the_lost(channels: Iterable[Channel]) -> None:
    """LostError where an agent is gone or a rank of its server has died."""
    gone, dead, said = set[str](), set[str](), list[str]()
    for channel in channels:
        if channel.gone:
            gone.add(channel.name)
            said.append(f"agent {channel.name}: {channel.gone}")
        elif died := dead_ranks(channel):
            dead |= died
            said.append(f"agent {channel.name}: the rank on GPU {', '.join(sorted(died))} has died")
    if said:
        raise LostError("; ".join(said), gone, dead)


class Pulse:
    """Waits for agents, and hears within `silence_s` when one doesn't live any more, or sooner where somebody else knows."""

    def __init__(self, interval_s: float = INTERVAL_S, silence_s: float = SILENCE_S) -> None:
        self.interval_s, self.silence_s = interval_s, silence_s
        self.unreachable: Callable[[str], bool] = lambda _server: False
        """Whether a server is known to be cut off from all others; its agent may live, and be reached by its control channel."""

    def wait(
        self, channels: Collection[Channel], over: Callable[[Channel], bool], deadline_s: float
    ) -> list[Channel]:
        """As `channel.wait`, but LostError as soon as an agent, or a rank of its server, is known to be lost."""
        ends = time.monotonic() + deadline_s
        asked: dict[Channel, tuple[int, float]] = {}
        waiting = list(channels)
        try:
            while True:
                left = ends - time.monotonic()
                waiting = wait(waiting, over, min(LOOK_S, self.interval_s, left), stop=_has_news)
                refuse_the_lost(channels)
                self.refuse_unreachable(channel.name for channel in waiting)
                if not waiting or left <= 0:
                    return waiting
                self._ask(waiting, asked)
        finally:
            for channel, (number, _) in asked.items():
                if number:
                    channel.forget(number)

    def refuse_unreachable(self, servers: Iterable[str]) -> None:
        """LostError where one of them is known to be cut off."""
        if gone := [server for server in servers if self.unreachable(server)]:
            raise LostError(f"{', '.join(gone)}: no NIC has a link, says its region's controller", gone)

    def _ask(self, waiting: Iterable[Channel], asked: dict[Channel, tuple[int, float]]) -> None:
        """Ask those that owe no answer yet. LostError for those that owe one for too long."""
        now, silent = time.monotonic(), list[str]()
        for channel in waiting:
            number, since = asked.get(channel, (0, now - self.interval_s))
            if number and channel.replies.pop(number, None) is None:
                if now - since > self.silence_s:
                    silent.append(channel.name)
            elif now - since >= self.interval_s:
                asked[channel] = channel.post("clock"), now
            else:
                asked[channel] = 0, since
        if silent:
            raise LostError(f"agents {', '.join(silent)}: no sign of life for {self.silence_s:g} s", silent)


def _has_news(channel: Channel) -> bool:
    return bool(channel.gone or dead_ranks(channel))
