"""Exchanges: all-to-alls that ranks have asked their agents for."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from moefabric.agents.engine.exchanges import ExchangeKey
from moefabric.agents.fleet.messages import Message
from moefabric.core.errors import AgentError
from moefabric.core.exchange import Exchange, Pair
from moefabric.core.flows import PacedFlow


def exchange_key(exchange: Exchange) -> ExchangeKey:
    """Return the identity by which agents know an exchange."""
    return ExchangeKey(exchange.name, exchange.group, exchange.number)


REMEMBERED: Final = 1024
"""Number of failed exchanges whose late ranks learn the error at once."""


class _Ask(NamedTuple):
    """Request of one rank for an exchange: its event, its server, and when it asked."""

    event: Message
    server: str
    asked_ns: int


class FailedExchange(NamedTuple):
    """An exchange that can't take place; the agents of `servers` have to tell their ranks."""

    key: ExchangeKey
    servers: frozenset[str]
    error: str


class ExchangeBook:
    """Requests of ranks for exchanges, from the agents' events; without effects.

    Attributes:
        lost: Ranks that have ended without leaving, with server and reason.
        is_news: Whether exchanges or lost ranks have come that no caller has seen.
    """

    def __init__(self) -> None:
        self.lost: dict[int, str] = {}
        self._left: dict[int, str] = {}
        self._servers: dict[int, str] = {}  # of the ranks that have joined
        self._pending: dict[ExchangeKey, dict[int, _Ask]] = {}  # by member
        self._complete: list[Exchange] = []
        self._failed: OrderedDict[ExchangeKey, str] = OrderedDict()
        self._unseen_losses = False

    @property
    def is_news(self) -> bool:
        """Whether exchanges or lost ranks have come that no caller has seen."""
        return bool(self._complete) or self._unseen_losses

    def take(self) -> list[Exchange]:
        """Return the exchanges that all members have asked for since the last call."""
        complete, self._complete = self._complete, []
        return complete

    def see_losses(self) -> dict[int, str]:
        """Return the lost ranks; they are no news any more."""
        self._unseen_losses = False
        return dict(self.lost)

    def end(self, key: ExchangeKey) -> bool:
        """Forget an exchange that ends; return whether it was pending."""
        return self._pending.pop(key, None) is not None

    def read(
        self, server: str, event: Message, our_time: Callable[[int], int]
    ) -> list[FailedExchange]:
        """Take an event of an agent in.

        Args:
            server: The agent's server.
            event: The event, one of `EXCHANGE_EVENTS`.
            our_time: Converts an instant of the agent to our clock.

        Returns:
            The exchanges that fail by it.
        """
        rank, kind = event["rank"], event["event"]
        if kind == "rank_joined":
            return self._rank_joined(rank, server)
        if kind == "rank_lost":
            reason = f": {event['why']}" if event["why"] else ""
            return self._rank_lost(rank, f"rank {rank} on {server} has ended{reason}")
        if kind == "rank_left":
            return self._rank_left(rank, f"rank {rank} on {server} has left")
        key = ExchangeKey(event["name"], tuple(event["group"]), event["number"])
        if kind == "overdue":
            return self._overdue(key, event["seconds"])
        ask = _Ask(event, server, our_time(event["asked_ns"]))
        return self._ask(key, key.group.index(rank), ask)

    def server_lost(self, server: str) -> list[FailedExchange]:
        """Count the ranks of a server without an agent as lost; return the exchanges that fail."""
        ranks = [rank for rank, place in self._servers.items() if place == server]
        why = f"the agent of {server} is lost"
        return [failed for rank in ranks for failed in self._rank_lost(rank, why)]

    def _ask(self, key: ExchangeKey, member: int, ask: _Ask) -> list[FailedExchange]:
        asks = self._pending.setdefault(key, {})
        asks[member] = ask
        if key in self._failed:
            return [self._fail(key, self._failed[key])]
        absent = self._left | self.lost
        for number, other in enumerate(key.group):
            if other in absent and number not in asks:
                return [self._fail(key, absent[other])]
        if len(asks) < len(key.group):
            return []
        ordered = [asks[number] for number in range(len(key.group))]
        if disagreement := _disagreement(key, [one.event for one in ordered]):
            return [self._fail(key, disagreement)]
        self._complete.append(_exchange(key, ordered))
        return []

    def _overdue(self, key: ExchangeKey, seconds: float) -> list[FailedExchange]:
        if (asks := self._pending.get(key)) is None:
            return []
        missing = [rank for member, rank in enumerate(key.group) if member not in asks]
        names = ", ".join(map(str, missing))
        why = f"rank {names} has" if len(missing) == 1 else f"ranks {names} have"
        why = f"{why} not called it" if missing else "its bytes were under way"
        return [self._fail(key, f"timed out after {seconds:g} s: {why}")]

    def _rank_joined(self, rank: int, server: str) -> list[FailedExchange]:
        """Forget the exchanges of the rank's earlier process, and count from 0 again."""
        self._servers[rank] = server
        self.lost.pop(rank, None)
        self._left.pop(rank, None)
        for key in [key for key in self._failed if rank in key.group]:
            del self._failed[key]
        return []

    def _rank_left(self, rank: int, why: str) -> list[FailedExchange]:
        self._servers.pop(rank, None)
        self._left[rank] = why
        return [
            self._fail(key, why)
            for key, asks in list(self._pending.items())
            if rank in key.group and key.group.index(rank) not in asks
        ]

    def _rank_lost(self, rank: int, why: str) -> list[FailedExchange]:
        self._servers.pop(rank, None)
        self.lost[rank] = why
        self._unseen_losses = True
        return [self._fail(key, why) for key in list(self._pending) if rank in key.group]

    def _fail(self, key: ExchangeKey, error: str) -> FailedExchange:
        servers = frozenset(ask.server for ask in self._pending.pop(key).values())
        self._failed[key] = error
        while len(self._failed) > REMEMBERED:
            self._failed.popitem(last=False)
        self._complete = [exchange for exchange in self._complete if exchange_key(exchange) != key]
        return FailedExchange(key, servers, error)


