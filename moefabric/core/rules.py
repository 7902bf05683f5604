"""Forwarding rules as data: by which port a packet leaves a switch.

Without a light rule, a packet takes the EPS.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final, NamedTuple

from moefabric.core import paths
from moefabric.core.circuits import Circuit, CircuitSet
from moefabric.core.nic import Nic
from moefabric.core.topology import Fabric, Region

DROP: Final = "drop"
"""Port of a rule that sends packets nowhere."""
_NO_CIRCUITS: Final[Mapping[str, Circuit]] = MappingProxyType({})


class Rule(NamedTuple):
    """Sends packets on a switch, for a destination, out of a port.

    The first matching rule wins, in this order: rules for the switch's own server, light rules,
    rules for a GPU or a mark, the longest prefix.

    Attributes:
        switch: The OpenFlow switch.
        to: Destination: a GPU (`s0/3`), a server, a region, or `*` for any server.
        out: Port: `host`, a NIC (`s0/o1`), a switch (`spine0`) or `DROP`.
        path: Only packets that their sender marked for this path (its NIC, `o1` or `e0`). Without
            a path, a light rule takes packets without a mark, and another rule all packets.
        light: Whether the rule sends packets over a circuit.
        spread: Ports with weights over which flows are spread, `out` the first of them; empty if
            all packets take `out`.
    """

    switch: str
    to: str
    out: str
    path: str | None = None
    light: bool = False
    spread: tuple[tuple[str, int], ...] = ()

    @property
    def match(self) -> tuple[str, str, str, bool]:
        """The packets that the rule applies to. A rule replaces another with the same match."""
        return self.switch, self.to, self.path or "", self.light

    def __str__(self) -> str:
        mark = f" on {self.path}" if self.path else ""
        light = " (light)" if self.light else ""
        ports = " or ".join(port for port, _ in self.spread) or self.out
        return f"{self.switch}: to {self.to}{mark} by {ports}{light}"


def direct_rules(circuits: CircuitSet) -> frozenset[Rule]:
    """Return the rules of pairs with circuits.

    Marked packets take the circuit of their NIC, all others the pair's first circuit.
    """
    marked, unmarked = list[Rule](), dict[tuple[str, str], Rule]()
    for circuit in circuits:
        for of_nic, of_pair in _rules_of(circuit):
            marked.append(of_nic)
            unmarked.setdefault((of_pair.switch, of_pair.to), of_pair)
    return frozenset([*marked, *unmarked.values()])


@lru_cache(maxsize=1 << 14)
def _rules_of(circuit: Circuit) -> tuple[tuple[Rule, Rule], ...]:
    """Return, by direction, the rules for packets with the mark of the NIC and without a mark."""

    def rule(near: Nic, far: Nic, path: str | None) -> Rule:
        return Rule(near.server, far.server, str(near), path, light=True)

    return tuple((rule(*ends, ends[0].path), rule(*ends, None)) for ends in circuit.directions)


def transit_rules(fabric: Fabric, switch: str, to: str, out: str) -> frozenset[Rule]:
    """Return the rules by which a server switch forwards packets of any mark.

    Circuits to the destination still come first.
    """
    return frozenset(Rule(switch, to, out, mark) for mark in (None, *_marks(fabric)))


def eps_rules(fabric: Fabric) -> frozenset[Rule]:
    """Return the rules of leaves and spines.

    Packets reach the destination by the GPU's own NIC or, if GPUs have none, by the NIC with the
    mark's number; or by another NIC if that one is unusable.

    Returns:
        Rules to all servers.
    """
    up = (_marked_up_rules(fabric, leaf) | _up_rules(fabric, leaf) for leaf in fabric.leaves)
    down = (_down_rules(fabric, spine) for spine in fabric.spines)
    to_servers = (eps_rules_to(fabric, server, {}) for server in fabric.servers)
    return frozenset[Rule]().union(*up, *down, *to_servers)


def eps_rules_to(fabric: Fabric, server: str, relays: Mapping[str, str]) -> frozenset[Rule]:
    """Return the rules of `eps_rules` that depend on the NICs of one server.

    Args:
        server: The destination.
        relays: The server that forwards for each server without a usable electrical NIC.
    """
    relay, leaves, spines = relays.get(server, server), fabric.leaves, fabric.spines
    if paths.routes_by_region(fabric):  # those of other leaves, and of spines above one, stay
        leaves = fabric.eps_wiring.leaves_of(fabric.region_of[server].servers)
        spines = spines if len(leaves) > 1 else ()
    down = (_leaf_rules(fabric, leaf, server, relay) for leaf in leaves)
    across = (_spine_rules(fabric, spine, server, relay) for spine in spines)
    return frozenset[Rule]().union(*down, *across)


def _marks(fabric: Fabric) -> list[str]:
    """Return marks of packets on the EPS: its paths, and optical NICs without a circuit."""
    nics = [f"e{k}" for k in range(fabric.electrical)] + [f"o{k}" for k in range(fabric.optical)]
    return nics + _spine_marks(fabric)


def _spine_marks(fabric: Fabric) -> list[str]:
    """Return marks of paths that name a spine."""
    return [path.name for path in paths.spine_paths(fabric)]


def _nth(fabric: Fabric, nics: Sequence[Nic], number: int) -> Nic:
    """Return the NIC with a number or, if it is unusable, a usable one if there is any."""
    nic = nics[number % len(nics)]
    if nic not in fabric.unusable_nics:
        return nic
    usable = fabric.usable_nics(nics) or (nic,)
    return usable[number % len(usable)]


def _marked_rules(
    fabric: Fabric,
    switch: str,
    to: str,
    nics: Sequence[Nic],
    marks: Iterable[str],
    port: Callable[[Nic], str] = str,
) -> set[Rule]:
    """Return a rule for each mark, to the port of the NIC with the mark's number."""
    return {
        Rule(switch, to, port(_nth(fabric, nics, paths.nic_number(mark))), mark) for mark in marks
    }


