"""The fluid model: the duration of a collective whose flows all end together.

The completion time is that of the bottleneck link: the bytes over it, divided by its rate and by
the part of a frame that is payload. No transport carries the same bytes over the same links sooner,
unless a link has saved up rate while it was idle (an emulated link saves up 0.5 ms of wall time).
The bound is reached if each flow is paced at its bytes divided by that time.

Plans and paces rest on this model. What a run is expected to measure doesn't: that is the
simulation of all flows (`moefabric.simulator.event_simulation`).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.flows import Flow
from moefabric.core.port_counts import FRAME_HEADER_BYTES, IP_TCP_BYTES
from moefabric.core.routes import Link, Route, is_forwarding, route
from moefabric.core.topology import Fabric, uplink_rate_bps


def goodput_share(mtu: int) -> float:
    """Return the part of a link's rate that is payload: 1448/1514 for an MTU of 1500 bytes."""
    payload = mtu - IP_TCP_BYTES
    return payload / (payload + FRAME_HEADER_BYTES)


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
    routes = [route(fabric, circuits, flow) for flow in listed]
    return _prediction(fabric, listed, routes, _load(listed, routes))


def predict_regions(
    fabric: Fabric,
    circuits: CircuitSet,
    flows: Iterable[Flow],
    region_of: Mapping[str, str] | None = None,
) -> dict[str, Prediction]:
    """Predict regions that start together, the flows of each region ending together.

    Each region that uses a shared link, such as an uplink of the EPS, is predicted with the load
    that all regions put on the link. A region that shares no link ends as soon as it would alone.

    Args:
        flows: Flows of all regions, in bytes of the model.
        region_of: The region for which each server works; by default its own.

    Returns:
        The prediction of each region that sends, in the order of the fabric.
    """
    if region_of is None:
        region_of = {server: region.name for server, region in fabric.region_of.items()}
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
    near, far = link
    nic = near if "/" in near else far
    if "/" in nic:
        return fabric.rate_bps(nic.partition("/")[0])
    return fabric.forwarding_rate_bps or inf if is_forwarding(link) else uplink_rate_bps(fabric)


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


def route_latency_s(
    hops: int, propagation_s: float, frame_bytes: float = 0.0, rate_bps: float = 1.0
) -> float:
    """Return the seconds from when the first link has carried a byte until that byte arrives.

    It is added to the seconds that the sharing of links takes, and matters where a flow lasts for a
    few round trips only. Nothing here is fitted to a measurement.

    The byte propagates along each link. Each node between two links stores its frame before the
    frame leaves by the next link.

    Args:
        hops: Number of links.
        propagation_s: Propagation delay of a link in seconds.
        frame_bytes: Size of a frame on the wire; 0 for cut-through.
        rate_bps: Rate of a link in bits per second.
    """
    return hops * propagation_s + (hops - 1) * 8 * frame_bytes / rate_bps
