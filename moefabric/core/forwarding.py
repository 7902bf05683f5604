"""Forwarding by servers: packets that pass through the switches of other servers, not their hosts.

Where circuits are the only links, as on a flat patch panel, the packets of a pair without a circuit
take the fewest circuits. A packet keeps its sender's mark all the way, so that flows that left by
different NICs stay apart wherever circuits are parallel. Every rule leads one circuit nearer to the
destination, so that no packet loops.

Where `Fabric.forwarding` is set, senders also choose among relay trees. The relay tree of a server
is a breadth-first spanning tree of the circuits with that server as its root. A marked packet goes
up the tree until its destination is below, and then down. Between neighbours of the root, the path
is over the root. The rules depend on circuits alone: a new split needs no new rules.

Where circuits are parallel, a tree has lanes. Each lane has a mark, and lanes take turns in which
of parallel circuits they take. Where some circuits of the destination end no path of a pair, and
some circuits of the source begin none, lanes make detours (`moefabric.core.detours`). No packet
loops.

Where hosts forward (`Fabric.forwarding_by_hosts`), the tree of a server has its neighbours only.
Its agent receives a transfer and sends it again, both without a mark, so there are no rules and
no lanes. Packets without a mark take the first circuit of their two servers.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType

from moefabric.core.circuits import CircuitSet
from moefabric.core.detours import Hop, detoured_lanes
from moefabric.core.nic import Nic
from moefabric.core.paths import relay_lanes, relay_path
from moefabric.core.rules import DROP, Rule, RuleChange, direct_rules, eps_bound_rules
from moefabric.core.topology import Fabric, Region

NextHops = Mapping[tuple[str, str], tuple[Nic, ...]]
"""By (server, destination): the server's NICs whose circuits begin a shortest path, sorted."""


@lru_cache(maxsize=16)
def next_hops(circuits: CircuitSet) -> NextHops:
    """Return the next hops over circuits; a pair that they don't connect has none."""
    neighbours = defaultdict[str, list[tuple[Nic, str]]](list)
    for near, far in _far_ends(circuits).items():
        neighbours[near.server].append((near, far.server))
    hops: dict[tuple[str, str], tuple[Nic, ...]] = {}
    for destination in neighbours:
        distances = _distances(neighbours, destination)
        for server, distance in distances.items():
            if distance:
                nearer = [nic for nic, far in neighbours[server] if distances[far] < distance]
                hops[server, destination] = tuple(sorted(nearer))
    return MappingProxyType(hops)


def _distances(neighbours: Mapping[str, list[tuple[Nic, str]]], destination: str) -> dict[str, int]:
    """Return the number of circuits from each server to a destination."""
    distances, reached = {destination: 0}, [destination]
    for server in reached:  # the loop appends to this list
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
        Links as in `moefabric.core.routes.route`; none if circuits don't connect the servers.
    """
    hops = next_hops(circuits)
    if src != dst and (src, dst) not in hops:
        return ()
    return _links(circuits, src, dst, lambda server: select_nic(hops[server, dst], mark))


def _links(
    circuits: CircuitSet, src: str, dst: str, nic_of: Callable[[str], Nic]
) -> tuple[tuple[str, str], ...]:
    """Return the directed links to a server, given the NIC by which packets leave each server."""
    links, server, far_ends = list[tuple[str, str]](), src, _far_ends(circuits)
    while server != dst:
        nic = nic_of(server)
        links += [(str(nic), "ocs"), ("ocs", str(far_ends[nic]))]
        server = far_ends[nic].server
    return tuple(links)


@lru_cache(maxsize=16)
def _far_ends(circuits: CircuitSet) -> Mapping[Nic, Nic]:
    return MappingProxyType({near: far for c in circuits for near, far in c.directions})


def circuit_rules(
    fabric: Fabric, circuits: CircuitSet, unusable: frozenset[Nic] = frozenset()
) -> frozenset[Rule]:
    """Return the rules that put traffic on circuits.

    Args:
        unusable: NICs that carry nothing.

    Returns:
        Rules for the pairs with a circuit; without an EPS, of all connected pairs. They include the
        rules of relay trees if servers forward.
    """
    rules = direct_rules(circuits)
    if fabric.spreads_unmarked:
        marked = frozenset(rule for rule in rules if rule.path)
        rules = marked | spread_rules(fabric, circuits, unusable)
    if fabric.has_circuits_only:
        rules |= _transit_rules(fabric, circuits)
    if fabric.forwarding and not fabric.forwarding_by_hosts:
        rules |= frozenset(_tree_rules(fabric, circuits))
    return rules


def _transit_rules(fabric: Fabric, circuits: CircuitSet) -> frozenset[Rule]:
    """Return rules for pairs without a circuit, and for marks of NICs that don't join the pair."""
    rules: set[Rule] = set()
    for (server, destination), nics in next_hops(circuits).items():
        joined = bool(circuits.between(server, destination))
        if not joined:
            rules.add(Rule(server, destination, str(nics[0])))
        for nic in fabric.optical_nics(server):
            if not (joined and nic in nics):
                out = str(select_nic(nics, nic.path))
                rules.add(Rule(server, destination, out, nic.path))
    return frozenset(rules)


