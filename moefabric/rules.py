"""Rules: which way a packet leaves a switch, as data. No light rule means the EPS."""

from collections.abc import Iterable
from dataclasses import dataclass

from moefabric.circuits import CircuitSet
from moefabric.topology import Fabric, Region


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


def eps_rules(fabric: Fabric) -> frozenset[Rule]:
    """The rules of leaves and spines: every server is reached, marked flows by the NIC of the same number."""
    made: set[Rule] = set()
    for leaf in fabric.leaves:
        below = set(fabric.under(leaf))
        for server in fabric.servers:
            made |= _down(fabric, leaf, server) if server in below else {_up(fabric, leaf, server)}
        made |= _marked_up(fabric, leaf)
    for spine in fabric.spines:
        made |= {Rule(spine, server, fabric.leaf_of(server)) for server in fabric.servers}
    return frozenset(made)


def _paths(fabric: Fabric) -> list[str]:
    """Marks that a packet on the EPS may carry: electrical NICs, and optical ones whose light is off."""
    return [f"e{k}" for k in range(fabric.electrical)] + [f"o{k}" for k in range(fabric.optical)]


def _down(fabric: Fabric, leaf: str, server: str) -> set[Rule]:
    wires = fabric.electrical_nics(server)
    default = Rule(leaf, server, str(wires[fabric.index[server] % len(wires)]))
    if len(wires) == 1:
        return {default}
    return {default} | {Rule(leaf, server, str(wires[int(p[1:]) % len(wires)]), p) for p in _paths(fabric)}


def _up(fabric: Fabric, leaf: str, server: str) -> Rule:
    return Rule(leaf, server, fabric.spines[fabric.index[server] % len(fabric.spines)])


def _marked_up(fabric: Fabric, leaf: str) -> set[Rule]:
    """Marked flows to whatever is not below this leaf: for those that are, a longer prefix wins."""
    spines = fabric.spines
    if len(spines) < 2 or fabric.electrical == 1:
        return set()
    return {Rule(leaf, "*", spines[int(p[1:]) % len(spines)], p) for p in _paths(fabric)}


def server_rules(fabric: Fabric, region: Region) -> frozenset[Rule]:
    """The rules of a region's server switches without any light: own addresses to the host, all else to the EPS."""
    made: set[Rule] = set()
    for server in region.servers:
        made.add(Rule(server, server, "host"))
        wires = fabric.electrical_nics(server)
        if not wires:
            continue
        made.add(Rule(server, "*", str(wires[0])))
        if len(wires) > 1:
            made |= {Rule(server, "*", str(wires[int(p[1:]) % len(wires)]), p) for p in _paths(fabric)}
            made |= {
                Rule(server, other, str(wires[fabric.index[other] % len(wires)]))
                for other in region.servers
                if other != server
            }
    return frozenset(made)


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
