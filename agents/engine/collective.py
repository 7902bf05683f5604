"""A collective: what one server sends and receives together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agents.engine.asked import parts, rate, text, whole
from agents.engine.transfers import Receive, Send, Transfer


class Collective:
    """What this server sends and receives together; ends when all of it has ended."""

    def __init__(self, number: int, asked: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
        """As a request asks for it; `tell` is told how it ended. RefusedError names the field that is wrong."""
        self.number, self.tell = number, tell
        self.start_ns = None if asked.get("start_ns") is None else whole("", asked, "start_ns", 0, 1 << 63)
        self.deadline_ns = whole("", asked, "deadline_ns", 0, 1 << 63)
        self.sends = sends(number, asked)
        self.receives = receives(number, asked)
        self.left = 0
        self.began_ns: int | None = None
        self.over: Callable[[Collective], None] = lambda _: None

    def own(self, transfer: Transfer) -> None:
        transfer.ended = self.one_less
        self.left += transfer.ok is None

    def one_less(self) -> None:
        self.left -= 1
        if not self.left and self.began_ns is not None:
            self.over(self)

    def told(self) -> dict[str, Any]:
        """The event that ends it."""
        late = None if self.began_ns is None or self.start_ns is None else self.began_ns - self.start_ns
        return {
            "event": "done", "collective": self.number, "start_ns": self.began_ns, "start_late_ns": late or 0,
            "sends": [send.told() for send in self.sends], "receives": [receive.told() for receive in self.receives],
        }  # fmt: skip


def sends(number: int, asked: dict[str, Any]) -> list[Send]:
    """What a request lets leave."""
    found: list[Send] = []
    for place, part, sequence in _numbered("sends", asked):
        peer, path = text(place, part, "peer"), text(place, part, "path")
        size = whole(place, part, "bytes", 0, 1 << 62)
        found.append(Send(number, peer, path, sequence, size, rate(place, part)))
    return found


def receives(number: int, asked: dict[str, Any]) -> list[Receive]:
    """What a request lets arrive."""
    found: list[Receive] = []
    for place, part, sequence in _numbered("receives", asked):
        peer, path = text(place, part, "peer"), text(place, part, "path")
        found.append(Receive(number, peer, path, sequence, whole(place, part, "bytes", 0, 1 << 62)))
    return found


def _numbered(field: str, asked: dict[str, Any]) -> list[tuple[str, dict[str, Any], int]]:
    """Transfers of a request; those of one peer and path are numbered in order, at both ends alike."""
    seen: dict[tuple[Any, Any], int] = {}
    found = []
    for place, part in parts("", asked, field):
        way = (str(part.get("peer")), str(part.get("path")))
        found.append((place, part, seen.get(way, 0)))
        seen[way] = seen.get(way, 0) + 1
    return found
