"""Connect requests: answered when all their connections are up, or one can't be."""

from __future__ import annotations

from typing import Any

from agents.engine.control import Control
from agents.engine.outgoing import Outgoing


class Connecting:
    """A connect request that waits until all its connections are up, or one can't be."""

    def __init__(self, control: Control, name: str, number: Any) -> None:
        self.control, self.name, self.number = control, name, number
        self.all: list[Outgoing] = []
        self.waiting: set[Outgoing] = set()
        self.open = False

    def wait(self, connections: list[Outgoing]) -> None:
        """Answer as soon as all of these are up or lost."""
        self.all = connections
        self.waiting = {out for out in connections if out.state not in ("up", "lost")}
        self.open = True
        self._answer_if_over()

    def settled(self, connection: Outgoing) -> None:
        """A connection is up, or lost; maybe before all were opened."""
        self.waiting.discard(connection)
        self._answer_if_over()

    def deadline(self) -> None:
        for connection in list(self.waiting):
            connection.lose(f"still {connection.state} at the deadline")

    def _answer_if_over(self) -> None:
        if self.waiting or not self.open:
            return
        self.open = False
        down = [f"{out.way}: {out.why}" for out in self.all if out.state != "up"]
        facts = [out.facts() for out in self.all]
        if down:
            error = f"{self.name}: no connection to " + "; ".join(down)
            self.control.say({"id": self.number, "ok": False, "error": error, "paths": facts})
        else:
            self.control.say({"id": self.number, "ok": True, "paths": facts})