def _leaf_rules(fabric: Fabric, leaf: str, server: str, relay: str) -> set[Rule]:
    """Return the rules from a leaf to a server.

    Packets go down if a usable NIC of the server or its relay is on the leaf, and up otherwise.
    Those to a GPU with its own NIC go down to that, however they are marked.
    """
    leaf_of_nic = fabric.eps_wiring.leaf_of_nic
    nics = [nic for nic in fabric.electrical_nics(relay) if leaf_of_nic(nic) == leaf]
    index = fabric.server_number[server]
    if not fabric.usable_nics(nics):
        if fabric.spines and (fabric.usable_electrical(relay) or not nics):
            return {Rule(leaf, server, fabric.spines[paths.receiver_spine(fabric, server)])}
        return set()
    default = {Rule(leaf, server, str(_nth(fabric, nics, index)))}
    if fabric.nic_per_gpu and len(nics) > 1:
        gpus = {f"{server}/{gpu}": paths.gpu_nic(fabric, gpu) for gpu in range(fabric.gpus)}
        return default | {Rule(leaf, to, str(_nth(fabric, nics, n))) for to, n in gpus.items()}
    # For marks that have rules up to a spine, the default alone would lose to these.
    marks = _marks(fabric) if len(nics) > 1 else _spine_marks(fabric)
    return default | _marked_rules(fabric, leaf, server, nics, marks)


def _marked_up_rules(fabric: Fabric, leaf: str) -> set[Rule]:
    """Return rules for marked packets to servers of other leaves, spread over spines.

    Rules for servers below the leaf have a longer prefix and win.
    """
    spines = fabric.spines
    if len(spines) < 2:
        return set()
    by_receiver = fabric.electrical == 1 or fabric.eps_wiring.rail_optimised
    marks = _spine_marks(fabric) if by_receiver else _marks(fabric)
    return {Rule(leaf, "*", spines[paths.spine_of_mark(fabric, mark)], mark) for mark in marks}


def _up_rules(fabric: Fabric, leaf: str) -> set[Rule]:
    """Return a leaf's rules to regions of which it has no server, where they share a route."""
    if not paths.routes_by_region(fabric):
        return set()
    here = {fabric.region_of[nic.server].name for nic in fabric.eps_wiring.nics_under(leaf)}
    others = (region for region in fabric.regions if region.name not in here)
    return {
        Rule(leaf, region.name, fabric.spines[paths.receiver_spine(fabric, region.servers[0])])
        for region in others
    }