# --- relay trees ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class RelayTree:
    """A breadth-first spanning tree of circuits, with detours on the way to neighbours of its root.

    NICs are given by lane; if there are fewer of them, lanes take turns.

    Attributes:
        root: The server at the root.
        up: By server, its NICs towards the root; the root has none.
        aside: By server and destination, the NICs of packets that do not all go up: down to servers
            below, and by detours.
    """

    root: str
    up: Mapping[str, tuple[Nic, ...]]
    aside: Mapping[str, Mapping[str, tuple[Nic, ...]]]

    def reaches(self, server: str) -> bool:
        """Return whether circuits connect a server with the root."""
        return server == self.root or server in self.up

    def nic(self, server: str, destination: str, lane: int) -> Nic:
        """Return the NIC by which packets of a lane leave a server for a destination."""
        nics = self.aside.get(server, {}).get(destination) or self.up[server]
        return nics[lane % len(nics)]


@lru_cache(maxsize=16)
def relay_trees(circuits: CircuitSet, lanes: int = 1) -> Mapping[str, RelayTree]:
    """Return the relay tree of each server with a circuit, by the server.

    Servers that are equally near to the root through several neighbours are divided among these,
    so that the trees together load the circuits evenly. Trees take turns in which of parallel
    circuits their first lane takes.

    Args:
        lanes: Lanes of each tree.
    """
    neighbours, ends = _neighbours(circuits), defaultdict[tuple[str, str], tuple[Nic, ...]](tuple)
    for near, far in _far_ends(circuits).items():
        ends[near.server, far.server] += (near,)
    parallel = {a: {b: len(ends[a, b]) for b in peers} for a, peers in neighbours.items()}
    detours = detoured_lanes(parallel, lanes)
    uses: Counter[tuple[str, str]] = Counter()
    turns: Counter[frozenset[str]] = Counter()
    trees = (
        _relay_tree(root, neighbours, ends, detours[root], lanes, uses, turns)
        for root in neighbours
    )
    return MappingProxyType({tree.root: tree for tree in trees})


def _neighbours(circuits: CircuitSet) -> dict[str, list[str]]:
    """Return the servers at the far ends of each server's circuits, once each, in order."""
    peers = defaultdict[str, dict[str, None]](dict)
    for near, far in _far_ends(circuits).items():
        peers[near.server][far.server] = None
    return {server: list(peers[server]) for server in sorted(peers)}


def _parents(
    root: str, neighbours: Mapping[str, list[str]], uses: Counter[tuple[str, str]]
) -> dict[str, str]:
    """Return the parent of each server in a tree, in breadth-first order.

    Among servers equally near to the root, the parent is that whose hop has the fewest uses.

    Args:
        uses: Number of earlier trees with a hop; hops of this tree are added.
    """
    parents: dict[str, str] = {}
    level = [root]
    while level:
        candidates: dict[str, list[str]] = {}
        for near in level:
            for far in neighbours[near]:
                if far != root and far not in parents:
                    candidates.setdefault(far, []).append(near)
        for far, nears in candidates.items():
            parents[far] = min(nears, key=lambda near: uses[near, far])
            uses[parents[far], far] += 1
        level = list(candidates)
    return parents


