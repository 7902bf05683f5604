"""Serves the ranks of a job: reads their requests from the agents, and answers them."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from moefabric.agents.fleet.channel import Channel, request_all
from moefabric.agents.fleet.exchanges import ExchangeBook, FailedExchange, exchange_key
from moefabric.core.errors import AgentError
from moefabric.core.exchange import Exchange

DISMISS_S: Final = 5.0


class RankService:
    """The ranks of at most one job at a time.

    Args:
        channels: The channels of agents that are not lost, by server; the fleet changes them.
        our_time: Converts an instant of a server's agent to our clock.
    """

    def __init__(
        self, channels: Mapping[str, Channel], our_time: Callable[[str, int | None], int]
    ) -> None:
        self._channels, self._our_time = channels, our_time
        self._book = ExchangeBook()
        self._serves = False

    @property
    def watched(self) -> list[Channel]:
        """The channels that have to be read while a job is served."""
        return list(self._channels.values()) if self._serves else []

    def start(self) -> None:
        """Serve the ranks of a new job; disconnect those of an earlier one."""
        self.stop()
        self._serves = True

    def stop(self) -> None:
        """Disconnect all ranks, and forget their requests."""
        self._serves = False
        request_all(dict.fromkeys(self._channels.values(), ("dismiss", {})), DISMISS_S)
        for channel in self._channels.values():
            channel.exchange_events.clear()
        self._book = ExchangeBook()

    def take(self) -> list[Exchange]:
        """Return the exchanges that all their members have asked for since the last call."""
        self._poll()
        return self._book.take()

    def lost(self) -> dict[int, str]:
        """Return the ranks that have ended without leaving, with server and reason."""
        self._poll()
        return self._book.see_losses()

    def is_news(self) -> bool:
        """Return whether exchanges or lost ranks have come that no caller has seen."""
        self._read_events()
        return self._serves and self._book.is_news

    def finish(self, exchange: Exchange, error: str, deadline_s: float) -> None:
        """End an exchange; nothing if it has failed before.

        Raises:
            AgentError: if bytes of the exchange have not come.
        """
        key = exchange_key(exchange)
        if not self._book.end(key):
            return
        if error:
            self._tell(FailedExchange(key, frozenset(exchange.servers), error))
            return
        channels = [self._channels[name] for name in exchange.servers if name in self._channels]
        fields = {**key._asdict(), "servers": exchange.servers}
        request_all(dict.fromkeys(channels, ("finish", fields)), deadline_s)

    def servers_lost(self, servers: Iterable[str]) -> None:
        """Fail the exchanges of the ranks of servers whose agents are lost."""
        self._read_events()
        for server in servers:
            for failed in self._book.server_lost(server):
                self._tell(failed)

    def _poll(self) -> None:
        for channel in self._channels.values():
            channel.read()
        self._read_events()

    def _read_events(self) -> None:
        for name, channel in self._channels.items():
            events, channel.exchange_events = channel.exchange_events, []
            for event in events if self._serves else ():
                for failed in self._book.read(name, event, partial(self._our_time, name)):
                    self._tell(failed)

    def _tell(self, failed: FailedExchange) -> None:
        """Have agents tell their ranks that an exchange has failed; skip agents that are gone."""
        fields = {**failed.key._asdict(), "error": f"{failed.key}: {failed.error}"}
        for server in failed.servers & self._channels.keys():
            channel = self._channels[server]
            if not channel.gone:
                with suppress(AgentError):  # later requests report an agent that is gone
                    channel.forget(channel.post("finish", **fields))
