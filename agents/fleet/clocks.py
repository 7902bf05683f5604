"""Clocks of agents: their offsets from ours, and instants on either."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from moefabric.agents.fleet.channel import Channel, request_all

CLOCK_EXCHANGES: Final = 16


@dataclass(frozen=True)
class ClockOffset:
    """An agent's CLOCK_MONOTONIC minus ours, and the round-trip time of the measurement.

    Both are 0 if the agent's clock is ours.
    """

    offset_ns: int = 0
    round_trip_ns: int = 0

    @property
    def uncertainty_ns(self) -> int:
        """Half the round trip: the offset's error is at most that."""
        return -(-self.round_trip_ns // 2)


def clock_offset(exchanges: Iterable[tuple[int, int, int]]) -> ClockOffset:
    """Return the offset that the fastest exchange gives; its error is the smallest (RFC 5905).

    Args:
        exchanges: Our time of the request, the agent's time, and our time of the reply, in ns.
    """
    sent, theirs, received = min(exchanges, key=lambda times: times[2] - times[0])
    return ClockOffset(theirs - (sent + received) // 2, received - sent)


class FleetClocks:
    """The clocks of all agents.

    Args:
        ours: The servers whose agents have our clock.

    Attributes:
        offsets: Each agent's clock offset, as measured last.
        first: Each agent's clock offset, as measured first.
    """

    def __init__(self, channels: Iterable[Channel], ours: frozenset[str]) -> None:
        self.offsets = {
            channel.name: ClockOffset() if channel.name in ours else _measure(channel)
            for channel in channels
        }
        self.first = dict(self.offsets)

    def measure_again(self, channels: Iterable[Channel]) -> None:
        """Measure the clocks that aren't ours, since they drift, and use the results from now on.

        Raises:
            ServerLossError: if an agent is gone.
        """
        for channel in channels:
            if self.offsets[channel.name].round_trip_ns:
                self.offsets[channel.name] = _measure(channel)

    def max_round_trip_ns(self, servers: Iterable[str]) -> int:
        """Return the longest round trip to agents of these servers."""
        return max(self.offsets[server].round_trip_ns for server in servers)

    def their_time(self, name: str, our_ns: int) -> int:
        """Return an instant on an agent's clock."""
        return our_ns + self.offsets[name].offset_ns

    def our_time(self, name: str, their_ns: int | None) -> int:
        """Return an agent's instant on our clock; 0 for never."""
        return 0 if their_ns is None else their_ns - self.offsets[name].offset_ns


def _measure(channel: Channel) -> ClockOffset:
    exchanges = []
    for _ in range(CLOCK_EXCHANGES):
        sent_ns = time.monotonic_ns()
        their_ns = request_all({channel: ("clock", {})}, 5.0)[channel.name]["monotonic_ns"]
        exchanges.append((sent_ns, their_ns, time.monotonic_ns()))
    return clock_offset(exchanges)