def _relay_tree(
    root: str,
    neighbours: Mapping[str, list[str]],
    ends: Mapping[tuple[str, str], tuple[Nic, ...]],
    detours: Mapping[tuple[str, str], Mapping[int, Hop]],
    lanes: int,
    uses: Counter[tuple[str, str]],
    turns: Counter[frozenset[str]],
) -> RelayTree:
    """Grow the tree of a root.

    Args:
        ends: By server and neighbour, the NICs of the server that circuits join with the neighbour.
        detours: By server and destination, the hops of lanes that do not lead to the parent.
        lanes: Lanes of the tree.
        uses: Number of earlier trees with a hop; hops of this tree are added.
        turns: Number of earlier trees that join two servers; pairs of this tree are added.
    """
    parent = _parents(root, neighbours, uses)
    first: dict[frozenset[str], int] = {}

    def nics(server: str, peer: str) -> tuple[Nic, ...]:
        parallel = ends[server, peer]
        if len(parallel) == 1:
            return parallel
        pair = frozenset((server, peer))
        if pair not in first:
            first[pair] = turns[pair] % len(parallel)
            turns[pair] += 1
        return (*parallel[first[pair] :], *parallel[: first[pair]])

    up: dict[str, tuple[Nic, ...]] = {}
    aside: dict[str, dict[str, tuple[Nic, ...]]] = {}
    for server, above in reversed(parent.items()):  # children before their parents
        up[server] = nics(server, above)
        below = (server, *aside.get(server, ()))
        aside.setdefault(above, {}).update(dict.fromkeys(below, nics(above, server)))
    ordinary = {
        server: [above[lane % len(above)] for lane in range(lanes)] for server, above in up.items()
    }
    for (server, destination), hops in detours.items():
        by_lane = ordinary[server].copy()
        for lane, (peer, number) in hops.items():
            parallel = nics(server, peer) if number is None else (ends[server, peer][number],)
            by_lane[lane] = parallel[lane % len(parallel)]
        if by_lane != ordinary[server]:
            aside.setdefault(server, {})[destination] = tuple(by_lane)
    return RelayTree(root, up, aside)


@lru_cache(maxsize=16)
def neighbour_trees(circuits: CircuitSet) -> Mapping[str, RelayTree]:
    """Return the relay tree of each server's agent: the server, and those next to it."""
    trees = {}
    for root, peers in _neighbours(circuits).items():
        first = {peer: circuits.between(root, peer)[0] for peer in peers}
        up = {peer: (circuit.end_at(peer),) for peer, circuit in first.items()}
        down = {peer: (circuit.end_at(root),) for peer, circuit in first.items()}
        trees[root] = RelayTree(root, up, {root: down})
    return MappingProxyType(trees)


def forwarding_trees(
    fabric: Fabric, circuits: CircuitSet, servers: Iterable[str], lanes: int
) -> Mapping[str, RelayTree]:
    """Return the relay trees over which servers, or their agents, forward.

    Args:
        servers: Servers that take part. The switches of others forward, too, but not their agents,
            which may be lost.
        lanes: Lanes of each tree.
    """
    if not fabric.forwarding_by_hosts:
        return relay_trees(circuits, lanes)
    trees = neighbour_trees(circuits)
    return {server: trees[server] for server in servers if server in trees}


def tree_route(
    circuits: CircuitSet, src: str, dst: str, root: str, lane: int = 0, lanes: int = 1
) -> tuple[tuple[str, str], ...]:
    """Return the directed links from a server to another by a lane of the relay tree of a root.

    Args:
        lanes: Lanes that the tree has.

    Returns:
        Links as in `moefabric.core.routes.route`; none if the tree lacks one of the servers.
    """
    tree = relay_trees(circuits, lanes).get(root)
    if tree is None or not (tree.reaches(src) and tree.reaches(dst)):
        return ()
    return _links(circuits, src, dst, lambda server: tree.nic(server, dst, lane))


def _tree_rules(fabric: Fabric, circuits: CircuitSet) -> Iterator[Rule]:
    """Yield the rules of all lanes of relay trees: towards the root unless a packet goes aside.

    A tree that spans its region needs one rule for all destinations to which packets go up. Servers
    that a tree lacks get no rule: their packets take the EPS at once.
    """
    for region in fabric.regions:
        lanes = relay_lanes(fabric, region)
        for root, tree in relay_trees(circuits, lanes).items():
            if root in region.servers:
                for lane in range(lanes):
                    yield from _lane_rules(fabric, region, tree, lane)


