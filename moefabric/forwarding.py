"""Forwarding: the ways that servers pass on what isn't theirs, where circuits are all there is.

On a flat patch panel a pair without a circuit is reached through other servers: their server switches hand its packets on, along the fewest circuits,
without the hosts. A packet keeps its sender's mark all the way, so that flows which left by different NICs stay apart wherever circuits are parallel.
Every hop is one circuit nearer to the end, by any rule here, so that no packet goes round in a circle.
"""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from moefabric.circuits import CircuitSet
from moefabric.rules import Rule, light_rules
from moefabric.topology import Fabric, Nic

Ways = Mapping[tuple[str, str], tuple[Nic, ...]]
"""By (server, to): the server's NICs whose circuits begin a way of the fewest circuits, in order."""


@lru_cache(maxsize=16)
def ways(circuits: CircuitSet) -> Ways:
    """The ways that these circuits make; a pair that they don't join has none."""
    beside: dict[str, list[tuple[Nic, str]]] = {}
    for circuit in circuits:
        for here, there in ((circuit.a, circuit.b), (circuit.b, circuit.a)):
            beside.setdefault(here.server, []).append((here, there.server))
    found: dict[tuple[str, str], tuple[Nic, ...]] = {}
    for to in beside:
        far = _distances(beside, to)
        for server, distance in far.items():
            if distance:
                found[server, to] = tuple(
                    sorted(nic for nic, peer in beside[server] if far[peer] == distance - 1)
                )
    return MappingProxyType(found)


def _distances(beside: Mapping[str, list[tuple[Nic, str]]], to: str) -> dict[str, int]:
    """How many circuits each server is away."""
    far, reached = {to: 0}, [to]
    for server in reached:  # which grows
        for _, peer in beside[server]:
            if peer not in far:
                far[peer] = far[server] + 1
                reached.append(peer)
    return far


def out(nics: tuple[Nic, ...], mark: str) -> Nic:
    """The NIC by which a packet of that mark leaves: that of its number if it is one of these, else one of them by its number."""
    number = int(mark[1:])
    return next((nic for nic in nics if nic.index == number), nics[number % len(nics)])


def route(circuits: CircuitSet, src: str, dst: str, mark: str) -> tuple[tuple[str, str], ...]:
    """The directed links that a marked packet crosses, as `moefabric.fluid.route` has them; empty where there is no way."""
    known, far_end = ways(circuits), _far_ends(circuits)
    links, server = list[tuple[str, str]](), src
    while server != dst:
        if (server, dst) not in known:
            return ()
        nic = out(known[server, dst], mark)
        links += [(str(nic), "ocs"), ("ocs", str(far_end[nic]))]
        server = far_end[nic].server
    return tuple(links)


@lru_cache(maxsize=16)
def _far_ends(circuits: CircuitSet) -> Mapping[Nic, Nic]:
    return MappingProxyType({c.a: c.b for c in circuits} | {c.b: c.a for c in circuits})


def lit_rules(fabric: Fabric, circuits: CircuitSet) -> frozenset[Rule]:
    """The rules that put a fabric's traffic on these circuits: all of it on a patch panel, that of the pairs with light elsewhere."""
    light = light_rules(circuits)
    return light | _passing_on(fabric, circuits) if fabric.panel else light


def _passing_on(fabric: Fabric, circuits: CircuitSet) -> frozenset[Rule]:
    """What the light's own rules leave: pairs without a circuit, and marks of NICs that lead elsewhere."""
    made: set[Rule] = set()
    for (server, to), nics in ways(circuits).items():
        lit = bool(circuits.between(server, to))
        if not lit:
            made.add(Rule(server, to, str(nics[0])))
        for own in fabric.optical_nics(server):
            if not (lit and own in nics):
                made.add(Rule(server, to, str(out(nics, own.path)), own.path))
    return frozenset(made)
