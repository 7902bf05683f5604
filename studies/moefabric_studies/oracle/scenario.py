"""Scenarios: cables, flows with routes, and dependencies, as every simulator takes them.

A scenario is made from the same fabric, circuits and flows as a run. Its JSON form is the input of
the programs that run other simulators (`ns3_process.py`, `simgrid_process.py`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

from moefabric import CircuitSet, Fabric, Flow, route
from moefabric.api import networks

LINK_DELAY_S: Final = 1e-6
"""Propagation delay of a cable, and of a circuit through the OCS: 200 m of fibre."""
_OCS: Final = "ocs"


@dataclass(frozen=True)
class Cable:
    """A full-duplex link between two ports.

    Attributes:
        ends: The ports, such as `s0/e0` and `leaf0`. The node is the text before the slash.
        rate_bps: Rate of each direction in bits per second, Ethernet headers included.
        delay_s: Propagation delay in seconds.
    """

    ends: tuple[str, str]
    rate_bps: float
    delay_s: float = LINK_DELAY_S


@dataclass(frozen=True)
class RoutedFlow:
    """Bytes of one server for another, with their route.

    Attributes:
        src: The sending server.
        dst: The receiving server.
        route: Directed links, each from port to port of a cable.
        bytes: Payload bytes.
        start_s: Seconds from the start of its step to its own start.
        rate_bps: Payload rate at which a paced sender sends.
        tree: The relay tree whose rules forward it; empty if none do. Flows to one port may come by
            different ways if they differ in their trees.
    """

    src: str
    dst: str
    route: networks.Route
    bytes: float
    start_s: float = 0.0
    rate_bps: float | None = None
    tree: str = ""


@dataclass(frozen=True)
class FlowStep:
    """Flows that start together when earlier steps are over, after some seconds of computation.

    Attributes:
        flows: The flows; the step lasts until all have ended.
        after: Positions of the steps for which it waits, all of them earlier.
        seconds: Its least duration.
    """

    flows: tuple[RoutedFlow, ...]
    after: tuple[int, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Outage:
    """A time in which a cable loses every packet."""

    ends: tuple[str, str]
    from_s: float
    until_s: float


@dataclass(frozen=True)
class Scenario:
    """A scenario of a simulator: network, flows and transport.

    Attributes:
        name: Name in reports.
        mtu: Largest IP packet in bytes.
        cables: All cables that flows use.
        steps: The flows. Most scenarios have one step.
        outages: Times in which cables lose packets.
    """

    name: str
    mtu: int
    cables: tuple[Cable, ...]
    steps: tuple[FlowStep, ...]
    outages: tuple[Outage, ...] = ()

    @property
    def flows(self) -> tuple[RoutedFlow, ...]:
        """The flows of all steps, in order."""
        return tuple(flow for step in self.steps for flow in step.flows)

    @property
    def bytes(self) -> float:
        """Payload bytes of all flows."""
        return sum(flow.bytes for flow in self.flows)

    @property
    def goodput_share(self) -> float:
        """The part of a cable's rate that is payload."""
        return networks.goodput_share(self.mtu)

    def links(self) -> Iterator[tuple[networks.Link, Cable]]:
        """Yield both directions of every cable."""
        for cable in self.cables:
            yield cable.ends, cable
            yield (cable.ends[1], cable.ends[0]), cable

    def scaled(self, factor: float) -> "Scenario":
        """Return the scenario with bytes and times multiplied by a factor; rates stay."""
        steps = tuple(
            replace(
                step,
                seconds=step.seconds * factor,
                flows=tuple(
                    replace(flow, bytes=flow.bytes * factor, start_s=flow.start_s * factor)
                    for flow in step.flows
                ),
            )
            for step in self.steps
        )
        outages = tuple(
            replace(outage, from_s=outage.from_s * factor, until_s=outage.until_s * factor)
            for outage in self.outages
        )
        return replace(self, steps=steps, outages=outages)

    def to_json(self) -> dict[str, Any]:
        """Return the scenario as JSON values."""
        return {**asdict(self), "goodput_share": self.goodput_share}


