"""The fleet: commands the agents of all servers together."""

import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from moefabric.agents.engine.clock import clock_identity
from moefabric.agents.fleet.channel import Channel, ask_all, request_all
from moefabric.agents.fleet.clocks import FleetClocks
from moefabric.agents.fleet.connections import REPORT_S, DataConnections
from moefabric.agents.fleet.exchanges import RankService, exchange_key
from moefabric.agents.fleet.inflight import InflightCollective, InflightCollectives
from moefabric.agents.fleet.liveness import LivenessMonitor, LostAgents
from moefabric.agents.fleet.messages import Message
from moefabric.core.closing import Closing
from moefabric.core.errors import AgentError, ServerLossError
from moefabric.core.exchange import Exchange
from moefabric.core.flows import FlowRecord, PacedFlow
from moefabric.core.units import duration_ns

LEAD_S: Final = 0.02
"""A collective starts at least this long after its request, so that all agents have it by then."""
LEAD_PER_AGENT_S: Final = 0.001
ABANDON_S: Final = 5.0
"""Timeout for agents to confirm that they have ended a collective."""


class Fleet(Closing):
    """All agents.

    Instants are CLOCK_MONOTONIC of this process; requests convert them to each agent's clock. Every
    method raises AgentError, which names the agents, if some are gone, refuse or are silent.

    Attributes:
        channels: The channels of agents that are not lost, by server.
        facts: Each agent's reply to `hello`.
        connect: Opens a data connection for each path.
        wake: Ends `wait_ended`; any thread may call it.
        new_number: Returns a number that no collective, program or run has had before.
        ranks: The ranks of programs that the agents serve.
        take_exchanges: Returns the exchanges that all their members have asked for since the last
            call.
        lost_ranks: Returns the ranks that have ended without leaving, with server and reason.
    """

    def __init__(
        self, channels: Iterable[Channel], liveness: LivenessMonitor | None = None
    ) -> None:
        self.channels = {channel.name: channel for channel in channels}
        self.facts = self.request("hello")
        for name, fact in self.facts.items():
            if fact["name"] != name:
                raise AgentError(f"agent {name}: it calls itself {fact['name']}")
        clock = clock_identity()
        ours = {name for name, fact in self.facts.items() if clock and fact["clock"] == clock}
        self.clocks = FleetClocks(self.channels.values(), frozenset(ours))
        self.connections = DataConnections(self.channel, self.clocks)
        self.connect = self.connections.connect
        self.liveness, self._lost = liveness or LivenessMonitor(), LostAgents()
        self._dead = {f"{name}/{gpu}" for name, fact in self.facts.items() for gpu in fact["dead"]}
        self._inflight = InflightCollectives(self.clocks.our_time)
        self.wake, self.new_number = self._inflight.wake, self._inflight.new_number
        self.ranks = RankService(self.channels, self.clocks.our_time)
        self.take_exchanges, self.lost_ranks = self.ranks.take, self.ranks.lost

    def request(self, op: str, deadline_s: float = 5.0, **fields: Any) -> dict[str, Message]:
        """Send the same request to all agents; return the replies by server."""
        return request_all(dict.fromkeys(self.channels.values(), (op, fields)), deadline_s)

    # --- collectives -----------------------------------------------------------------------------

    def run(
        self,
        collective: int,
        flows: Sequence[PacedFlow],
        start_ns: int | None = None,
        deadline_s: float = 30.0,
    ) -> list[FlowRecord]:
        """Send flows that start together while no other collective is in flight; return records.

        Args:
            start_ns: When they start; None for as soon as all agents have the request.
            deadline_s: Time after the start by which flows have to arrive to be ok.
        """
        if start_ns is None:
            start_ns = time.monotonic_ns() + self.lead_ns(_servers(flows))
        self.launch(flows, start_ns, deadline_s, number=collective)
        try:
            while collective not in (ended := self.wait_ended(None)):
                continue
        finally:
            self.liveness.check((), ())  # forgets its open probes
        return ended[collective]

    def lead_ns(self, servers: Collection[str]) -> int:
        """Return the time from a request until servers can start together, in ns."""
        lead_s = LEAD_S + LEAD_PER_AGENT_S * len(servers)
        return duration_ns(lead_s) + 4 * self.clocks.max_round_trip_ns(servers)

    def _requests(
        self,
        collective: int,
        flows: Sequence[PacedFlow],
        start_ns: int | None,
        until_ns: int,
        exchange: Exchange | None = None,
    ) -> dict[Channel, tuple[str, Message]]:
        """Return the request to each agent of a collective; without a start it begins at once."""
        transfers: dict[str, dict[str, list[Message]]] = {
            name: {"sends": [], "receives": []} for name in _servers(flows)
        }
        for flow in flows:
            common = {"path": flow.path, "bytes": flow.bytes, "offset": flow.offset}
            send = {"peer": flow.dst, "rate_bps": flow.rate_bps, **common}
            transfers[flow.src]["sends"].append(send)
            transfers[flow.dst]["receives"].append({"peer": flow.src, **common})
        requests: dict[Channel, tuple[str, Message]] = {}
        for name, sends_and_receives in transfers.items():
            times = {"deadline_ns": self.clocks.their_time(name, until_ns)}
            if start_ns is not None:
                times["start_ns"] = self.clocks.their_time(name, start_ns)
            fields: Message = {"collective": collective, **times, **sends_and_receives}
            if exchange is not None:
                key = exchange_key(exchange)._asdict()
                fields["exchange"] = {**key, "servers": exchange.servers}
            requests[self.channel(name)] = "collective", fields
        return requests

    def launch(
        self,
        flows: Sequence[PacedFlow],
        start_ns: int | None,
        deadline_s: float,
        exchange: Exchange | None = None,
        number: int | None = None,
    ) -> int:
        """Arm a collective without waiting for the agents' replies; return its number.

        Without a start, each server begins when it has the request, perhaps before its peer has it.
        So numbers are unique, and early bytes aren't mistaken for those of an older collective.

        Args:
            start_ns: When they start; None for as soon as each agent has its request.
            deadline_s: Time after the start by which flows have to arrive to be ok.
            exchange: The exchange whose bytes they carry. The bytes of a pair of servers are the
                blocks from the sender's to the receiver's ranks, ordered by sending and then by
                receiving member; each flow carries a part of them. Agents refuse a flow that ends
                beyond them.
            number: The collective's number; None for a new one.
        """
        number = self._inflight.new_number() if number is None else number
        until_ns = (time.monotonic_ns() if start_ns is None else start_ns) + duration_ns(deadline_s)
        relays = self.connections.relays(flows)
        self.liveness.check_reachable([*_servers(flows), *relays])
        forwarding = tuple(self.channel(relay) for relay in relays)
        requests = {
            channel: channel.post(op, **fields)
            for channel, (op, fields) in self._requests(
                number, flows, start_ns, until_ns, exchange
            ).items()
        }
        deadline_ns = until_ns + duration_ns(REPORT_S)
        collective = InflightCollective(tuple(flows), requests, deadline_ns, forwarding)
        self._inflight.collectives[number] = collective
        return number

    def wait_ended(self, until_ns: int | None) -> dict[int, list[FlowRecord]]:
        """Wait until a launched collective ends, `wake` is called or `until_ns` has come.

        While a job is prepared, the wait also ends when an exchange is new or a rank is lost.

        Args:
            until_ns: When the wait ends at the latest; None for no limit.

        Returns:
            The flow records of all collectives that have ended, by number.

        Raises:
            ServerLossError: if an agent or a rank of its server is lost.
        """
        try:
            return self._inflight.wait_ended(
                until_ns, self.liveness, self.ranks.watched, self.ranks.is_news
            )
        except ServerLossError as error:
            self.ranks.servers_lost(error.servers)
            raise

    def finish(self, exchange: Exchange, error: str = "") -> None:
        """End an exchange, whose ranks go on, or raise the error; nothing if it has failed before.

        Raises:
            AgentError: if bytes of the exchange have not come; its ranks raise that, too.
        """
        self.ranks.finish(exchange, error, self.liveness.silence_s)

    # --- losses ----------------------------------------------------------------------------------

    def losses(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return the servers that are dropped, and the GPUs (`s1/3`) whose ranks are dead."""
        for channel in self.channels.values():
            channel.read()
            for event in channel.rank_events:
                gpu = f"{channel.name}/{event['gpu']}"
                (self._dead.discard if event["alive"] else self._dead.add)(gpu)
            channel.rank_events.clear()
        return self._lost.names, frozenset(self._dead)

    def drop(self, servers: Iterable[str]) -> None:
        """Continue without some servers."""
        servers = list(servers)
        self.ranks.servers_lost(servers)
        for server in servers:
            if server in self.channels:
                self._lost.add(self.channels.pop(server))

    def abandon(self, collective: int) -> None:
        """End a collective at all agents that are left, as far as they are not gone."""
        self._inflight.forget(collective)
        request = "abandon", {"collective": collective}
        ask_all(dict.fromkeys(self.channels.values(), request), ABANDON_S)
        for channel in self.channels.values():
            channel.reports.pop(collective, None)

    def reconnect(self) -> None:
        """Open broken connections again between the servers that are left."""
        self.connections.open_broken(self.request("stats"))

    def readmit(self) -> frozenset[str]:
        """Connect servers that have come back to the others; return their names."""
        returned = self._lost.take_returned(self.liveness.unreachable)
        self.channels |= {channel.name: channel for channel in returned}
        names = frozenset(channel.name for channel in returned)
        if returned:
            request_all(dict.fromkeys(returned, ("close", {})), 5.0)
            self.connections.open_of(names, frozenset(self.channels))
        return names

    def close(self) -> None:
        """Close all control channels, which ends agents over SSH."""
        self._inflight.close()
        self._lost.close()
        for channel in self.channels.values():
            channel.close()

    def channel(self, name: str) -> Channel:
        """Return a server's control channel; raise AgentError if the server has no agent."""
        if name not in self.channels:
            servers = ", ".join(sorted(self.channels))
            raise AgentError(f"server {name} has no agent; there are {servers}")
        return self.channels[name]


def _servers(flows: Sequence[PacedFlow]) -> list[str]:
    """Return the servers of flows, in order of appearance."""
    return list(dict.fromkeys(name for flow in flows for name in (flow.src, flow.dst)))