def _down_rules(fabric: Fabric, spine: str) -> set[Rule]:
    """Return a spine's rules to regions below a single leaf, where regions share a route."""
    if not paths.routes_by_region(fabric):
        return set()
    leaves = {r.name: fabric.eps_wiring.leaves_of(r.servers) for r in fabric.regions}
    return {Rule(spine, region, own[0]) for region, own in leaves.items() if len(own) == 1}


def _spine_rules(fabric: Fabric, spine: str, server: str, relay: str) -> set[Rule]:
    """Return the rules from a spine to the server's leaf, or to the leaf of a mark's rail."""
    nics, eps = fabric.electrical_nics(relay), fabric.eps_wiring
    default_nic = _nth(fabric, nics, fabric.server_number[server])
    default = {Rule(spine, server, eps.leaf_of_nic(default_nic))}
    if not eps.rail_optimised or len(nics) == 1:
        return default
    return default | _marked_rules(fabric, spine, server, nics, _marks(fabric), eps.leaf_of_nic)


def server_rules(
    fabric: Fabric, region: Region, relays: Mapping[str, Circuit] = _NO_CIRCUITS
) -> frozenset[Rule]:
    """Return the rules of a region's server switches without any circuits.

    The server's own addresses go to its host, everything else to the EPS.

    Args:
        relays: The circuit from each server without a usable electrical NIC to the server that
            forwards for it.
    """
    rules: dict[tuple[str, str, str, bool], Rule] = {}
    for server in region.servers:
        of_server = {Rule(server, server, "host")}
        if fabric.usable_electrical(server):
            of_server |= eps_bound_rules(fabric, region, server)
        elif server in relays:
            of_server |= transit_rules(fabric, server, "*", str(relays[server].end_at(server)))
        rules |= {rule.match: rule for rule in of_server}
    for server, circuit in relays.items():
        peer = circuit.far_end(server)
        transit = transit_rules(fabric, peer.server, server, str(peer))
        rules |= {rule.match: rule for rule in transit}
    return frozenset(rules.values())


def eps_bound_rules(fabric: Fabric, region: Region, server: str) -> set[Rule]:
    """Return the rules from a server of a region to the EPS.

    Marked packets take the NIC of their number, others the NIC of their destination's number.
    """
    nics, rails = fabric.electrical_nics(server), fabric.eps_wiring.rail_optimised
    rules = {Rule(server, "*", str(_nth(fabric, nics, 0)))}
    if len(nics) == 1:
        return rules
    rules |= _marked_rules(fabric, server, "*", nics, _marks(fabric))
    for other in region.servers:
        if other != server:
            common = _common_rail_rules(fabric, server, other) if rails else None
            default = Rule(server, other, str(_nth(fabric, nics, fabric.server_number[other])))
            rules |= common or {default}
    return rules


def _common_rail_rules(fabric: Fabric, server: str, other: str) -> set[Rule]:
    """Return rules to a peer with unusable NICs, over rails on which both have a usable one.

    Rails may have no link between them.
    """
    nics, peers = fabric.electrical_nics(server), fabric.electrical_nics(other)
    both = [k for k, nic in enumerate(nics) if not {nic, peers[k]} & fabric.unusable_nics]
    if not both or not fabric.unusable_nics & {*peers}:
        return set()
    default = both[fabric.server_number[other] % len(both)]
    rules = {Rule(server, other, str(nics[default]))}
    for mark in _marks(fabric):
        rail = paths.nic_number(mark) % len(nics)
        chosen = rail if rail in both else both[rail % len(both)]
        rules.add(Rule(server, other, str(nics[chosen]), mark))
    return rules


@dataclass(frozen=True)
class RuleChange:
    """Rules to delete and to add.

    A rule that replaces another with the same match, in one step, is in `add` only.
    """

    delete: frozenset[Rule]
    add: frozenset[Rule]

    @classmethod
    def between(cls, current: Iterable[Rule], target: Iterable[Rule]) -> "RuleChange":
        """Return the smallest change from the current rules to the target."""
        before, after = frozenset(current), frozenset(target)
        add = after - before
        replaced = {rule.match for rule in add}
        return cls(frozenset(rule for rule in before - after if rule.match not in replaced), add)

    @property
    def is_empty(self) -> bool:
        """True if nothing changes."""
        return not (self.delete or self.add)
