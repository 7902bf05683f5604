"""Concurrent collectives: the agents that take part in each, and the records of its flows."""

import selectors
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from moefabric.agents.fleet.channel import Channel, check_open
from moefabric.agents.fleet.liveness import LOOK_S, LivenessMonitor
from moefabric.agents.fleet.messages import Message
from moefabric.core.errors import AgentError
from moefabric.core.flows import FlowRecord, PacedFlow


@dataclass(frozen=True)
class InflightCollective:
    """A launched collective.

    Attributes:
        requests: By channel of an agent that takes part, the number of the request to it.
        deadline_ns: When all agents must have reported, CLOCK_MONOTONIC of this process.
        relays: Channels of agents that forward its flows, whether or not they also report.
    """

    flows: tuple[PacedFlow, ...]
    requests: dict[Channel, int]
    deadline_ns: int
    relays: tuple[Channel, ...] = ()

    @property
    def channels(self) -> dict[Channel, None]:
        """The channels of all agents that it needs."""
        return dict.fromkeys([*self.requests, *self.relays])


class InflightCollectives:
    """All launched collectives that have not ended. One thread waits; any thread may wake it.

    Args:
        our_time: Converts an instant of a server's agent, or None, to our clock.
    """

    def __init__(self, our_time: Callable[[str, int | None], int]) -> None:
        self.collectives: dict[int, InflightCollective] = {}
        self._our_time = our_time
        self._numbers = count(time.monotonic_ns())
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)

    def new_number(self) -> int:
        """Return a number that no collective has had before, even in other fleets of the agents."""
        return next(self._numbers)

    def forget(self, number: int) -> None:
        """Stop waiting for a collective, if it is in flight."""
        if (collective := self.collectives.pop(number, None)) is not None:
            for channel, request in collective.requests.items():
                channel.forget(request)

    def wait_ended(
        self,
        until_ns: int | None,
        liveness: LivenessMonitor,
        others: Collection[Channel] = (),
        is_news: Callable[[], bool] = lambda: False,
    ) -> dict[int, list[FlowRecord]]:
        """Wait until a collective ends, `wake` is called or `until_ns` has come.

        Args:
            until_ns: When the wait ends at the latest, CLOCK_MONOTONIC of this process; None for
                no limit.
            others: Channels that are read and watched besides those of collectives.
            is_news: Returns whether something has arrived that ends the wait.

        Returns:
            The flow records of each collective that has ended.

        Raises:
            AgentError: if an agent refuses, or is silent long after a collective's deadline.
            ServerLossError: if an agent or a rank of its server is lost.
        """
        check_s = time.monotonic()
        while not (ended := self._take_ended(liveness)) and not is_news():
            deadlines = [collective.deadline_ns for collective in self.collectives.values()]
            end_ns = min([*deadlines, *([] if until_ns is None else [until_ns])], default=None)
            left_s = None if end_ns is None else (end_ns - time.monotonic_ns()) / 1e9
            if left_s is not None and left_s <= 0:
                self._check_deadlines()
                break
            channels = {*others}.union(*(c.channels for c in self.collectives.values()))
            look_s = LOOK_S if left_s is None else min(LOOK_S, left_s)
            if self._read_ready(channels, look_s):
                return self._take_ended(liveness)
            if time.monotonic() >= check_s:  # not after every report, since every agent sends one
                check_s = time.monotonic() + LOOK_S
                relays = {c for collective in self.collectives.values() for c in collective.relays}
                unreported = {c for n in self.collectives for c in self._unreported(n)}
                liveness.check(channels, unreported | relays)
        return ended

    def wake(self) -> None:
        """End the current `wait_ended`, or the next one."""
        with suppress(BlockingIOError, OSError):  # a wake-up is pending, or the socket is closed
            self._wake_sender.send(b"!")

    def close(self) -> None:
        """Release the sockets."""
        self._wake_receiver.close()
        self._wake_sender.close()

    def _read_ready(self, channels: Iterable[Channel], timeout_s: float) -> bool:
        """Wait until channels can be read, and read them; return whether `wake` was called."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_receiver, selectors.EVENT_READ)
            for channel in channels:
                if not channel.gone:
                    selector.register(channel.stream, selectors.EVENT_READ, channel)
            ready = [key.data for key, _ in selector.select(timeout_s)]
        for channel in ready:
            if channel is None:
                self._wake_receiver.recv(4096)
            else:
                channel.read()
        return None in ready

    def _unreported(self, number: int) -> list[Channel]:
        requests = self.collectives[number].requests
        return [channel for channel in requests if number not in channel.reports]

    def _take_ended(self, liveness: LivenessMonitor) -> dict[int, list[FlowRecord]]:
        for number, collective in list(self.collectives.items()):
            for channel, request in collective.requests.items():
                reply = channel.replies.pop(request, None)
                if reply is not None and not reply["ok"]:
                    del self.collectives[number]
                    raise AgentError(f"agent {reply['error']}")
            check_open(collective.channels)
            if not self._unreported(number):
                liveness.check_relays(
                    collective.relays, [c.reports[number] for c in collective.requests]
                )
        records = dict[int, list[FlowRecord]]()
        for number in [n for n in self.collectives if not self._unreported(n)]:
            collective = self.collectives.pop(number)
            reports = {channel.name: channel.reports.pop(number) for channel in collective.requests}
            records[number] = flow_records(number, collective.flows, reports, self._our_time)
        return records

    def _check_deadlines(self) -> None:
        """Raise AgentError if the earliest deadline has passed."""
        if not self.collectives:
            return
        number = min(self.collectives, key=lambda n: self.collectives[n].deadline_ns)
        if time.monotonic_ns() >= self.collectives[number].deadline_ns:
            names = ", ".join(sorted(channel.name for channel in self._unreported(number)))
            raise AgentError(f"agents {names}: no report on collective {number} after its deadline")


def flow_records(
    collective: int,
    flows: Sequence[PacedFlow],
    reports: Mapping[str, Message],
    our_time: Callable[[str, int | None], int],
) -> list[FlowRecord]:
    """Return a record of each flow, in order.

    Args:
        reports: The report of each agent on the collective's end.
        our_time: As for `InflightCollectives`.

    Raises:
        AgentError: if a report lacks transfers; the message names the agent.
    """
    sends = {name: iter(report.get("sends", ())) for name, report in reports.items()}
    receives = {name: iter(report.get("receives", ())) for name, report in reports.items()}
    records = []
    for flow in flows:
        sent, received = next(sends[flow.src], None), next(receives[flow.dst], None)
        if sent is None or received is None:
            name = flow.src if sent is None else flow.dst
            raise AgentError(
                f"agent {name}: its report on collective {collective} lacks a transfer from "
                f"{flow.src} to {flow.dst} by {flow.path}; do all agents have one version?"
            )
        record = FlowRecord(
            collective,
            flow.src,
            flow.dst,
            flow.path,
            bytes=sent["moved"],
            received_bytes=received["moved"],
            rate_bps=flow.rate_bps,
            first_sent_ns=our_time(flow.src, sent["first_ns"]),
            last_sent_ns=our_time(flow.src, sent["last_ns"]),
            first_received_ns=our_time(flow.dst, received["first_ns"]),
            last_received_ns=our_time(flow.dst, received["last_ns"]),
            acknowledged_ns=our_time(flow.src, sent.get("acknowledged_ns")),
            retransmits=sent.get("retransmits", 0),
            ok=sent["ok"] and received["ok"],
            why=received["why"] or sent["why"],
            corrupt=received["corrupt"],
        )
        records.append(record)
    return records
