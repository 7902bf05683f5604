"""Exchanges: all-to-alls that the ranks of a job have asked their agents for."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from moefabric.agents.engine.exchanges import ExchangeKey
from moefabric.agents.fleet.channel import Channel, request_all
from moefabric.agents.fleet.messages import Message
from moefabric.core.errors import AgentError
from moefabric.core.exchange import Exchange


def exchange_key(exchange: Exchange) -> ExchangeKey:
    """Return the identity by which agents know an exchange."""
    return ExchangeKey(exchange.name, exchange.group, exchange.number)


_Ask = tuple[str, Message]
"""The server of a rank that has asked for an exchange, and the event that says so."""
DISMISS_S: Final = 5.0
REMEMBERED: Final = 1024
"""Number of failed exchanges whose late ranks learn the error at once."""


class RankService:
    """The ranks of at most one job at a time: reads their requests from agents, and answers them.

    Args:
        channels: The channels of agents that are not lost, by server; the fleet changes them.
        our_time: Converts an instant of a server's agent to our clock.
    """

    def __init__(
        self, channels: Mapping[str, Channel], our_time: Callable[[str, int | None], int]
    ) -> None:
        self._channels, self._our_time = channels, our_time
        self._serves = False
        self._clear()

    def _clear(self) -> None:
        self._lost: dict[int, str] = {}  # why ranks have ended without leaving
        self._left: dict[int, str] = {}
        self._servers: dict[int, str] = {}  # of the ranks that have joined
        self._pending: dict[ExchangeKey, dict[int, _Ask]] = {}  # by member
        self._complete: list[Exchange] = []
        self._failed: OrderedDict[ExchangeKey, str] = OrderedDict()
        self._unseen_losses = False

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
        self._clear()

    def take(self) -> list[Exchange]:
        """Return the exchanges that all their members have asked for since the last call."""
        self._poll()
        complete, self._complete = self._complete, []
        return complete

    def lost(self) -> dict[int, str]:
        """Return the ranks that have ended without leaving, with server and reason."""
        self._poll()
        self._unseen_losses = False
        return dict(self._lost)

    def is_news(self) -> bool:
        """Return whether exchanges or lost ranks have come that no caller has seen."""
        self._read_events()
        return self._serves and (bool(self._complete) or self._unseen_losses)

    def finish(self, exchange: Exchange, error: str, deadline_s: float) -> None:
        """End an exchange; nothing if it has failed before.

        Raises:
            AgentError: if bytes of the exchange have not come.
        """
        key = exchange_key(exchange)
        if self._pending.pop(key, None) is None:
            return
        if error:
            self._tell(key, exchange.servers, error)
            return
        channels = [self._channels[name] for name in exchange.servers if name in self._channels]
        fields = {**key._asdict(), "servers": exchange.servers}
        request_all(dict.fromkeys(channels, ("finish", fields)), deadline_s)

    def servers_lost(self, servers: Iterable[str]) -> None:
        """Count the ranks of servers whose agents are lost as lost."""
        self._read_events()
        for server in servers:
            for rank in [rank for rank, place in self._servers.items() if place == server]:
                self._rank_lost(rank, f"the agent of {server} is lost")

    def _poll(self) -> None:
        for channel in self._channels.values():
            channel.read()
        self._read_events()

    def _read_events(self) -> None:
        for name, channel in self._channels.items():
            events, channel.exchange_events = channel.exchange_events, []
            for event in events if self._serves else ():
                self.read(name, event)

    def read(self, server: str, event: Message) -> None:
        """Take an event of a server's agent in, one of `EXCHANGE_EVENTS`."""
        rank, kind = event["rank"], event["event"]
        if kind == "rank_joined":
            self._rank_joined(rank, server)
        elif kind == "rank_lost":
            reason = f": {event['why']}" if event["why"] else ""
            self._rank_lost(rank, f"rank {rank} on {server} has ended{reason}")
        elif kind == "rank_left":
            self._rank_left(rank, f"rank {rank} on {server} has left")
        else:
            key = ExchangeKey(event["name"], tuple(event["group"]), event["number"])
            if kind == "overdue":
                self._overdue(key, event["seconds"])
            else:
                self._ask(key, key.group.index(rank), (server, event))

    def _ask(self, key: ExchangeKey, member: int, ask: _Ask) -> None:
        asks = self._pending.setdefault(key, {})
        asks[member] = ask
        absent = self._left | self._lost
        without = (
            absent[rank]
            for number, rank in enumerate(key.group)
            if rank in absent and number not in asks
        )
        if why := self._failed.get(key) or next(without, ""):
            self._fail(key, why)
        elif len(asks) == len(key.group):
            ordered = [asks[number] for number in range(len(key.group))]
            if disagreement := _disagreement(key, [event for _, event in ordered]):
                self._fail(key, disagreement)
            else:
                self._complete.append(self._exchange(key, ordered))

    def _overdue(self, key: ExchangeKey, seconds: float) -> None:
        if (asks := self._pending.get(key)) is None:
            return
        missing = [rank for member, rank in enumerate(key.group) if member not in asks]
        names = ", ".join(map(str, missing))
        why = f"rank {names} has" if len(missing) == 1 else f"ranks {names} have"
        why = f"{why} not called it" if missing else "its bytes were under way"
        self._fail(key, f"timed out after {seconds:g} s: {why}")

    def _rank_joined(self, rank: int, server: str) -> None:
        """Forget the exchanges of the rank's earlier process, and count from 0 again."""
        self._servers[rank] = server
        self._lost.pop(rank, None)
        self._left.pop(rank, None)
        for key in [key for key in self._failed if rank in key.group]:
            del self._failed[key]

    def _rank_left(self, rank: int, why: str) -> None:
        self._servers.pop(rank, None)
        self._left[rank] = why
        for key, asks in list(self._pending.items()):
            if rank in key.group and key.group.index(rank) not in asks:
                self._fail(key, why)

    def _rank_lost(self, rank: int, why: str) -> None:
        self._servers.pop(rank, None)
        self._lost[rank] = why
        self._unseen_losses = True
        for key in [key for key in self._pending if rank in key.group]:
            self._fail(key, why)

    def _fail(self, key: ExchangeKey, error: str) -> None:
        servers = [server for server, _ in self._pending.pop(key).values()]
        self._failed[key] = error
        while len(self._failed) > REMEMBERED:
            self._failed.popitem(last=False)
        self._complete = [exchange for exchange in self._complete if exchange_key(exchange) != key]
        self._tell(key, servers, error)

    def _tell(self, key: ExchangeKey, servers: Iterable[str], error: str) -> None:
        """Have agents tell their ranks that an exchange has failed; skip agents that are gone."""
        fields = {**key._asdict(), "error": f"{key}: {error}"}
        for server in {*servers} & self._channels.keys():
            channel = self._channels[server]
            with suppress(AgentError):  # later requests report an agent that is gone
                channel.forget(channel.post("finish", **fields))

    def _exchange(self, key: ExchangeKey, asks: Sequence[_Ask]) -> Exchange:
        servers, events = zip(*asks, strict=True)
        asked_ns = tuple(self._our_time(server, event["asked_ns"]) for server, event in asks)
        sends = tuple(tuple(event["sends"]) for event in events)
        tokens = tuple(tuple(event["tokens"]) for event in events if event["tokens"] is not None)
        counts = tokens if len(tokens) == len(asks) else None
        dtype = events[0]["dtype"]
        return Exchange(key.group, key.number, servers, sends, dtype, counts, asked_ns, key.name)


def _disagreement(key: ExchangeKey, events: Sequence[Message]) -> str:
    """Return the differences between two members' expectations; empty if they agree."""
    dtype = events[0]["dtype"]
    for sender, event in enumerate(events):
        if event["dtype"] != dtype:
            first, other = key.group[0], key.group[sender]
            return f"rank {first} exchanges {dtype}, rank {other} {event['dtype']}"
        for receiver, size in enumerate(event["sends"]):
            expected = events[receiver]["receives"][sender]
            if size != expected:
                src, dst = key.group[sender], key.group[receiver]
                whom = "itself, but" if src == dst else f"rank {dst}, which"
                return (
                    f"rank {src} sends {size} bytes to {whom} expects {expected}; "
                    "compare their split sizes"
                )
    return ""
