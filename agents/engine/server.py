"""The server that an agent is of, as its connections see it."""

from __future__ import annotations

from agents.engine.buffer import READ, Buffer
from agents.engine.loop import Loop
from agents.engine.payload import common_pattern


class Server:
    """What all connections of one server share: its name, its loop, what is sent, where reads go, and what was counted."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.loop = Loop()
        self.pattern = common_pattern()
        self.buffer = Buffer(READ)
        self.counts = {"bytes_sent": 0, "bytes_received": 0, "corrupt": 0, "strays": 0}
