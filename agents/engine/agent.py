"""The agent: executes the requests of its control channels."""

from __future__ import annotations

import fcntl
import os
import platform
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from moefabric.agents.engine.clock import clock_identity
from moefabric.agents.engine.collectives import Collectives
from moefabric.agents.engine.connections import Connections
from moefabric.agents.engine.control import ControlChannel
from moefabric.agents.engine.exchanges import Exchanges
from moefabric.agents.engine.outgoing import SNDBUF, OutgoingConnection
from moefabric.agents.engine.programs import Programs
from moefabric.agents.engine.rank_port import RankPort
from moefabric.agents.engine.requests import Fields, RefusedError, os_error_text, parse_request
from moefabric.agents.engine.resources import Resources
from moefabric.agents.engine.sockets import Destination
from moefabric.runtime.event_loop import NOW

_GET_ADDRESS = 0x8915  # SIOCGIFADDR, netdevice(7)
_REQUEST = "256s"  # a struct ifreq and some room; a reply's address is at 20


def ssh_address() -> str:
    """Return the address of this host that its SSH client has connected to; empty without one."""
    words = os.environ.get("SSH_CONNECTION", "").split()  # client, port, server, port
    return words[2] if len(words) == 4 else ""


def interface_addresses() -> dict[str, str]:
    """Return the first IPv4 address of each interface that has one."""
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack(_REQUEST, name.encode())
            with suppress(OSError):  # it has none
                reply = fcntl.ioctl(probe, _GET_ADDRESS, request)
                addresses[name] = socket.inet_ntoa(reply[20:24])
    return addresses


