"""Ranks without PyTorch: threads of the test that exchange random bytes through agents."""

import os
import threading
import time
from collections.abc import Sequence

from moefabric.agents.fleet.fleet import Fleet
from moefabric.core.exchange import Exchange
from moefabric.execution.torch.agent_link import AgentLink, ExchangeRequest, SharedMemory


class MemoryRank:
    """A rank whose tensors are bytes.

    Attributes:
        data: What it sends.
        memory: Its shared memory: what it sends and then what it has received.
        ended: Set when the exchange has ended; `error` is then empty, or why it failed.
    """

    def __init__(self, number: int, path: str) -> None:
        self.number, self.link = number, AgentLink(path, number)
        self.data = b""
        self.memory: SharedMemory | None = None
        self.ended = threading.Event()
        self.error = ""

    def ask(self, sizes: Sequence[Sequence[int]], number: int, name: str = "") -> None:
        """Ask for an exchange of all ranks, of bytes [sending rank][receiving rank]."""
        sends, receives = sizes[self.number], [row[self.number] for row in sizes]
        self.data, self.error = os.urandom(sum(sends)), ""
        self.ended.clear()
        self.memory = self.link.memory(sum(sends) + sum(receives))
        self.memory.bytes[: sum(sends)] = self.data
        request = ExchangeRequest(name, range(len(sizes)), number, sends, receives, "uint8")
        self.link.ask(request, self.memory, sum(sends), self._end)

    def blocks(self, sizes: Sequence[Sequence[int]]) -> list[bytes]:
        """Return what has come from each rank."""
        assert self.memory is not None
        place, blocks = len(self.data), []
        for row in sizes:
            blocks.append(self.memory.bytes[place : place + row[self.number]])
            place += row[self.number]
        return blocks

    def why(self) -> str:
        """Return why the exchange failed; empty if it ended well."""
        assert self.ended.wait(10)
        return self.error

    def _end(self, error: str) -> None:
        self.error = error
        self.ended.set()


def reasons(fleet: Fleet, ranks: Sequence[MemoryRank]) -> list[str]:
    """Return why the exchange of each rank failed, while the fleet handles what arrives."""
    until_ns = time.monotonic_ns() + 10**10
    while not all(rank.ended.is_set() for rank in ranks) and time.monotonic_ns() < until_ns:
        fleet.lost_ranks()
        fleet.wait_ended(time.monotonic_ns() + 10**7)
    return [rank.why() for rank in ranks]


def next_exchange(fleet: Fleet) -> Exchange:
    """Return the next exchange that all its ranks have asked for."""
    until_ns = time.monotonic_ns() + 10**10
    while not (exchanges := fleet.take_exchanges()):
        assert time.monotonic_ns() < until_ns, "no exchange came"
        fleet.wait_ended(until_ns)
    (exchange,) = exchanges
    return exchange


def check_blocks(ranks: Sequence[MemoryRank], sizes: Sequence[Sequence[int]]) -> None:
    """Check that every rank has what the others sent to it; its own block stays with it."""
    for receiver in ranks:
        for sender, block in zip(ranks, receiver.blocks(sizes), strict=True):
            if sender is not receiver:
                begin = sum(sizes[sender.number][: receiver.number])
                assert block == sender.data[begin : begin + len(block)]
