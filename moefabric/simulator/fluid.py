"""The fluid model: the duration of a collective whose flows all end together.

The completion time is that of the bottleneck link: the bytes over it, divided by its rate and by
the part of a frame that is payload. No transport carries the same bytes over the same links sooner,
unless a link has saved up rate while it was idle (an emulated link saves up 0.5 ms of wall time).
The bound is reached if each flow is paced at its bytes divided by that time.

Plans and paces rest on this model. What a run is expected to measure doesn't: that is the
simulation of all flows (`moefabric.simulator.event_simulation`).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import Final

from moefabric.core import forwarding
from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Flow
from moefabric.core.paths import nic_number, relay_root, spine_of_mark
from moefabric.core.port_counts import FRAME_HEADER_BYTES, IP_TCP_BYTES
from moefabric.core.rates import uplink_rate_bps
from moefabric.core.topology import Fabric

Link = tuple[str, str]
"""A directed link between switches, NICs and `ocs`, or a server's forwarding (`is_forwarding`)."""
Route = tuple[Link, ...]
"""The links of a flow, in order; none if the flow can't reach its destination."""

_FORWARDING: Final = "forwarding"


def is_forwarding(link: Link) -> bool:
    """Return whether a link stands for the forwarding rate of a server, rather than for a cable."""
    return link[1] == _FORWARDING


def goodput_share(mtu: int) -> float:
    """Return the part of a link's rate that is payload: 1448/1514 for an MTU of 1500 bytes."""
    payload = mtu - IP_TCP_BYTES
    return payload / (payload + FRAME_HEADER_BYTES)


