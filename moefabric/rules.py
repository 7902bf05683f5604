"""Rules: which way a packet leaves a switch, as data. No light rule means the EPS."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from moefabric.circuits import Circuit, CircuitSet
from moefabric.topology import Fabric, Nic, Region

_NOBODY: Final[Mapping[str, str]] = MappingProxyType({})
_NO_CIRCUIT: Final[Mapping[str, Circuit]] = MappingProxyType({})


@dataclass(frozen=True, order=True)
class Rule:
    """Packets on `switch` for server or region `to` (`*`: any server) leave by port `out`.

    With a `path`, only packets that their sender marked for that path (its NIC, `o1` or `e0`). Without, a `light` rule takes packets that
    nobody marked, and another all that no marked rule takes. The first of these that fits wins: what is for the switch's own server,
    light, a mark, the longest prefix.
    """

    switch: str
    to: str
    out: str
    path: str | None = None
    light: bool = False

    @property
    def match(self) -> tuple[str, str, str, bool]:
        """What makes it another rule, rather than the same rule that points elsewhere."""
        return self.switch, self.to, self.path or "", self.light

    def __str__(self) -> str:
        marked = f" on {self.path}" if self.path else ""
        return f"{self.switch}: to {self.to}{marked} by {self.out}{' (light)' if self.light else ''}"


def light_rules(circuits: CircuitSet) -> frozenset[Rule]:
    """The rules that put traffic on these circuits: marked flows on the circuit of their NIC, all else on the pair's first one."""
    made: set[Rule] = set()
    first: set[tuple[str, str]] = set()
    for circuit in circuits:
        for here, there in ((circuit.a, circuit.b), (circuit.b, circuit.a)):
            made.add(Rule(here.server, there.server, str(here), here.path, light=True))
            if (here.server, there.server) not in first:
                first.add((here.server, there.server))
                made.add(Rule(here.server, there.server, str(here), None, light=True))
    return frozenset(made)


def via(fabric: Fabric, switch: str, to: str, out: str) -> frozenset[Rule]:
    """Transit: whatever reaches a server switch and is for `to` leaves by `out`, however it is marked, unless there is light to there."""
    return frozenset({Rule(switch, to, out)} | {Rule(switch, to, out, path) for path in _paths(fabric)})


def eps_rules(fabric: Fabric, relays: Mapping[str, str] = _NOBODY) -> frozenset[Rule]:
    """The rules of leaves and spines: every server is reached, marked flows by the NIC of the same number, or by another where that is out.

    `relays` are servers without an electrical NIC that works, and the servers by which they are reached.
    """
    made: set[Rule] = set()
    for leaf in fabric.leaves if not fabric.rails else ():
        made |= _marked_up(fabric, leaf)
    return frozenset(made).union(*(eps_rules_to(fabric, server, relays) for server in fabric.servers))


def eps_rules_to(fabric: Fabric, server: str, relays: Mapping[str, str] = _NOBODY) -> frozenset[Rule]:
    """Those of `eps_rules` that are about one server: what becomes of its NICs changes no other."""
    door = relays.get(server, server)
    downwards = (_towards(fabric, leaf, server, door) for leaf in fabric.leaves)
    across = (_from_spine(fabric, spine, server, door) for spine in fabric.spines)
    return frozenset[Rule]().union(*downwards, *across)


def _paths(fabric: Fabric) -> list[str]:
    """Marks that a packet on the EPS may carry: electrical NICs, and optical ones whose light is off."""
    return [f"e{k}" for k in range(fabric.electrical)] + [f"o{k}" for k in range(fabric.optical)]


def _nth(fabric: Fabric, wires: Sequence[Nic], number: int) -> Nic:
    """The NIC of a number, or another where that is out; the same again where all are."""
    nic = wires[number % len(wires)]
    if nic not in fabric.out:
        return nic
    usable = fabric.usable(wires) or (nic,)
    return usable[number % len(usable)]


def _towards(fabric: Fabric, leaf: str, server: str, door: str) -> set[Rule]:
    """To a server from a leaf: down where a NIC of the server that it is reached by ends there, else up."""
    wires = [nic for nic in fabric.electrical_nics(door) if fabric.leaf_of_nic(nic) == leaf]
    if not fabric.usable(wires):
        reachable = fabric.usable_electrical(door) or not wires
        return {_up(fabric, leaf, server)} if fabric.spines and reachable else set()
    default = Rule(leaf, server, str(_nth(fabric, wires, fabric.index[server])))
    if len(wires) == 1:
        return {default}
    return {default} | {Rule(leaf, server, str(_nth(fabric, wires, int(p[1:]))), p) for p in _paths(fabric)}


