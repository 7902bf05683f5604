"""The fleet: the agents of all servers, commanded together, with one clock."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from agents import survivors
from agents.channel import Channel, Line, ask_all, ns
from agents.launched import Flying, Launched, done, taken
from agents.pulse import Pulse
from agents.survivors import Absent
from moefabric.errors import AgentError
from moefabric.records import FlowRecord
from moefabric.seams import PacedFlow

LEAD_S: Final = 0.02
"""A collective starts at least this long after it was asked for, so that all agents hold it by then."""
LEAD_PER_AGENT_S: Final = 0.001
GRACE_S: Final = 2.0
"""How long after a collective's deadline its agents may take to tell."""
ORDERED: Final = 2.5
"""So many silences of the pulse may all agents take to say that they have a collective's order: it is long, and all read at once."""
CLOCK_EXCHANGES: Final = 16


@dataclass(frozen=True)
class Way:
    """One path of a pair: the sender's NIC `path`, chosen by `dscp`, to an address of the receiver.

    `reply_dscp` marks what the receiver answers, acknowledgements of TCP included. `bind` is the address to leave from,
    on hosts whose NICs are chosen by source address.
    """

    src: str
    dst: str
    path: str
    address: str
    dscp: int = 0
    reply_dscp: int = 0
    bind: str = ""


@dataclass(frozen=True)
class Clock:
    """An agent's clock against ours: its CLOCK_MONOTONIC minus ours, and the round trip within which that was found."""

    offset_ns: int = 0
    round_trip_ns: int = 0


