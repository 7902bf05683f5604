"""The fluid model: how long a collective takes when bytes flow like water and every flow ends together.

The completion time is that of the fullest link: bytes over it, divided by its rate and by the share of a frame that is payload. It is a lower
bound for any transport, and is met when each flow is paced at its bytes divided by that time.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from moefabric import forwarding
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.flows import Flow
from moefabric.topology import Fabric

_HEADERS = 20 + 20 + 12  # IPv4, TCP, TCP's time stamps
_ETHERNET = 14  # what a queueing discipline counts of an Ethernet frame


def goodput_share(mtu: int) -> float:
    """The part of a link's rate that is payload: 1448/1514 for an MTU of 1500 bytes."""
    return (mtu - _HEADERS) / (mtu + _ETHERNET)


Link = tuple[str, str]
"""A directed link: from a switch or NIC, to one."""


def route(fabric: Fabric, circuits: CircuitSet, flow: Flow) -> tuple[Link, ...]:
    """The directed links that a flow crosses, as the rules send it: its circuit where there is light, else the EPS, or servers that forward.

    Empty where there is no way.
    """
    for circuit in circuits.between(flow.src, flow.dst):
        here, there = (circuit.a, circuit.b) if circuit.a.server == flow.src else (circuit.b, circuit.a)
        if here.path == flow.path:
            return ((str(here), "ocs"), ("ocs", str(there)))
    if fabric.panel:
        return forwarding.route(circuits, flow.src, flow.dst, flow.path)
    wires = fabric.electrical_nics(flow.src)
    if not wires:
        return ()
    number = int(flow.path[1:])
    source, target = (nics[number % len(nics)] for nics in (wires, fabric.electrical_nics(flow.dst)))
    leaf, far = fabric.leaf_of_nic(source), fabric.leaf_of_nic(target)
    out, down = (str(source), leaf), (far, str(target))
    if leaf == far:
        return (out, down)
    spines = fabric.spines
    # Rails have one NIC of each server below a leaf, so that marks can't spread what goes up from there; servers can.
    by_mark = fabric.electrical > 1 and not fabric.rails
    spine = spines[(number if by_mark else fabric.index[flow.dst]) % len(spines)]
    return (out, (leaf, spine), (spine, far), down)


@dataclass(frozen=True)
class Prediction:
    """What the fluid model says of one collective, in the model's units.

    `seconds` to complete, `rates_bps` of payload for each flow in the order given, `fullest` link and `load` in bytes of every link.
    """

    seconds: float
    rates_bps: tuple[float, ...]
    fullest: Link | None
    load: Mapping[Link, float]


def predict(fabric: Fabric, circuits: CircuitSet, flows: Iterable[Flow]) -> Prediction:
    """Completion time of flows that start and end together. Infinite where a flow has no way."""
    listed = tuple(flows)
    return predict_routed(fabric, listed, [route(fabric, circuits, flow) for flow in listed])


def predict_routed(fabric: Fabric, flows: Sequence[Flow], routes: Sequence[tuple[Link, ...]]) -> Prediction:
    """The same of flows whose ways are known."""
    return _predicted(fabric, flows, routes, _load(flows, routes))


def predict_regions(
    fabric: Fabric,
    circuits: CircuitSet,
    flows: Iterable[Flow],
    groups: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Prediction]:
    """Completion times of the regions that send, when all start together and the flows of each end together; in the order of the fabric.

    A link that regions share, an uplink of the EPS, is as full for each of them as all together make it: no region is promised what another
    one takes. Where no link is shared, each has the time that it would have alone. `groups` are the servers that work for each region, where
    these aren't its own.
    """
    region_of = works_for(fabric, groups)
    mine: dict[str, tuple[list[Flow], list[tuple[Link, ...]]]] = {
        region: ([], []) for region in dict.fromkeys(region_of.values())
    }
    for flow in flows:
        listed, routes = mine[region_of[flow.src]]
        listed.append(flow)
        routes.append(route(fabric, circuits, flow))
    everything: defaultdict[Link, float] = defaultdict(float)
    for listed, routes in mine.values():
        for link, sent in _load(listed, routes).items():
            everything[link] += sent
    return {
        name: _predicted(
            fabric, listed, routes, {link: everything[link] for links in routes for link in links}
        )
        for name, (listed, routes) in mine.items()
        if listed
    }


def works_for(fabric: Fabric, groups: Mapping[str, Sequence[str]] | None) -> dict[str, str]:
    """The region that each server works for: its own, unless `groups` say which servers work for whom."""
    if groups is None:
        return {server: region.name for server, region in fabric.region_of.items()}
    return {server: region for region, servers in groups.items() for server in servers}


def _load(flows: Sequence[Flow], routes: Sequence[tuple[Link, ...]]) -> dict[Link, float]:
    load: defaultdict[Link, float] = defaultdict(float)
    for flow, links in zip(flows, routes, strict=True):
        for link in links:
            load[link] += flow.bytes
    return dict(load)


def _predicted(
    fabric: Fabric, flows: Sequence[Flow], routes: Sequence[tuple[Link, ...]], load: Mapping[Link, float]
) -> Prediction:
    if not all(routes):
        return Prediction(inf, tuple(0.0 for _ in flows), None, load)
    share = goodput_share(fabric.mtu)
    seconds, fullest = max(
        ((8 * sent / (link_rate_bps(fabric, link) * share), link) for link, sent in load.items()),
        default=(0.0, None),
    )
    return Prediction(
        seconds, tuple(8 * flow.bytes / seconds if seconds else 0.0 for flow in flows), fullest, load
    )


def link_rate_bps(fabric: Fabric, link: Link) -> float:
    """The rate of a link in the model."""
    between_switches = link[0].startswith(("leaf", "spine")) and link[1].startswith(("leaf", "spine"))
    return fabric.uplink_rate_bps if between_switches else fabric.nic_rate_bps


def goodput_bps(fabric: Fabric, link: Link) -> float:
    """What a link carries of payload, in the model."""
    return link_rate_bps(fabric, link) * goodput_share(fabric.mtu)


def bound_s(fabric: Fabric, demand: DemandMatrix) -> float:
    """No fabric with these NICs completes sooner: the busiest server's bytes over all its NICs."""
    nics = fabric.optical + fabric.electrical
    return 8 * demand.busiest_bytes / (nics * fabric.nic_rate_bps * goodput_share(fabric.mtu))