def _exchange(key: ExchangeKey, asks: Sequence[_Ask]) -> Exchange:
    events, servers, asked_ns = zip(*asks, strict=True)
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
                return (
                    f"rank {src} sends {size} bytes to rank {dst}, which expects {expected}; "
                    "compare their split sizes"
                )
    return ""


def flow_offsets(exchange: Exchange, flows: Sequence[PacedFlow]) -> list[int]:
    """Return where each flow's bytes begin among those of its pair of servers.

    Args:
        exchange: What the flows carry.
        flows: The flows of one launch.

    Raises:
        AgentError: if flows without explicit offsets don't add up to the bytes of a pair, or a flow
            ends beyond them.
    """
    ends: dict[Pair, int] = {}
    explicit = {(flow.src, flow.dst) for flow in flows if flow.offset >= 0}
    offsets = []
    for flow in flows:
        pair = flow.src, flow.dst
        offsets.append(ends.get(pair, 0) if flow.offset < 0 else flow.offset)
        ends[pair] = offsets[-1] + flow.bytes
        _check_sum(exchange, pair, ends[pair], is_whole=False)
    for pair in ends.keys() - explicit:
        _check_sum(exchange, pair, ends[pair], is_whole=True)
    return offsets


def _check_sum(exchange: Exchange, pair: Pair, planned: int, *, is_whole: bool) -> None:
    """Raise AgentError if flows carry more, or not all, of the bytes of their pair."""
    owed = exchange.owed.get(pair, 0)
    if planned > owed or (is_whole and planned < owed):
        raise AgentError(
            f"{exchange_key(exchange)}: {pair[0]} owes {pair[1]} {owed} bytes, and the flows "
            f"carry {planned}; plan exactly the bytes of each pair"
        )
