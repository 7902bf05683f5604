"""Exchanges: all-to-alls of a group of ranks, as one server sees them.

The ranks of this server ask for an exchange and lay out their memory: blocks for all members of the
group, in their order, in what they send and in what they receive. The bytes that a server owes
another are all blocks from its ranks to the other's, ordered by sending and then by receiving
member. Transfers carry parts of them. Blocks between ranks of this server are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from moefabric.agents.engine.pieces import Pieces
from moefabric.agents.engine.requests import Fields, RefusedError
from moefabric.agents.engine.transfers import Receive


class ExchangeKey(NamedTuple):
    """Identity of an exchange: its group's name and ranks, and its number in the group."""

    name: str
    group: tuple[int, ...]
    number: int

    def __str__(self) -> str:
        return f"exchange {self.number} of ranks {', '.join(map(str, self.group))}"


class Ask(NamedTuple):
    """Request of a rank for an exchange.

    Attributes:
        blocks_out: The rank's memory with the block for each member of the group.
        blocks_in: The rank's memory for the block from each member.
        reply: Called at the end with the reason of a failure, or an empty text.
    """

    blocks_out: list[memoryview]
    blocks_in: list[memoryview]
    reply: Callable[[str], None]


def blocks(what: str, sizes: Sequence[int], memory: memoryview) -> list[memoryview]:
    """Divide memory into blocks of these sizes.

    Raises:
        RefusedError: if the blocks are not as large as the memory.
    """
    if sum(sizes) != len(memory):
        raise RefusedError(f"{what}: {sum(sizes)} bytes in blocks, {len(memory)} in memory")
    return [memory[end - size : end] for end, size in zip(accumulate(sizes), sizes)]


class Exchange:
    """An exchange that ranks of this server have asked for.

    Attributes:
        asks: What they have asked for, by member of the group.
        servers: The server of each member, as the last request for the exchange names it.
        received: Transfers of bytes from other servers, by server, with their offsets.
    """

    def __init__(self, key: ExchangeKey) -> None:
        self.key = key
        self.asks: dict[int, Ask] = {}
        self.servers: list[str] = []
        self.received: dict[str, list[tuple[int, Receive]]] = {}

    def add(self, member: int, ask: Ask) -> None:
        """Add a member's request, and copy its blocks to and from members of this server."""
        if member in self.asks:
            raise RefusedError(f"{self.key}: rank {self.key.group[member]} has asked already")
        self.asks[member] = ask
        for other, theirs in self.asks.items():
            if other != member:
                _copy(ask.blocks_out[other], theirs.blocks_in[member])
                _copy(theirs.blocks_out[member], ask.blocks_in[other])

    def owed(self, peer: str) -> Iterator[memoryview]:
        """Yield the blocks for a peer."""
        there = [member for member, server in enumerate(self.servers) if server == peer]
        for _, ask in sorted(self.asks.items()):
            for member in there:
                yield ask.blocks_out[member]

    def due(self, peer: str) -> Iterator[memoryview]:
        """Yield the places of the blocks from a peer."""
        for member, server in enumerate(self.servers):
            if server == peer:
                for _, ask in sorted(self.asks.items()):
                    yield ask.blocks_in[member]

    def expect(self, receive: Receive, fields: Fields) -> None:
        """Have a transfer store its bytes where they belong."""
        receive.payload = part(self.due(receive.peer), receive.bytes, fields)
        offset = fields.integer("offset", 0, 1 << 62)
        self.received.setdefault(receive.peer, []).append((offset, receive))

    def missing(self) -> str:
        """Return which bytes have not come from other servers; empty if all have."""
        here = {self.servers[member] for member in self.asks}
        for peer in sorted({*self.servers} - here):
            position, total = 0, sum(map(len, self.due(peer)))
            come = [(begin, begin + r.bytes) for begin, r in self.received.get(peer, []) if r.ok]
            for begin, end in sorted(come):
                if begin <= position:
                    position = max(position, end)
            if position < total:
                return f"byte {position} of {total} from {peer} has not come"
        return ""


def _copy(source: memoryview, target: memoryview) -> None:
    if len(source) == len(target):  # the fleet reports ranks that disagree
        target[:] = source


def part(pieces: Iterable[memoryview], size: int, fields: Fields) -> Pieces:
    """Return a part of the bytes of a pair of servers, which begins at `offset`.

    Raises:
        RefusedError: if the part ends beyond the bytes.
    """
    offset = fields.integer("offset", 0, 1 << 62)
    chosen, begin = [], 0
    for piece in pieces:
        first, last = max(0, offset - begin), min(len(piece), offset + size - begin)
        if first < last:
            chosen.append(piece[first:last])
        begin += len(piece)
    if offset + size > begin:
        raise RefusedError(
            f"{fields.place}offset: {size} bytes at {offset} end beyond the {begin} of the pair"
        )
    return Pieces(chosen)


class Exchanges:
    """The exchanges that ranks of this server have asked for and that have not ended."""

    def __init__(self) -> None:
        self.pending: dict[ExchangeKey, Exchange] = {}

    def ask(self, key: ExchangeKey, member: int, ask: Ask) -> None:
        """Add the request of a rank."""
        self.pending.setdefault(key, Exchange(key)).add(member, ask)

    def carried(self, request: Fields) -> Exchange | None:
        """Return the exchange that a collective carries; None if it carries none."""
        if request.values.get("exchange") is None:
            return None
        fields = request.item("exchange")
        exchange = self._pending(exchange_key(fields))
        exchange.servers = servers_of(fields)
        return exchange

    def finish(self, request: Fields) -> None:
        """End an exchange and tell its ranks."""
        key, error = exchange_key(request), request.text("error", "")
        exchange = self._pending(key)
        if not error:
            exchange.servers = servers_of(request)
            error = exchange.missing()
        del self.pending[key]
        for ask in exchange.asks.values():
            ask.reply(error)
        if error and not request.text("error", ""):
            raise RefusedError(f"{key}: {error}")

    def fail_all(self, why: str) -> None:
        """End all exchanges with an error."""
        pending, self.pending = self.pending, {}
        for exchange in pending.values():
            for ask in exchange.asks.values():
                ask.reply(why)

    def _pending(self, key: ExchangeKey) -> Exchange:
        if key not in self.pending:
            raise RefusedError(f"{key}: no rank of this server has asked for it")
        return self.pending[key]


def exchange_key(fields: Fields) -> ExchangeKey:
    """Return the exchange that a request names."""
    group, number = fields.integers("group"), fields.integer("number", 0, 1 << 62)
    return ExchangeKey(fields.text("name", ""), tuple(group), number)


def servers_of(fields: Fields) -> list[str]:
    """Return the server of each member of a request's exchange."""
    servers = fields.texts("servers")
    if len(servers) != len(fields.integers("group")):
        raise RefusedError(f"{fields.place}servers: one for each rank of the group is needed")
    return servers
