"""Arrivals: transfers that are expected, that come before they are expected, or too late."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from moefabric.agents.engine.pieces import Discarded, Pieces
from moefabric.agents.engine.transfers import Receive, TransferKey

REMEMBERED = 1024  # number of ended collectives whose late transfers are recognised


class Arrivals:
    """The transfers that a server expects from its peers.

    Attributes:
        held: By transfer of ranks' bytes that came too early, what reads it once it is expected.
    """

    def __init__(self, counters: dict[str, int]) -> None:
        self.counters = counters
        self.expected: dict[TransferKey, Receive] = {}
        self.early: OrderedDict[TransferKey, Receive] = OrderedDict()
        self.ended: OrderedDict[int, None] = OrderedDict()
        self.held: dict[TransferKey, Callable[[], object]] = {}

    def expect(self, receive: Receive) -> Receive:
        """Expect a transfer; return the one that has already begun, if any, else this one."""
        early = self.early.pop(receive.key, None)
        if early is not None:
            if early.bytes != receive.bytes:
                sizes = f"{early.bytes} bytes were sent where {receive.bytes} are expected"
                early.ok, early.why = False, sizes
            receive = early
        if receive.ok is None:
            self.expected[receive.key] = receive
        held = self.held.pop(receive.key, None)
        if held is not None:
            held()
        return receive

    def begin(self, key: TransferKey, length: int) -> Receive:
        """Return the transfer that a header announces, be it expected, early or late."""
        expected = self.expected.get(key)
        if expected is not None and expected.ok is None and expected.first_ns is None:
            return expected
        receive = Receive(key, length)
        if expected is not None or key.collective in self.ended:
            self.counters["strays"] += 1
            return receive
        self.early[key] = receive
        while len(self.early) > 16 * REMEMBERED:
            self.early.popitem(last=False)
        return receive

    def is_early(self, key: TransferKey) -> bool:
        """Return whether a transfer came before the request that says where its bytes belong."""
        return key not in self.expected and key.collective not in self.ended

    def begin_content(
        self, key: TransferKey, length: int, *, is_checked: bool
    ) -> tuple[Receive, Pieces]:
        """Return the transfer of ranks' bytes that a header announces, and their places.

        Unexpected bytes are discarded. `why` of the transfer says what is wrong with it; an
        unexpected message, which has no checksum, is only counted.
        """
        receive = self.expected.get(key)
        content = None if receive is None else receive.content
        discarded = Discarded(length, is_checked=is_checked)
        if receive is None or content is None or receive.ok is not None or receive.first_ns:
            self.counters["strays"] += 1
            receive = Receive(key, length)
            receive.why = "nobody expects it" if is_checked else ""
            return receive, discarded
        if receive.bytes != length:
            receive.why = f"{length} bytes were sent where {receive.bytes} are expected"
            return receive, discarded
        return receive, content

    def expected_from(self, peer: str, path: str) -> list[Receive]:
        """Return the transfers that are expected from a peer by a path."""
        return [r for r in self.expected.values() if (r.peer, r.path) == (peer, path)]

    def collective_armed(self, number: int) -> None:
        """Accept transfers of a collective, whose number may have been used before."""
        self.ended.pop(number, None)

    def collective_ended(self, number: int, receives: list[Receive]) -> None:
        """Treat transfers of a collective as late from now on."""
        for receive in receives:
            self.expected.pop(receive.key, None)
        self.ended[number] = None
        while len(self.ended) > REMEMBERED:
            self.ended.popitem(last=False)
