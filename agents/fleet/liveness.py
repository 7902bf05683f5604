"""Lost agents: detected by events, probes and controllers, and readmitted when they return."""

import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final

from moefabric.agents.fleet.channel import Channel, request_all, wait
from moefabric.agents.fleet.messages import Message
from moefabric.core.errors import AgentError, ServerLossError

INTERVAL_S: Final = 0.5
"""Time between two probes of an agent that a caller waits for."""
LOOK_S: Final = 0.1
"""Time between two checks of the reachability that controllers report."""
SILENCE_S: Final = 30.0
"""An agent that doesn't answer a probe for this time is lost; callers with backups use less."""


def check_alive(channels: Iterable[Channel]) -> None:
    """Raise ServerLossError if agents are gone or ranks of their servers have died."""
    gone, dead, reasons = set[str](), set[str](), list[str]()
    for channel in channels:
        if channel.gone:
            gone.add(channel.name)
            reasons.append(f"agent {channel.name}: {channel.gone}")
            continue
        died = [event["gpu"] for event in channel.rank_events if not event["alive"]]
        if gpus := {f"{channel.name}/{gpu}" for gpu in died}:
            dead |= gpus
            names = ", ".join(sorted(gpus))
            reasons.append(f"agent {channel.name}: the rank on GPU {names} has died")
    if reasons:
        raise ServerLossError("; ".join(reasons), gone, dead)


class LivenessMonitor:
    """Waits for agents and notices lost ones.

    Args:
        interval_s: Seconds between two probes of an agent.
        silence_s: Seconds without an answer after which an agent is lost.

    Attributes:
        unreachable: Returns whether a server is cut off from all others. Its agent may still
            answer on its control channel.
    """

    def __init__(self, interval_s: float = INTERVAL_S, silence_s: float = SILENCE_S) -> None:
        self.interval_s, self.silence_s = interval_s, silence_s
        self.unreachable: Callable[[str], bool] = lambda _server: False
        # By channel: the request number of its probe (0 once answered) and when it was sent.
        self._probes: dict[Channel, tuple[int, float]] = {}

    def wait(
        self, channels: Collection[Channel], is_done: Callable[[Channel], bool], deadline_s: float
    ) -> list[Channel]:
        """Wait as `channel.wait` does, and check liveness meanwhile.

        Raises:
            ServerLossError: as soon as an agent, a rank of its server or all its NICs are lost.
        """
        deadline = time.monotonic() + deadline_s
        waiting = list(channels)
        self._forget(self._probes)
        try:
            while True:
                left_s = deadline - time.monotonic()
                look_s = min(LOOK_S, self.interval_s, left_s)
                waiting = wait(waiting, is_done, look_s)
                self.check(channels, waiting)
                if not waiting or left_s <= 0:
                    return waiting
        finally:
            self._forget(self._probes)

    def check(self, channels: Collection[Channel], waiting: Collection[Channel]) -> None:
        """Probe agents once. A caller that waits has to call this at least every `interval_s`.

        Args:
            channels: All agents that take part in the transfers in flight.
            waiting: The agents whose reports are due.

        Raises:
            ServerLossError: if an agent, a rank of its server or all its NICs are lost.
        """
        check_alive(channels)
        self.check_reachable(channel.name for channel in waiting)
        self._forget(self._probes.keys() - set(waiting))
        self._probe(sorted(waiting, key=lambda channel: channel.name))

    def check_relays(self, relays: Collection[Channel], reports: Iterable[Message]) -> None:
        """Ask the relays of a collective for a sign of life if some of its transfers failed.

        A relay that dies closes its connections with other agents before its control channel.

        Args:
            relays: Agents that forward transfers of the collective.

        Raises:
            ServerLossError: if relays are gone or silent.
        """
        transfers = (t for report in reports for t in (*report["sends"], *report["receives"]))
        if relays and not all(transfer["ok"] for transfer in transfers):
            request_all(dict.fromkeys(relays, ("clock", {})), self.silence_s)

    def check_reachable(self, servers: Iterable[str]) -> None:
        """Raise ServerLossError if servers are cut off."""
        if gone := [server for server in servers if self.unreachable(server)]:
            raise ServerLossError(
                f"{', '.join(gone)}: no NIC has a link, according to its region's controller", gone
            )

    def _probe(self, waiting: Iterable[Channel]) -> None:
        """Probe agents without an open probe; raise ServerLossError for those silent too long."""
        now_s, silent = time.monotonic(), dict[str, float]()
        for channel in waiting:
            number, sent_s = self._probes.get(channel, (0, now_s - self.interval_s))
            if number and channel.replies.pop(number, None) is None:
                if now_s - sent_s > self.silence_s:
                    silent[channel.name] = now_s - sent_s
            elif now_s - sent_s >= self.interval_s:
                self._probes[channel] = channel.post("clock"), now_s
            else:
                self._probes[channel] = 0, sent_s
        if silent:
            raise ServerLossError(
                f"agents {', '.join(silent)}: no sign of life for {self.silence_s:g} s",
                silent,
                silent_s=max(silent.values()),
            )

    def _forget(self, channels: Iterable[Channel]) -> None:
        """Drop the probes of some channels and ignore their answers."""
        for channel in list(channels):
            number, _ = self._probes.pop(channel)
            if number:
                channel.forget(number)


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