def _up(fabric: Fabric, leaf: str, server: str) -> Rule:
    return Rule(leaf, server, fabric.spines[fabric.index[server] % len(fabric.spines)])


def _marked_up(fabric: Fabric, leaf: str) -> set[Rule]:
    """Marked flows to whatever is not below this leaf: for those that are, a longer prefix wins."""
    spines = fabric.spines
    if len(spines) < 2 or fabric.electrical == 1:
        return set()
    return {Rule(leaf, "*", spines[int(p[1:]) % len(spines)], p) for p in _paths(fabric)}


def _from_spine(fabric: Fabric, spine: str, server: str, door: str) -> set[Rule]:
    """To the server's leaf; where each of its NICs has one of its own, marked flows to that of their rail."""
    wires = fabric.electrical_nics(door)
    default = Rule(spine, server, fabric.leaf_of_nic(_nth(fabric, wires, fabric.index[server])))
    if not fabric.rails or len(wires) == 1:
        return {default}
    by_mark = {
        Rule(spine, server, fabric.leaf_of_nic(_nth(fabric, wires, int(p[1:]))), p) for p in _paths(fabric)
    }
    return {default} | by_mark


def server_rules(
    fabric: Fabric, region: Region, relays: Mapping[str, Circuit] = _NO_CIRCUIT
) -> frozenset[Rule]:
    """The rules of a region's server switches without any light: own addresses to the host, all else to the EPS.

    `relays` are the circuits by which servers without an electrical NIC that works are joined to one that has one, and forwards for them.
    """
    made: dict[tuple[str, str, str, bool], Rule] = {}
    for server in region.servers:
        rules = {Rule(server, server, "host")}
        if fabric.usable_electrical(server):
            rules |= _outwards(fabric, region, server)
        elif server in relays:
            rules |= via(fabric, server, "*", str(relays[server].end_at(server)))
        made |= {rule.match: rule for rule in rules}
    for server, circuit in relays.items():
        peer = circuit.end_across(server)
        made |= {rule.match: rule for rule in via(fabric, peer.server, server, str(peer))}
    return frozenset(made.values())


def _outwards(fabric: Fabric, region: Region, server: str) -> set[Rule]:
    """From a server to the EPS by its NICs: marked flows by that of their number, others by the peer that they are for."""
    wires = fabric.electrical_nics(server)
    made = {Rule(server, "*", str(_nth(fabric, wires, 0)))}
    if len(wires) == 1:
        return made
    made |= {Rule(server, "*", str(_nth(fabric, wires, int(p[1:]))), p) for p in _paths(fabric)}
    for other in region.servers:
        if other != server:
            nth = Rule(server, other, str(_nth(fabric, wires, fabric.index[other])))
            made |= (_other_rails(fabric, server, other) if fabric.rails else None) or {nth}
    return made


def _other_rails(fabric: Fabric, server: str, other: str) -> set[Rule]:
    """To a peer whose NIC on some rail is out: by a rail on which both have one, since rails needn't meet anywhere."""
    mine, its = fabric.electrical_nics(server), fabric.electrical_nics(other)
    both = [k for k, nic in enumerate(mine) if not {nic, its[k]} & fabric.out]
    if not both or not fabric.out & {*its}:
        return set()
    chosen = {p: k if (k := int(p[1:]) % len(mine)) in both else both[k % len(both)] for p in _paths(fabric)}
    return {Rule(server, other, str(mine[k]), p) for p, k in chosen.items()} | {
        Rule(server, other, str(mine[both[fabric.index[other] % len(both)]]))
    }


@dataclass(frozen=True)
class RuleChange:
    """Rules to take out and to put in. One that only points elsewhere is in `add` alone: it replaces its namesake in one step."""

    delete: frozenset[Rule]
    add: frozenset[Rule]

    @classmethod
    def between(cls, now: Iterable[Rule], target: Iterable[Rule]) -> "RuleChange":
        """The least change that makes `target` of `now`."""
        before, after = frozenset(now), frozenset(target)
        add = after - before
        replaced = {rule.match for rule in add}
        return cls(frozenset(rule for rule in before - after if rule.match not in replaced), add)

    @property
    def switches(self) -> tuple[str, ...]:
        """The switches that are told something."""
        return tuple(sorted({rule.switch for rule in self.delete | self.add}))