def packets_bytes(sent: int, mtu: int) -> int:
    """Return the bytes of the packets that carry `sent` bytes of a connection.

    These are the bytes that a queueing discipline counts: each packet of a large frame has its own
    headers, and all packets but the last are full.
    """
    return sent + -(-sent // (mtu - IP_TCP_BYTES)) * FRAME_HEADER_BYTES


def route(fabric: Fabric, circuits: CircuitSet, flow: Flow) -> Route:
    """Return the links that a flow crosses, as the forwarding rules send it.

    A flow takes the circuit or the relay tree of its path if there is one, and the EPS otherwise.
    Without an EPS, other servers forward a flow without a circuit. Where the rate of forwarding is
    limited, a flow crosses a link for it at each server that forwards.

    Example:
        >>> from moefabric import Eps, Ocs, Region
        >>> region = Region("r0", 0, ("s0", "s1", "s2"), Ocs("ocs0", ports=3))
        >>> fabric = Fabric("lab", (region,), 8, 1, 1, 100e9, Eps(servers_per_leaf=4))
        >>> route(fabric, CircuitSet(), Flow("s0", "s1", "e0", 1e9))
        (('s0/e0', 'leaf0'), ('leaf0', 's1/e0'))
        >>> route(fabric, CircuitSet.of(["s0/o0~s1/o0"]), Flow("s0", "s1", "o0", 1e9))
        (('s0/o0', 'ocs'), ('ocs', 's1/o0'))

    Returns:
        Directed links; none if the flow can't reach its destination.
    """
    links = _cables(fabric, circuits, flow)
    return links if fabric.forwarding_rate_bps is None else tuple(_with_forwarding(links))


def _with_forwarding(links: Route) -> Iterator[Link]:
    """Yield links, and one for each server where a route arrives by a NIC and leaves by another."""
    for (near, far), (onward, _) in pairwise(links):
        yield near, far
        if "/" in far and "/" in onward:
            yield onward.partition("/")[0], _FORWARDING
    yield from links[-1:]


def _cables(fabric: Fabric, circuits: CircuitSet, flow: Flow) -> Route:
    """Return the links between NICs and switches that a flow crosses."""
    for circuit in circuits.between(flow.src, flow.dst):
        near, far = circuit.end_at(flow.src), circuit.end_at(flow.dst)
        if near.path == flow.path:
            return ((str(near), "ocs"), ("ocs", str(far)))
    if root := relay_root(fabric, flow.src, flow.path):
        if fabric.forwarding_by_hosts:
            links = _host_route(fabric, circuits, (flow.src, root, flow.dst))
        else:
            links = forwarding.tree_route(circuits, flow.src, flow.dst, root)
        if links:
            return links
        flow = _unmarked(fabric, flow)
    if fabric.has_circuits_only:
        return forwarding.route(circuits, flow.src, flow.dst, flow.path)
    nics, peers = fabric.electrical_nics(flow.src), fabric.electrical_nics(flow.dst)
    if not nics:
        return ()
    number = nic_number(flow.path)
    source, target = nics[number % len(nics)], peers[number % len(peers)]
    eps = fabric.eps_wiring
    source_leaf, target_leaf = eps.leaf_of_nic(source), eps.leaf_of_nic(target)
    first, last = (str(source), source_leaf), (target_leaf, str(target))
    if source_leaf == target_leaf:
        return (first, last)
    spine = fabric.spines[spine_of_mark(fabric, flow.path, flow.dst)]
    return (first, (source_leaf, spine), (spine, target_leaf), last)


def _unmarked(fabric: Fabric, flow: Flow) -> Flow:
    """Return a flow over the NIC of the EPS that packets without a mark take."""
    return replace(flow, path=f"e{fabric.server_number[flow.dst]}")


def _host_route(fabric: Fabric, circuits: CircuitSet, servers: Sequence[str]) -> Route:
    """Return the links of packets without a mark from each of the servers to the next one."""
    legs: list[Route] = []
    for src, dst in pairwise(dict.fromkeys(servers)):
        leg = Flow(src, dst, "", 0.0)
        if direct := circuits.between(src, dst):
            leg = replace(leg, path=direct[0].end_at(src).path)
        else:
            leg = _unmarked(fabric, leg)
        legs.append(_cables(fabric, circuits, leg))
    return tuple(link for leg in legs for link in leg) if all(legs) else ()


def crosses_spine(links: Route) -> bool:
    """Return whether a route leads from one leaf of the EPS to another by a spine."""
    return any(near.startswith("leaf") and far.startswith("spine") for near, far in links)


@dataclass(frozen=True)
class Prediction:
    """The fluid model's result for one collective, in the model's units.

    Attributes:
        seconds: Completion time; infinite if a flow has no route.
        rates_bps: Payload rate of each flow, in the order given.
        bottleneck: The link that determines the completion time, if there is any traffic.
        load: Bytes over each link.
    """

    seconds: float
    rates_bps: tuple[float, ...]
    bottleneck: Link | None
    load: Mapping[Link, float]


def predict(fabric: Fabric, circuits: CircuitSet, flows: Iterable[Flow]) -> Prediction:
    """Predict flows that start and end together.

    Example:
        >>> from moefabric import Eps, Ocs, Region
        >>> region = Region("r0", 0, ("s0", "s1", "s2"), Ocs("ocs0", ports=3))
        >>> fabric = Fabric("lab", (region,), 8, 1, 1, 100e9, Eps(servers_per_leaf=4))
        >>> flows = [Flow("s0", "s1", "e0", 1e9), Flow("s2", "s1", "e0", 2e9)]
        >>> prediction = predict(fabric, CircuitSet(), flows)
        >>> round(prediction.seconds, 3), prediction.bottleneck
        (0.251, ('leaf0', 's1/e0'))

    Args:
        flows: Flows of a collective, in bytes of the model.
    """
    listed = tuple(flows)
    return predict_routed(fabric, listed, [route(fabric, circuits, flow) for flow in listed])


def predict_routed(fabric: Fabric, flows: Sequence[Flow], routes: Sequence[Route]) -> Prediction:
    """Predict flows, as `predict` does, with given routes."""
    return _prediction(fabric, flows, routes, _load(flows, routes))


def predict_regions(
    fabric: Fabric,
    circuits: CircuitSet,
    flows: Iterable[Flow],
    groups: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Prediction]:
    """Predict regions that start together, the flows of each region ending together.

    Each region that uses a shared link, such as an uplink of the EPS, is predicted with the load
    that all regions put on the link. A region that shares no link ends as soon as it would alone.

    Args:
        flows: Flows of all regions, in bytes of the model.
        groups: Servers that work for each region, if they aren't the region's own.

    Returns:
        The prediction of each region that sends, in the order of the fabric.
    """
    region_of = region_by_server(fabric, groups)
    by_region: dict[str, tuple[list[Flow], list[Route]]] = {
        region: ([], []) for region in dict.fromkeys(region_of.values())
    }
    for flow in flows:
        listed, routes = by_region[region_of[flow.src]]
        listed.append(flow)
        routes.append(route(fabric, circuits, flow))
    total: defaultdict[Link, float] = defaultdict(float)
    for listed, routes in by_region.values():
        for link, sent in _load(listed, routes).items():
            total[link] += sent
    return {
        name: _prediction(
            fabric, listed, routes, {link: total[link] for links in routes for link in links}
        )
        for name, (listed, routes) in by_region.items()
        if listed
    }


def region_by_server(fabric: Fabric, groups: Mapping[str, Sequence[str]] | None) -> dict[str, str]:
    """Return the region for which each server works: its own, unless groups are given.

    Args:
        groups: Servers that work for each region.
    """
    if groups is None:
        return {server: region.name for server, region in fabric.region_of.items()}
    return {server: region for region, servers in groups.items() for server in servers}


def _load(flows: Sequence[Flow], routes: Sequence[Route]) -> dict[Link, float]:
    load: defaultdict[Link, float] = defaultdict(float)
    for flow, links in zip(flows, routes, strict=True):
        for link in links:
            load[link] += flow.bytes
    return dict(load)


def _prediction(
    fabric: Fabric, flows: Sequence[Flow], routes: Sequence[Route], load: Mapping[Link, float]
) -> Prediction:
    if not all(routes):
        return Prediction(inf, (0.0,) * len(flows), None, load)
    share = goodput_share(fabric.mtu)
    seconds, bottleneck = max(
        ((8 * sent / (link_rate_bps(fabric, link) * share), link) for link, sent in load.items()),
        default=(0.0, None),
    )
    rates_bps = tuple(8 * flow.bytes / seconds if seconds else 0.0 for flow in flows)
    return Prediction(seconds, rates_bps, bottleneck, load)


def link_rate_bps(fabric: Fabric, link: Link) -> float:
    """Return the rate of a link in the model, in bits per second."""
    if is_forwarding(link):
        return fabric.forwarding_rate_bps or inf
    if all(end.startswith(("leaf", "spine")) for end in link):
        return uplink_rate_bps(fabric)
    nic = next(end for end in link if "/" in end)
    return fabric.rate_bps(nic.partition("/")[0])


def goodput_bps(fabric: Fabric, link: Link) -> float:
    """Return the payload rate of a link in the model, in bits per second."""
    return link_rate_bps(fabric, link) * goodput_share(fabric.mtu)


def bound_s(fabric: Fabric, demand: DemandMatrix) -> float:
    """Return a time below which no fabric with these NICs carries a demand.

    The bound is the time of the busiest server's bytes over all its NICs, in model seconds.
    """
    nics = fabric.optical + fabric.electrical
    share = goodput_share(fabric.mtu)
    ports: Iterable[tuple[str, float]] = zip(
        demand.servers, demand.port_bytes.tolist(), strict=True
    )
    return max(8 * busiest / (nics * fabric.rate_bps(server) * share) for server, busiest in ports)