def offset(exchanges: Iterable[tuple[int, int, int]]) -> Clock:
    """The offset seen by (asked, theirs, answered) instants: that of the quickest exchange, which leaves the least to chance (NTP, RFC 5905)."""
    asked, theirs, answered = min(exchanges, key=lambda seen: seen[2] - seen[0])
    return Clock(theirs - (asked + answered) // 2, answered - asked)


class Fleet:
    """All agents. Times that go in and come out are CLOCK_MONOTONIC of this process; each agent is told its own.

    Everything raises AgentError, naming the agents, when one is gone, refuses or is silent.
    """

    def __init__(
        self, channels: Iterable[Channel], clock_identity: str = "", pulse: Pulse | None = None
    ) -> None:
        """Greet all agents and learn their clocks. An agent whose clock is `clock_identity` has ours, exactly; `pulse` hears who is lost."""
        self.channels = {channel.name: channel for channel in channels}
        self.late_ns: dict[str, int] = {}
        """How late each agent began the last collective."""
        self.facts = self.ask("hello")
        for name, fact in self.facts.items():
            if fact["name"] != name:
                raise AgentError(f"agent {name}: it calls itself {fact['name']}")
        mine = clock_identity or _clock_identity()
        self.clocks = {
            name: Clock() if mine and fact["clock"] == mine else self._clock(name)
            for name, fact in self.facts.items()
        }
        self.ports: dict[str, int] = {}
        self._ways: dict[tuple[str, str, str], Way] = {}
        self._options: Line = {}
        self.pulse, self._absent = pulse or Pulse(), Absent()
        self._dead = {f"{name}/{gpu}" for name, fact in self.facts.items() for gpu in fact["dead"]}
        self._launched = Launched()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, op: str, deadline_s: float = 5.0, **fields: Any) -> dict[str, Line]:
        """The same request to all agents; replies by agent."""
        return ask_all(dict.fromkeys(self.channels.values(), (op, fields)), deadline_s)

    def wire(
        self,
        ways: Sequence[Way],
        deadline_s: float = 10.0,
        congestion: str = "cubic",
        sndbuf: int = 512 * 1024,
    ) -> dict[str, Line]:
        """Open a connection for every way; what the kernel says of each, by agent.

        `sndbuf` bounds what a socket holds: large enough for the path's bandwidth times delay, small enough that what
        counts as sent has nearly left.
        """
        targets = {way.dst: way.address for way in ways}
        listening = {
            dst: {"address": "::" if ":" in address else "0.0.0.0"} for dst, address in targets.items()
        }
        replies = ask_all(
            {self._channel(dst): ("listen", said) for dst, said in listening.items()}, deadline_s
        )
        self.ports |= {dst: reply["port"] for dst, reply in replies.items()}
        asked: dict[str, list[Line]] = {}
        for way in ways:
            asked.setdefault(way.src, []).append(
                {
                    "peer": way.dst, "path": way.path, "address": way.address, "port": self.ports[way.dst],
                    "dscp": way.dscp, "reply_dscp": way.reply_dscp, "bind": way.bind,
                }
            )  # fmt: skip
        until = time.monotonic_ns() + ns(deadline_s)
        options = {"congestion": congestion, "sndbuf": sndbuf}
        self._ways |= {(way.src, way.dst, way.path): way for way in ways}
        self._options = options
        return ask_all(
            {
                self._channel(src): (
                    "connect",
                    {"paths": paths, "deadline_ns": self._theirs(src, until), **options},
                )
                for src, paths in asked.items()
            },
            deadline_s + GRACE_S,
        )

    def run(
        self,
        collective: int,
        flows: Sequence[PacedFlow],
        start_ns: int | None = None,
        deadline_s: float = 30.0,
    ) -> list[FlowRecord]:
        """Send these flows, starting together at `start_ns` (None is as soon as all agents hold them); a record of each, in order.

        A flow that didn't arrive as sent within `deadline_s` of the start has a record that is not ok.
        """
        start = self.arm(collective, flows, start_ns, deadline_s)
        left_s = (start - time.monotonic_ns()) / 1e9 + deadline_s
        return self.collect(collective, flows, left_s + GRACE_S)

    def arm(
        self, collective: int, flows: Sequence[PacedFlow], start_ns: int | None, deadline_s: float
    ) -> int:
        """Tell the agents concerned what they will send and receive; when it starts. Several collectives may be armed at once."""
        if start_ns is None:
            slowest_ns = max(clock.round_trip_ns for clock in self.clocks.values())
            lead_s = LEAD_S + LEAD_PER_AGENT_S * len(_servers(flows))
            start_ns = time.monotonic_ns() + ns(lead_s) + 4 * slowest_ns
        self.pulse.refuse_unreachable(_servers(flows))
        until_ns = start_ns + ns(deadline_s)
        ask_all(self._requests(collective, flows, start_ns, until_ns), ORDERED * self.pulse.silence_s)
        return start_ns

    def _requests(
        self, collective: int, flows: Sequence[PacedFlow], start_ns: int | None, until_ns: int
    ) -> dict[Channel, tuple[str, Line]]:
        """What each agent concerned is told; without a start it begins when it is told."""
        work: dict[str, dict[str, list[Line]]] = {
            name: {"sends": [], "receives": []} for name in _servers(flows)
        }
        for flow in flows:
            sent = {"path": flow.path, "bytes": flow.bytes}
            work[flow.src]["sends"].append({"peer": flow.dst, "rate_bps": flow.rate_bps, **sent})
            work[flow.dst]["receives"].append({"peer": flow.src, **sent})
        requests = {}
        for name, parts in work.items():
            times = {"deadline_ns": self._theirs(name, until_ns)}
            if start_ns is not None:
                times["start_ns"] = self._theirs(name, start_ns)
            requests[self._channel(name)] = ("collective", {"collective": collective, **times, **parts})
        return requests

    def collect(self, collective: int, flows: Sequence[PacedFlow], deadline_s: float) -> list[FlowRecord]:
        """Wait until all agents concerned have told how an armed collective went.

        LostError as soon as one of them, or a rank of its server, is lost.
        """
        channels = [self._channel(name) for name in _servers(flows)]
        silent = self.pulse.wait(channels, lambda channel: done(channel, collective) is not None, deadline_s)
        if silent:
            names = ", ".join(channel.name for channel in silent)
            raise AgentError(
                f"agents {names}: not a word on collective {collective} within {deadline_s:.1f} s"
            )
        told = {channel.name: taken(channel, collective) for channel in channels}
        self.late_ns = {name: event["start_late_ns"] for name, event in told.items()}
        return self._records(collective, flows, told)

    def launch(self, flows: Sequence[PacedFlow], start_ns: int | None, deadline_s: float) -> int:
        """As `arm`, without waiting for the agents' word: `ended` tells it, by the number returned. Without a start, each server begins when it hears of it.

        That may be before its peer has heard: so no number is used twice, or what comes would be taken for the end of an older collective.
        """
        collective = self._launched.number()
        until_ns = (time.monotonic_ns() if start_ns is None else start_ns) + ns(deadline_s)
        requests = self._requests(collective, flows, start_ns, until_ns)
        asked = {channel: channel.post(op, **fields) for channel, (op, fields) in requests.items()}
        self._launched.add(collective, Flying(tuple(flows), asked, until_ns + ns(GRACE_S)))
        return collective

    def ended(self, until_ns: int | None) -> dict[int, list[FlowRecord]]:
        """Wait until a launched collective ends, `wake` is called or the instant has come; the records of those that have ended since.

        AgentError where an agent refuses, is gone, or has said nothing long after its deadline.
        """
        landed = self._launched.ended(until_ns)
        return {number: self._records(number, each.flows, each.told) for number, each in landed.items()}

    def wake(self) -> None:
        """Let `ended` return; any thread may."""
        self._launched.ring()

    # --- losses ----------------------------------------------------------------------------------------------------

    def lost(self) -> tuple[frozenset[str], frozenset[str]]:
        """Servers that `leave` was told of and that are not back; and GPUs (`s1/3`) whose ranks have died, as agents have told till now."""
        survivors.ranks(list(self.channels.values()), self._dead)
        return self._absent.names, frozenset(self._dead)

    def heed(self, unreachable: Callable[[str], bool]) -> None:
        """Hold a server to be lost, and not to be back, while this says that it is cut off."""
        self.pulse.unreachable = unreachable

    def leave(self, servers: Iterable[str]) -> None:
        """Go on without these."""
        for server in servers:
            if server in self.channels:
                self._absent.add(self.channels.pop(server))

    def abandon(self, collective: int) -> None:
        """Have all that are left end a collective as it is."""
        survivors.abandon(list(self.channels.values()), collective)

    def mend(self) -> None:
        """Open the connections again that are not up between those that are left."""
        broken = survivors.broken(self.ask("stats"), self.channels)
        self._rewire([self._ways[way] for way in sorted(broken) if way in self._ways])

    def returned(self) -> frozenset[str]:
        """Servers that have come back since this was asked last: they are wired to the others again."""
        back = self._absent.returned(self.pulse.unreachable)
        self.channels |= {channel.name: channel for channel in back}
        names = frozenset(channel.name for channel in back)
        if back:
            ask_all(dict.fromkeys(back, ("close", {})), 5.0)
            self._rewire(survivors.between(self._ways.values(), self.channels, names))
        return names

    def _rewire(self, ways: Sequence[Way]) -> None:
        if ways:
            self.wire(ways, survivors.MENDING_S, **self._options)

    def close(self) -> None:
        """Close all control channels; agents over SSH end with theirs."""
        self._launched.close()
        self._absent.close()
        for channel in self.channels.values():
            channel.close()

    def _records(
        self, collective: int, flows: Sequence[PacedFlow], told: dict[str, Line]
    ) -> list[FlowRecord]:
        sends = {name: iter(event["sends"]) for name, event in told.items()}
        receives = {name: iter(event["receives"]) for name, event in told.items()}
        return [
            self._record(collective, flow, next(sends[flow.src]), next(receives[flow.dst])) for flow in flows
        ]

    def _record(self, collective: int, flow: PacedFlow, sent: Line, received: Line) -> FlowRecord:
        return FlowRecord(
            collective=collective, src=flow.src, dst=flow.dst, path=flow.path, bytes=flow.bytes, rate_bps=flow.rate_bps,
            first_sent_ns=self._ours(flow.src, sent["first_ns"]), last_sent_ns=self._ours(flow.src, sent["last_ns"]),
            first_received_ns=self._ours(flow.dst, received["first_ns"]),
            last_received_ns=self._ours(flow.dst, received["last_ns"]),
            retransmits=sent["retransmits"], ok=sent["ok"] and received["ok"], why=received["why"] or sent["why"],
        )  # fmt: skip

    def _channel(self, name: str) -> Channel:
        if name not in self.channels:
            raise AgentError(f"server {name} has no agent; there are {', '.join(sorted(self.channels))}")
        return self.channels[name]

    def _clock(self, name: str) -> Clock:
        channel = self._channel(name)
        seen = []
        for _ in range(CLOCK_EXCHANGES):
            asked = time.monotonic_ns()
            theirs = ask_all({channel: ("clock", {})}, 5.0)[name]["monotonic_ns"]
            seen.append((asked, theirs, time.monotonic_ns()))
        return offset(seen)

    def _theirs(self, name: str, ours_ns: int) -> int:
        return ours_ns + self.clocks[name].offset_ns

    def _ours(self, name: str, theirs_ns: int | None) -> int:
        """0 is never."""
        return 0 if theirs_ns is None else theirs_ns - self.clocks[name].offset_ns


def _servers(flows: Sequence[PacedFlow]) -> list[str]:
    return list(dict.fromkeys(name for flow in flows for name in (flow.src, flow.dst)))


def _clock_identity() -> str:
    from agents.engine.clock import clock_identity

    return clock_identity()
