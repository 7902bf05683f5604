"""Forwarding by servers where circuits are the only links, as on a flat patch panel.

The packets of a pair without a circuit pass through other servers. The switches of those servers
forward them along the fewest circuits; hosts aren't involved. A packet keeps its sender's mark all
the way, so that flows that left by different NICs stay apart wherever circuits are parallel. Every
rule leads one circuit nearer to the destination, so that no packet loops.
"""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from moefabric.core.circuits import CircuitSet
from moefabric.core.rules import Rule, direct_rules
from moefabric.core.topology import Fabric, Nic

NextHops = Mapping[tuple[str, str], tuple[Nic, ...]]
"""By (server, destination): the server's NICs whose circuits begin a shortest path, sorted."""


@lru_cache(maxsize=16)
def next_hops(circuits: CircuitSet) -> NextHops:
    """Return the next hops over circuits; a pair that they don't connect has none."""
    neighbours: dict[str, list[tuple[Nic, str]]] = {}
    for circuit in circuits:
        for near, far in circuit.directions:
            neighbours.setdefault(near.server, []).append((near, far.server))
    hops: dict[tuple[str, str], tuple[Nic, ...]] = {}
    for destination in neighbours:
        distances = _distances(neighbours, destination)
        for server, distance in distances.items():
            if distance:
                hops[server, destination] = tuple(
                    sorted(
                        nic for nic, peer in neighbours[server] if distances[peer] == distance - 1
                    )
                )
    return MappingProxyType(hops)


def _distances(neighbours: Mapping[str, list[tuple[Nic, str]]], destination: str) -> dict[str, int]:
    """Return the number of circuits from each server to a destination."""
    distances, reached = {destination: 0}, [destination]
    for server in reached:  # the list grows meanwhile
        for _, peer in neighbours[server]:
            if peer not in distances:
                distances[peer] = distances[server] + 1
                reached.append(peer)
    return distances


def select_nic(nics: tuple[Nic, ...], mark: str) -> Nic:
    """Return the NIC by which a marked packet leaves.

    Args:
        nics: NICs that lead to its destination.
        mark: The NIC by which its sender sent it (`o1`).

    Returns:
        The NIC with the mark's number or, if `nics` lacks it, one that the number selects.
    """
    number = int(mark[1:])
    return next((nic for nic in nics if nic.index == number), nics[number % len(nics)])


def route(circuits: CircuitSet, src: str, dst: str, mark: str) -> tuple[tuple[str, str], ...]:
    """Return the directed links that a marked packet crosses.

    Returns:
        Links as in `moefabric.simulator.fluid.route`; none if circuits don't connect the servers.
    """
    hops, far_ends = next_hops(circuits), _far_ends(circuits)
    links, server = list[tuple[str, str]](), src
    while server != dst:
        if (server, dst) not in hops:
            return ()
        nic = select_nic(hops[server, dst], mark)
        links += [(str(nic), "ocs"), ("ocs", str(far_ends[nic]))]
        server = far_ends[nic].server
    return tuple(links)


@lru_cache(maxsize=16)
def _far_ends(circuits: CircuitSet) -> Mapping[Nic, Nic]:
    return MappingProxyType({near: far for c in circuits for near, far in c.directions})


def circuit_rules(fabric: Fabric, circuits: CircuitSet) -> frozenset[Rule]:
    """Return the rules that put traffic on circuits.

    Args:
        fabric: The wired fabric.
        circuits: Circuits that are lit.

    Returns:
        Rules for the pairs with a circuit; on a patch panel, of all connected pairs.
    """
    rules = direct_rules(circuits)
    return rules | _transit_rules(fabric, circuits) if fabric.patch_panel else rules


def _transit_rules(fabric: Fabric, circuits: CircuitSet) -> frozenset[Rule]:
    """Return rules for pairs without a circuit, and for marks of NICs that lead elsewhere."""
    rules: set[Rule] = set()
    for (server, destination), nics in next_hops(circuits).items():
        joined = bool(circuits.between(server, destination))
        if not joined:
            rules.add(Rule(server, destination, str(nics[0])))
        for own in fabric.optical_nics(server):
            if not (joined and own in nics):
                out = str(select_nic(nics, own.path))
                rules.add(Rule(server, destination, out, own.path))
    return frozenset(rules)