@dataclass(frozen=True)
class Transport:
    """Transport of flows in a packet simulator.

    Attributes:
        congestion_control: TCP's congestion control, or `paced`: senders write at the flow's
            rate, and TCP has nothing to control.
        queue_packets: Packets that a switch port holds; it drops the last ones (drop-tail).
        min_rto_s: Least retransmission time-out. Linux has 0.2 s; 5 ms is usual in data centres.
        mark_packets: Queue length from which a switch marks packets (DCTCP).
        buffer_bytes: Send and receive buffers of a connection.
        initial_window: Segments of the first window (RFC 6928).
        delayed_ack_s: Longest delay of an acknowledgement; it must be below the time-out.
        fair_hosts: Whether the flows of a host take turns on its NICs, as Linux' `fq` has them do;
            otherwise an acknowledgement waits behind all data of its host.
        warm_bytes: Bytes that each connection carries before its flow starts, as in runs, so that
            its window is open; 0 opens connections with their flows.
    """

    congestion_control: Literal["cubic", "dctcp", "reno", "paced"]
    queue_packets: int = 1000
    min_rto_s: float = 0.005
    mark_packets: int = 65
    buffer_bytes: int = 4 << 20
    initial_window: int = 10
    delayed_ack_s: float = 0.001
    fair_hosts: bool = False
    warm_bytes: int = 0

    @property
    def name(self) -> str:
        """Name in reports, such as `CUBIC, 100 packets`; pacing fills no queue."""
        if self.congestion_control == "paced":
            return self.congestion_control
        text = self.congestion_control.upper()
        rto = "" if self.min_rto_s == Transport.min_rto_s else f", RTO {self.min_rto_s * 1e3:g} ms"
        fair = ", fair hosts" if self.fair_hosts else ""
        warm = ", warm" if self.warm_bytes else ""
        return f"{text}, {self.queue_packets:,} packets{rto}{fair}{warm}"

    def to_json(self) -> dict[str, Any]:
        """Return the transport as JSON values."""
        return dict(vars(self))


def physical_route(links: networks.Route) -> networks.Route:
    """Return a route's cables, each circuit as one: light passes the OCS without a queue."""
    joined: list[networks.Link] = []
    for start, end in links:
        if networks.is_forwarding((start, end)):
            continue
        if start == _OCS:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return tuple(joined)


def scenario(
    name: str, fabric: Fabric, steps: Sequence[FlowStep], delay_s: float = LINK_DELAY_S
) -> Scenario:
    """Return the scenario of steps on a fabric, with the cables that they use."""
    links = {frozenset(link): link for step in steps for flow in step.flows for link in flow.route}
    cables = tuple(
        Cable((min(link), max(link)), networks.link_rate_bps(fabric, link), delay_s)
        for link in links.values()
    )
    return Scenario(name, fabric.mtu, tuple(sorted(cables, key=lambda c: c.ends)), tuple(steps))


def routed_flows(
    fabric: Fabric,
    circuits: CircuitSet,
    flows: Iterable[Flow],
    seconds: float,
    start_s: float = 0.0,
) -> tuple[RoutedFlow, ...]:
    """Return flows with their routes, paced so that each lasts the given seconds.

    Raises:
        ValueError: If a flow has no route.
    """
    routed = []
    for flow in flows:
        links = physical_route(route(fabric, circuits, flow))
        if not links:
            raise ValueError(f"{flow.src} has no route to {flow.dst} by {flow.path}")
        rate_bps = 8 * flow.bytes / seconds
        tree = flow.path if networks.relay_root(fabric, flow.src, flow.path) else ""
        routed.append(RoutedFlow(flow.src, flow.dst, links, flow.bytes, start_s, rate_bps, tree))
    return tuple(routed)
