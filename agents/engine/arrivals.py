"""Arrivals: which transfers are expected, which came before they were, and which come too late."""

from __future__ import annotations

from collections import OrderedDict

from agents.engine.transfers import Receive

REMEMBERED = 1024  # collectives that ended, whose latecomers are known as such


class Arrivals:
    """What a server expects of its peers."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts
        self.expected: dict[tuple[int, str, str, int], Receive] = {}
        self.early: OrderedDict[tuple[int, str, str, int], Receive] = OrderedDict()
        self.ended: OrderedDict[int, None] = OrderedDict()

    def expect(self, receive: Receive) -> Receive:
        """Expect a transfer; the very transfer if it has come, or is coming, already."""
        early = self.early.pop(receive.key, None)
        if early is not None:
            if early.bytes != receive.bytes:
                early.ok = False
                early.why = f"{early.bytes} bytes were sent where {receive.bytes} are expected"
            receive = early
        if receive.ok is None:
            self.expected[receive.key] = receive
        return receive

    def arriving(self, collective: int, peer: str, path: str, sequence: int, length: int) -> Receive:
        """The transfer that a header announces: an expected one, one that is early, or a stray."""
        key = (collective, peer, path, sequence)
        expected = self.expected.get(key)
        if expected is not None and expected.ok is None and expected.first_ns is None:
            return expected
        receive = Receive(collective, peer, path, sequence, length)
        if expected is not None or collective in self.ended:
            self.counts["strays"] += 1
            return receive
        self.early[key] = receive
        while len(self.early) > 16 * REMEMBERED:
            self.early.popitem(last=False)
        return receive

    def by(self, peer: str, path: str) -> list[Receive]:
        """What is expected of a peer by a path."""
        return [receive for receive in self.expected.values() if (receive.peer, receive.path) == (peer, path)]

    def armed(self, collective: int) -> None:
        """A collective is armed, maybe one of a number that was used before."""
        self.ended.pop(collective, None)

    def over(self, collective: int, receives: list[Receive]) -> None:
        """A collective has ended; what comes of it from now on is late."""
        for receive in receives:
            self.expected.pop(receive.key, None)
        self.ended[collective] = None
        while len(self.ended) > REMEMBERED:
            self.ended.popitem(last=False)
