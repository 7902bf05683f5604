"""The agent: what it does for each op that its control channels ask for."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from typing import Any

from agents.engine.arrivals import Arrivals
from agents.engine.asked import parts, text, whole, whole_object
from agents.engine.clock import NOW, clock_identity
from agents.engine.collective import Collective
from agents.engine.collectives import Collectives
from agents.engine.connecting import Connecting
from agents.engine.connections import Connections
from agents.engine.control import Control
from agents.engine.errors import RefusedError, said
from agents.engine.outgoing import SNDBUF
from agents.engine.ranks import Ranks
from agents.engine.server import Server
from agents.engine.ways import Way
from agents.engine.wire import VERSION


class Agent:
    """One server's sender and receiver."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.server = Server(name)
        self.loop = self.server.loop
        self.arrivals = Arrivals(self.server.counts)
        self.connections = Connections(self.server, self.arrivals)
        self.collectives = Collectives(self.loop, self.connections, self.arrivals)
        self.ranks = Ranks()

    def request(self, control: Control, line: bytes) -> None:
        """Do what a line asks, and reply."""
        number = None
        try:
            asked = whole_object(line)
            number = asked.get("id")
            reply = operation(asked)(self, control, asked)
        except (RefusedError, OSError, ValueError) as error:
            why = said(error) if isinstance(error, OSError) else str(error)
            control.say({"id": number, "ok": False, "error": f"{self.name}: {why}"})
            return
        if reply is not None:
            control.say({"id": number, "ok": True, **reply})

    def hello(self, control: Control, _asked: dict[str, Any]) -> dict[str, Any]:
        """Who this is. Whoever has greeted hears of ranks that die."""
        self.ranks.hear(control)
        return {
            "name": self.name, "version": VERSION, "pid": os.getpid(), "python": platform.python_version(),
            "monotonic_ns": NOW(), "clock": clock_identity(), "dead": sorted(self.ranks.dead),
        }  # fmt: skip

    def clock(self, _control: Control, _asked: dict[str, Any]) -> dict[str, Any]:
        """What time it is here."""
        return {"monotonic_ns": NOW()}

    def listen(self, _control: Control, asked: dict[str, Any]) -> dict[str, Any]:
        """Open the data port; port 0 lets the kernel choose. Asked again, the same port is told."""
        wanted = text("", asked, "address"), whole("", asked, "port", 0, 65535, 0)
        address, port = self.connections.listen(*wanted)
        return {"address": address, "port": port}

    def connect(self, control: Control, asked: dict[str, Any]) -> None:
        """Open connections. The reply comes when all are up, or names those that aren't."""
        congestion = text("", asked, "congestion", "cubic")
        sndbuf = whole("", asked, "sndbuf", 4096, 1 << 30, SNDBUF)
        deadline = whole("", asked, "deadline_ns", 0, 1 << 63, NOW() + 10_000_000_000)
        ways = [Way(place, part) for place, part in parts("", asked, "paths")]
        request = Connecting(control, self.name, asked.get("id"))
        request.wait([self.connections.open(way, congestion, sndbuf, request.settled) for way in ways])
        self.loop.at(deadline, request.deadline)

    def collective(self, control: Control, asked: dict[str, Any]) -> dict[str, Any]:
        """Arm a collective; it starts by itself and ends with an event."""
        number = whole("", asked, "collective", 0, (1 << 64) - 1)
        self.collectives.refuse_armed(number)
        self.collectives.arm(Collective(number, asked, control.say))
        return {"armed": number}

    def abandon(self, _control: Control, asked: dict[str, Any]) -> dict[str, Any]:
        """End a collective as it is, before its deadline; nothing to do where it has ended. Connections in mid-transfer go with it."""
        number = whole("", asked, "collective", 0, (1 << 64) - 1)
        return {"abandoned": self.collectives.abandon(number)}

    def rank(self, _control: Control, asked: dict[str, Any]) -> dict[str, Any]:
        """The process of a GPU has died, or runs again; all who have greeted are told."""
        gpu, alive = whole("", asked, "gpu", 0, 1 << 16), asked.get("alive")
        if not isinstance(alive, bool):
            raise RefusedError(f"alive: {alive!r} is neither true nor false")
        if alive:
            self.ranks.came_back(gpu)
        else:
            self.ranks.died(gpu)
        return {"dead": sorted(self.ranks.dead)}

    def stats(self, _control: Control, _asked: dict[str, Any]) -> dict[str, Any]:
        """What this agent has done."""
        return {
            **self.server.counts, "faults": self.loop.faults, "cpu_ns": time.process_time_ns(), "monotonic_ns": NOW(),
            "armed": list(self.collectives.armed),
            "connections": [out.facts() for out in self.connections.outgoing.values()],
            "from": [{"peer": peer, "path": path} for peer, path in self.connections.incoming],
        }  # fmt: skip

    def close(self, _control: Control, _asked: dict[str, Any]) -> dict[str, Any]:
        """Close every data connection and the data port; collectives under way end as they are."""
        self.connections.close()
        self.collectives.close()
        return {}

    def stop(self, control: Control, asked: dict[str, Any]) -> dict[str, Any]:
        """Close all and end."""
        self.close(control, asked)
        self.loop.stop()
        return {}


OPS: dict[str, Callable[[Agent, Control, dict[str, Any]], dict[str, Any] | None]] = {
    "hello": Agent.hello, "clock": Agent.clock, "listen": Agent.listen, "connect": Agent.connect,
    "collective": Agent.collective, "abandon": Agent.abandon, "rank": Agent.rank, "stats": Agent.stats, "close": Agent.close, "stop": Agent.stop,
}  # fmt: skip


def operation(asked: dict[str, Any]) -> Callable[[Agent, Control, dict[str, Any]], dict[str, Any] | None]:
    """What does the op that is asked for."""
    name = text("", asked, "op")
    if name not in OPS:
        raise RefusedError(f"op: does not know {name!r}; knows {', '.join(OPS)}")
    return OPS[name]
