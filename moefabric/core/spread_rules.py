"""Rules that spread the unmarked flows of a pair of servers over its circuits and the EPS.

A flow keeps its path while the rules stay, so its packets arrive in order. The switch chooses the
path by a hash of addresses and ports.
"""

from moefabric.core.circuits import CircuitSet
from moefabric.core.nic import Nic
from moefabric.core.rules import Rule, eps_bound_rules
from moefabric.core.topology import Fabric


def spread_rules(
    fabric: Fabric, circuits: CircuitSet, unusable: frozenset[Nic] = frozenset()
) -> frozenset[Rule]:
    """Return the rules for unmarked packets of pairs with circuits.

    The weights are those of a uniform all-to-all: each circuit serves its pair alone, while the
    electrical NICs of a server serve all its peers.

    Args:
        unusable: NICs that carry nothing; without a usable electrical NIC at both ends, flows are
            spread over circuits only.
    """
    working = fabric.without_nics(unusable) if unusable else fabric
    peers = len(fabric.servers) - 1
    nics: dict[tuple[str, str], list[Nic]] = {}
    for circuit in circuits:
        for near, far in circuit.directions:
            nics.setdefault((near.server, far.server), []).append(near)
    rules = set[Rule]()
    for (server, to), own in nics.items():
        parts = tuple((str(nic), peers) for nic in sorted(own))
        electrical = len(working.usable_electrical(server))
        if electrical and working.usable_electrical(to):
            parts += ((_eps_port(working, server, to), electrical),)
        spread = parts if len(parts) > 1 else ()
        rules.add(Rule(server, to, parts[0][0], light=True, spread=spread))
    return frozenset(rules)


def _eps_port(fabric: Fabric, server: str, to: str) -> str:
    """Return the electrical NIC by which a server's unmarked packets to a peer leave."""
    rules = eps_bound_rules(fabric, fabric.region_of[server], server)
    out = {rule.to: rule.out for rule in rules if rule.path is None}
    return out.get(to, out["*"])
