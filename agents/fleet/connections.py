"""Data connections between agents: one for each path of a pair of servers."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from moefabric.agents.fleet.channel import Channel, request_all
from moefabric.agents.fleet.clocks import FleetClocks
from moefabric.agents.fleet.messages import Message
from moefabric.core.flows import PacedFlow
from moefabric.core.units import NS_PER_S, duration_ns

REPORT_S: Final = 2.0
"""Time in which agents must report after a deadline."""
RECONNECT_S: Final = 10.0
"""Timeout for opening broken connections again."""


@dataclass(frozen=True)
class DataPath:
    """Path between a pair of servers.

    Attributes:
        path: The sender's NIC (`o1`), or another name that the pair has once.
        address: An address of the receiver or, if there is one, of the relay.
        dscp: Selects the sender's NIC.
        reply_dscp: Selects the receiver's NIC for its packets, including TCP acknowledgements.
        source: The sender's address; empty for that of its interface.
        relay: Server whose agent receives the path's transfers and sends them on. It needs a path
            of its own to the receiver.
    """

    src: str
    dst: str
    path: str
    address: str
    dscp: int = 0
    reply_dscp: int = 0
    source: str = ""
    relay: str = ""

    @property
    def servers(self) -> frozenset[str]:
        """The servers whose agents the path needs."""
        return frozenset((self.src, self.dst, self.relay)) - {""}


class DataConnections:
    """The data connections of all agents.

    Args:
        channel: Returns the control channel of a server's agent.

    Attributes:
        listening: Each agent's data ports by address, and the secret that greetings need.
    """

    def __init__(self, channel: Callable[[str], Channel], clocks: FleetClocks) -> None:
        self._channel, self._clocks = channel, clocks
        self.listening: dict[str, Message] = {}
        self._paths: dict[tuple[str, str, str], DataPath] = {}
        self._options: Message = {}

    def connect(
        self,
        paths: Sequence[DataPath],
        deadline_s: float = 10.0,
        congestion: str = "cubic",
        sndbuf: int = 512 * 1024,
    ) -> None:
        """Open a data connection for every path; those over relays after the others.

        Args:
            deadline_s: How long opening them may take.
            sndbuf: Socket send buffer in bytes: at least the path's bandwidth-delay product, yet
                small enough that bytes which count as sent have nearly left.
        """
        addresses: dict[str, set[str]] = {}
        for path in paths:
            addresses.setdefault(path.relay or path.dst, set()).add(path.address)
        requests: dict[Channel, tuple[str, Message]] = {}
        for server, listened in addresses.items():
            fields = {"addresses": sorted(listened), "congestion": congestion}
            requests[self._channel(server)] = "listen", fields
        self.listening |= request_all(requests, deadline_s)
        self._paths |= {(path.src, path.dst, path.path): path for path in paths}
        self._options = {"congestion": congestion, "sndbuf": sndbuf}
        until_ns = time.monotonic_ns() + duration_ns(deadline_s)
        self._open([path for path in paths if not path.relay], until_ns)
        self._open([path for path in paths if path.relay], until_ns)

    def _open(self, paths: Sequence[DataPath], until_ns: int) -> None:
        by_sender: dict[str, list[Message]] = {}
        for path in paths:
            by_sender.setdefault(path.src, []).append(self.destination(path))
        requests: dict[Channel, tuple[str, Message]] = {}
        for src, destinations in by_sender.items():
            fields = {"paths": destinations, "deadline_ns": self._clocks.their_time(src, until_ns)}
            requests[self._channel(src)] = "connect", {**fields, **self._options}
        left_s = (until_ns - time.monotonic_ns()) / NS_PER_S
        request_all(requests, max(0.0, left_s) + REPORT_S)

    def destination(self, path: DataPath) -> Message:
        """Return a path as requests name it, with the port and secrets of those who listen."""
        fields = {**vars(path), "peer": path.dst, "secret": self.listening[path.dst]["secret"]}
        del fields["src"], fields["dst"]
        if path.relay:
            fields["relay_secret"] = self.listening[path.relay]["secret"]
        return {**fields, "port": self.listening[path.relay or path.dst]["ports"][path.address]}

    def relays(self, flows: Sequence[PacedFlow]) -> list[str]:
        """Return the servers whose agents forward flows."""
        paths = (self._paths.get((flow.src, flow.dst, flow.path)) for flow in flows)
        return sorted({path.relay for path in paths if path is not None and path.relay})

    def open_broken(self, stats: Mapping[str, Message]) -> None:
        """Open broken connections again between the servers that have sent their statistics."""
        intact = {
            (src, connection["peer"], connection["path"])
            for src, reply in stats.items()
            for connection in reply["connections"]
            if connection["state"] == "up"
        }
        broken = [path for key, path in self._paths.items() if key not in intact]
        self._open_again(broken, frozenset(stats))

    def open_of(self, returned: frozenset[str], present: frozenset[str]) -> None:
        """Open the connections of servers that have returned to all servers that are present."""
        self._open_again([p for p in self._paths.values() if p.servers & returned], present)

    def _open_again(self, paths: Sequence[DataPath], present: frozenset[str]) -> None:
        if paths := [path for path in paths if path.servers <= present]:
            self.connect(paths, RECONNECT_S, **self._options)