def _lane_rules(fabric: Fabric, region: Region, tree: RelayTree, lane: int) -> Iterator[Rule]:
    """Yield the rules of a lane of a relay tree."""
    mark, spans = relay_path(fabric, tree.root, lane), all(map(tree.reaches, region.servers))
    for server in (tree.root, *tree.up):
        up = tree.up.get(server, ())
        upwards = str(up[lane % len(up)]) if up else ""
        aside = {
            destination: out
            for destination in tree.aside.get(server, {})
            if (out := str(tree.nic(server, destination, lane))) != upwards
        }
        for destination in (region.name,) if spans else (tree.root, *tree.up):
            if up and destination != server and destination not in aside:
                yield Rule(server, destination, upwards, mark, light=True)
        for destination, out in aside.items():
            yield Rule(server, destination, out, mark, light=True)


def rule_changes(
    current: frozenset[Rule], target: frozenset[Rule], *, drop: bool = False
) -> tuple[RuleChange, ...]:
    """Return the changes from current circuit rules to others, in an order that makes no loop.

    Switches change at different instants. Packets could circulate between a switch with a tree's
    old rules and one with its new rules. So all rules of trees that change are removed before any
    new one is added, and with them a switch's rule of the same tree for the rest of the region.
    Each packet then meets rules of one tree only, and takes the EPS where it meets none.

    That fails where the EPS reaches a server over its relay's circuit, or where there is no EPS: a
    packet that has left its tree may come back to it. With `drop`, switches drop these packets.

    Args:
        current: The rules in force.
        target: The rules to put in force.
        drop: Whether switches drop packets of a tree while they have no rules for it.

    Returns:
        One or more changes. All switches must confirm each of them before the next one.
    """
    if current is target:
        return (RuleChange(frozenset(), frozenset()),)
    differing = current ^ target
    changed = {(rule.switch, rule.path) for rule in differing if _is_of_tree(rule)}
    if not changed:
        return (RuleChange.between(current & differing, target & differing),)
    servers = {rule.switch for rules in (current, target) for rule in rules}
    before, after = (
        frozenset(
            rule
            for rule in rules
            if (rule.switch, rule.path) in changed
            and (rule in differing or rule.to not in servers)  # the latter is for a whole region
        )
        for rules in (current, target)
    )
    drops = frozenset(Rule(switch, "*", DROP, mark, True) for switch, mark in changed if drop)
    current, target = (current & differing) | before, (target & differing) | after
    without = target - after if before or drops else target
    steps = current, current | drops, without | drops, target | drops, target
    changes = [RuleChange.between(*pair) for pair in pairwise(steps)]
    return tuple(change for change in changes if not change.is_empty) or tuple(changes[:1])


def tree_marks(rules: Iterable[Rule]) -> frozenset[str]:
    """Return the marks of the relay trees that some rules belong to."""
    return frozenset(rule.path for rule in rules if rule.path and _is_of_tree(rule))


def _is_of_tree(rule: Rule) -> bool:
    return rule.path is not None and rule.path[0] == "r"


def spread_rules(
    fabric: Fabric, circuits: CircuitSet, unusable: frozenset[Nic] = frozenset()
) -> frozenset[Rule]:
    """Return the rules that spread unmarked flows of pairs with circuits over these and the EPS.

    A flow keeps its path while the rules stay, so its packets arrive in order. The switch chooses
    the path by a hash of addresses and ports.

    The weights are those of a uniform all-to-all: each circuit serves its pair alone, while the
    electrical NICs of a server serve all its peers.

    Args:
        unusable: NICs that carry nothing; without a usable electrical NIC at both ends, flows are
            spread over circuits only.
    """
    working = fabric.without_nics(unusable) if unusable else fabric
    peers = len(fabric.servers) - 1
    nics = defaultdict[tuple[str, str], list[Nic]](list)
    for near, far in _far_ends(circuits).items():
        nics[near.server, far.server].append(near)
    rules = set[Rule]()
    for (server, to), own in nics.items():
        parts = tuple((str(nic), peers) for nic in sorted(own))
        electrical = len(working.usable_electrical(server))
        if electrical and working.usable_electrical(to):
            bound = eps_bound_rules(working, working.region_of[server], server)
            out = {rule.to: rule.out for rule in bound if rule.path is None}
            parts += ((out.get(to, out["*"]), electrical),)
        spread = parts if len(parts) > 1 else ()
        rules.add(Rule(server, to, parts[0][0], light=True, spread=spread))
    return frozenset(rules)
