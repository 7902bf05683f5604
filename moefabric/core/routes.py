"""Routes of flows: the links that packets cross, as the forwarding rules send them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from moefabric.core import forwarding, paths
from moefabric.core.circuits import CircuitSet
from moefabric.core.flows import Flow
from moefabric.core.topology import Fabric

Link = tuple[str, str]
"""A directed link between switches, NICs and `ocs`, or a server's forwarding (`is_forwarding`)."""
Route = tuple[Link, ...]
"""The links of a flow, in order; none if the flow can't reach its destination."""

_FORWARDING: Final = "forwarding"


def is_forwarding(link: Link) -> bool:
    """Return whether a link stands for the forwarding rate of a server, rather than for a cable."""
    return link[1] == _FORWARDING


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
    for circuit in circuits.between(flow.src, flow.dst) if flow.is_optical else ():
        near, far = circuit.end_at(flow.src), circuit.end_at(flow.dst)
        if near.path == flow.path:
            return ((str(near), "ocs"), ("ocs", str(far)))
    if root := paths.relay_root(fabric, flow.src, flow.path):
        if fabric.forwarding_by_hosts:
            links = _host_route(fabric, circuits, (flow.src, root, flow.dst))
        else:
            lanes = paths.relay_lanes(fabric, fabric.region_of[root])
            lane = paths.relay_lane(flow.path)
            links = forwarding.tree_route(circuits, flow.src, flow.dst, root, lane, lanes)
        if links:
            return links
        flow = _unmarked(fabric, flow)
    if fabric.has_circuits_only:
        return forwarding.route(circuits, flow.src, flow.dst, flow.path)
    if not fabric.electrical:
        return ()
    cables, nics = fabric.eps_wiring.cables, fabric.electrical
    first = cables[flow.src][paths.nic_number(flow.path) % nics][0]
    last = cables[flow.dst][paths.arrival_number(flow.path) % nics][1]
    if first[1] == last[0]:
        return (first, last)
    spine = fabric.spines[paths.spine_of_mark(fabric, flow.path, flow.dst)]
    return (first, (first[1], spine), (spine, last[0]), last)


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
    return len(links) > 3 and any(
        near.startswith("leaf") and far.startswith("spine") for near, far in links
    )