class Agent:
    """Sender and receiver of a server.

    Attributes:
        operations: Functions that execute a request and return the reply, by operation.
        channel_operations: Functions that also need the channel, for events or a later reply.
    """

    def __init__(self, resources: Resources) -> None:
        self.name, self.resources = resources.name, resources
        self.loop = resources.loop
        self.connections = Connections(self.resources)
        self.exchanges = Exchanges()
        self.collectives = Collectives(self.resources, self.connections, self.exchanges)
        self.programs = Programs(self.resources, self.connections)
        self.dead_ranks: set[int] = set()
        self.subscribers: list[ControlChannel] = []
        self.rank_port = RankPort(
            self.resources, self.exchanges, self._publish, self.connections.make_room
        )
        self.operations: dict[str, Callable[[Fields], dict[str, Any] | None]] = {
            "clock": self.clock, "listen": self.listen, "abandon": self.abandon,
            "rank": self.rank, "stats": self.stats, "load": self.programs.load,
            "prepare": self.programs.prepare, "verify": self.programs.verify,
            "release": self.programs.release, "finish": self.exchanges.finish,
            "dismiss": lambda _request: self.rank_port.dismiss(),
            "close": self.close,
        }  # fmt: skip
        self.channel_operations: dict[
            str, Callable[[Fields, ControlChannel], dict[str, Any] | None]
        ] = {
            "hello": self.hello, "connect": self.connect, "collective": self.collective,
            "start": self.programs.start,
        }  # fmt: skip

    def handle_line(self, control: ControlChannel, line: bytes) -> None:
        """Execute a request and reply."""
        number = None
        try:
            request = parse_request(line)
            number = request.values.get("id")
            reply = self._execute(control, request)
        except (RefusedError, OSError, ValueError) as error:
            why = os_error_text(error) if isinstance(error, OSError) else str(error)
            control.send({"id": number, "ok": False, "error": f"{self.name}: {why}"})
            return
        if reply is not None:
            control.send({"id": number, "ok": True, **reply})

    def _execute(self, control: ControlChannel, request: Fields) -> dict[str, Any] | None:
        op = request.text("op")
        if op in self.operations:
            return self.operations[op](request) or {}
        if op in self.channel_operations:
            return self.channel_operations[op](request, control)
        known = ", ".join((*self.channel_operations, *self.operations))
        raise RefusedError(f"op: does not know {op!r}; knows {known}")

    def _publish(self, event: dict[str, Any]) -> None:
        """Send an event to all channels that said hello."""
        for channel in self.subscribers:
            channel.send(event)

    def channel_ended(self) -> None:
        """End the exchanges of ranks if nobody is left who could carry them out."""
        listened = bool(self.subscribers)
        self.subscribers = [channel for channel in self.subscribers if channel.open]
        if listened and not self.subscribers:
            self.exchanges.fail_all("the program that carries exchanges out has ended")

    def hello(self, _request: Fields, control: ControlChannel) -> dict[str, Any]:
        """Identify this agent and subscribe the channel to rank events."""
        if control not in self.subscribers:
            self.subscribers = [channel for channel in self.subscribers if channel.open] + [control]
        for event in self.rank_port.pending_events():
            control.send(event)
        with self.resources.network:
            interfaces = interface_addresses()
        return {
            "name": self.name,
            "pid": os.getpid(),
            "python": platform.python_version(),
            "monotonic_ns": NOW(),
            "clock": clock_identity(),
            "dead": sorted(self.dead_ranks),
            "ranks": self.rank_port.path,
            "address": ssh_address(),
            "interfaces": interfaces,
        }

    def clock(self, _request: Fields) -> dict[str, Any]:
        """Return the time."""
        return {"monotonic_ns": NOW()}

    def listen(self, request: Fields) -> dict[str, Any]:
        """Open data ports at addresses; return their numbers and the secret for greetings."""
        ports = self.connections.listen(request.texts("addresses"), request.text("congestion", ""))
        return {"ports": ports, "secret": self.resources.secret}

    def connect(self, request: Fields, control: ControlChannel) -> None:
        """Open connections and reply when all are up, or with those that failed."""
        congestion = request.text("congestion", "cubic")
        sndbuf = request.integer("sndbuf", 4096, 1 << 30, SNDBUF)
        deadline_ns = request.integer("deadline_ns", 0, 1 << 63, NOW() + 10_000_000_000)
        destinations = [Destination(path, congestion, sndbuf) for path in request.objects("paths")]

        def reply(connections: list[OutgoingConnection]) -> None:
            down = [f"{out.destination}: {out.why}" for out in connections if out.state != "up"]
            fault = {"error": f"{self.name}: no connection to {'; '.join(down)}"} if down else {}
            control.send({"id": request.values.get("id"), "ok": not down, **fault})

        self.connections.open_all(destinations, deadline_ns, reply)

    def collective(self, request: Fields, control: ControlChannel) -> dict[str, Any]:
        """Arm a collective, which begins at its instant; an event reports its end."""
        return {"armed": self.collectives.arm(request, control.send)}

    def abandon(self, request: Fields) -> None:
        """End a collective or run that hasn't ended; close connections that are in mid-transfer."""
        number = request.integer("collective", 0, (1 << 64) - 1)
        self.collectives.abandon(number)
        self.programs.abandon(number)

    def rank(self, request: Fields) -> None:
        """Report to all subscribers that the rank on a GPU has died or lives again."""
        gpu, alive = request.integer("gpu", 0, 1 << 16), request.values.get("alive")
        if not isinstance(alive, bool):
            raise RefusedError(f"alive: {alive!r} is neither true nor false")
        (self.dead_ranks.discard if alive else self.dead_ranks.add)(gpu)
        self._publish({"event": "rank", "gpu": gpu, "alive": alive})

    def stats(self, _request: Fields) -> dict[str, Any]:
        """Return counters, armed collectives and connections; CPU and faults of the process."""
        return {
            **self.resources.counters,
            "faults": self.loop.faults,
            "cpu_ns": time.process_time_ns(),
            "armed": list(self.collectives.armed),
            "programs": list(self.programs.programs),
            "ranks": sorted(self.rank_port.ranks),
            "connections": [out.facts() for out in self.connections.outgoing.values()],
            "from": [{"peer": peer, "path": path} for peer, path in self.resources.incoming],
            "relays": list(self.resources.relays),  # sender, receiver and path of each
        }

    def close(self, _request: Fields) -> None:
        """Close all data connections and the data port; end open collectives."""
        self.connections.close()
        self.collectives.close()
        self.programs.close()
