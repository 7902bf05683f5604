"""Detours of relay trees: paths of three circuits or more, for circuits that others leave idle.

The paths of a pair of servers over the neighbours that they have in common use some of the circuits
of both servers only. Of a neighbour with more circuits to the destination than to the source, the
other circuits end no path; of a neighbour with more circuits to the source, the other circuits
begin none. A detour begins with such a circuit, goes on to the other neighbour, which is the root
of its tree, and ends with such a circuit. With all detours, a pair that owes most of its servers'
bytes uses nearly all circuits of both.

A packet's way depends on its tree, its lane and its destination, whoever sent it. So the next
server is nearer to the root, on paths without the destination; or it is as near, and sends packets
of this lane nearer at once. No packet loops.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from moefabric.core.paths import MOST_SERVERS_FOR_DETOURS, lanes_of_layer

Parallel = Mapping[str, Mapping[str, int]]
"""By server and neighbour, the number of circuits between the two."""
Hop = tuple[str, int | None]
"""The next server, and the number of the circuit to it; None if lanes take turns."""
Idle = tuple[str, int]
"""A circuit that begins or ends no path: the neighbour, and the number of the circuit to it."""
Detours = dict[tuple[str, str], dict[int, Hop]]
"""By server and destination, the hops of lanes that do not go to the root by the shortest way."""


def detoured_lanes(parallel: Parallel, lanes: int) -> Mapping[str, Detours]:
    """Return the detours of all relay trees, by root; large regions have none.

    Args:
        parallel: The circuits of each two servers.
        lanes: Lanes of each tree. Of twice as many as a layer needs, the second half has other
            detours.
    """
    detours: dict[str, Detours] = {root: {} for root in parallel}
    for destination, roots in parallel.items():
        members = _members(parallel, destination)
        if len(members) > MOST_SERVERS_FOR_DETOURS:
            continue
        counts = {count for member in members for count in parallel[member].values()}
        if len(counts) == 1 and all(len(parallel[m]) == len(members) - 1 for m in members):
            continue  # an even mesh
        layer = min(lanes, lanes_of_layer(min(counts), max(counts)))
        distances = {root: _distances(parallel, members, root, destination) for root in roots}
        layers = lanes // layer
        ends = [lanes * turn // layers for turn in range(layers + 1)]
        for turn, (first, end) in enumerate(pairwise(ends)):
            trees = _Trees(parallel, destination, distances, range(first, end), turn)
            for server in members:
                if server != destination:
                    for root, by_lane in trees.detours_of(server).items():
                        detours[root].setdefault((server, destination), {}).update(by_lane)
    return detours


def _members(parallel: Parallel, server: str) -> tuple[str, ...]:
    """Return a server and all that circuits join with it, sorted."""
    members, level = {server}, {server}
    while level:
        level = set[str]().union(*(parallel[near] for near in level)) - members
        members |= level
    return tuple(sorted(members))


def _distances(
    parallel: Parallel, members: Sequence[str], root: str, destination: str
) -> dict[str, int]:
    """Return the number of circuits from servers to a root, without the destination."""
    distances, level, left = {root: 0}, {root}, {*members} - {root, destination}
    while level and left:
        distance = distances[next(iter(level))] + 1
        level = left & set[str]().union(*(parallel[near] for near in level))
        distances |= dict.fromkeys(level, distance)
        left -= level
    return distances


class _Trees:
    """The trees of the neighbours of a destination, and the detours that they have so far.

    Args:
        parallel: The circuits of each two servers.
        distances: By root, the circuits from servers to the root, without the destination.
        lanes: Lanes of each tree that make up a layer.
        turn: Number of the layer; layers have different detours.
    """

    def __init__(
        self,
        parallel: Parallel,
        destination: str,
        distances: Mapping[str, Mapping[str, int]],
        lanes: range,
        turn: int,
    ) -> None:
        self._parallel, self._destination, self._distances = parallel, destination, distances
        self._lanes, self._turn = lanes, turn
        self._first = {root: (n + turn) % len(lanes) for n, root in enumerate(distances)}
        # By root and lane, servers that make a detour, and servers over which detours lead.
        self._detoured = defaultdict[tuple[str, int], set[str]](set)
        self._crossed = defaultdict[tuple[str, int], set[str]](set)

    def detours_of(self, server: str) -> Mapping[str, dict[int, Hop]]:
        """Choose the detours of a server.

        Returns:
            By root, the hops of lanes that make a detour.
        """
        outgoing, incoming = self._parallel[server], self._parallel[self._destination]
        first = [
            (peer, number)
            for peer, count in outgoing.items()
            if peer != self._destination
            for number in range(incoming.get(peer, 0), count)
        ]
        last = [
            (root, number)
            for root, count in incoming.items()
            if root != server and server in self._distances[root]
            for number in range(outgoing.get(root, 0), count)
        ]
        if not last:
            return {}
        if self._turn:
            first.reverse()
        chosen = _matching({end: self._beginnings(server, first, end) for end in last})
        hops = {root: dict[int, Hop]() for root, _ in last}
        for (root, _), (peer, number) in chosen.items():
            if self._is_nearer(peer, server, root):
                for lane in self._lanes:
                    hops[root].setdefault(lane, (peer, None))
            for lane in self._shared_lanes(self._own_lanes(server, root), server, peer, root)[:1]:
                hops[root][lane] = peer, number
                self._detoured[root, lane].add(server)
                self._crossed[root, lane].add(peer)
        far = [root for root in hops if self._distances[root][server] > 1]
        for turn, root in enumerate(far, self._turn):
            nearer = [peer for peer in outgoing if self._is_nearer(peer, server, root)]
            for lane in self._lanes:
                hops[root].setdefault(lane, (nearer[turn % len(nearer)], None))
        return {root: by_lane for root, by_lane in hops.items() if by_lane}

    def _beginnings(self, server: str, first: Sequence[Idle], last: Idle) -> list[Idle]:
        """Return the circuits with which a detour may begin, given its last circuit.

        A server that isn't next to the root begins with circuits to nearer servers; in the second
        layer, also with circuits to servers as near to the root as itself.
        """
        root, _ = last
        far = self._distances[root][server] > 1
        nearer = [idle for idle in first if far and self._is_nearer(idle[0], server, root)]
        if far and not self._turn:
            return nearer
        lanes = self._own_lanes(server, root) if first else []
        return nearer + [
            idle for idle in first if lanes and self._shared_lanes(lanes, server, idle[0], root)
        ]

    def _is_nearer(self, peer: str, server: str, root: str) -> bool:
        distances = self._distances[root]
        return peer in distances and distances[peer] < distances[server]

    def _own_lanes(self, server: str, root: str) -> list[int]:
        """Return the lanes of a root's tree on which a server may make a detour."""
        first, to = self._first[root], self._parallel[root]
        lanes = [*self._lanes[first:], *self._lanes[:first]]
        free = [lane for lane in lanes if server not in self._detoured[root, lane]]
        if len(free) <= min(to.get(server, 0), to[self._destination]):
            return []
        return [lane for lane in free if server not in self._crossed[root, lane]]

    def _shared_lanes(self, lanes: list[int], server: str, peer: str, root: str) -> list[int]:
        """Return the lanes on which a neighbour, as near to the root, makes no detour itself."""
        distances = self._distances[root]
        if distances.get(peer) != distances[server]:
            return []
        return [lane for lane in lanes if peer not in self._detoured[root, lane]]


def _matching(choices: Mapping[Idle, Sequence[Idle]]) -> dict[Idle, Idle]:
    """Return a maximum matching: each key gets one of its choices at most, unlike all others."""
    holder: dict[Idle, Idle] = {}

    def gets_one(taker: Idle, tried: set[Idle]) -> bool:
        for choice in choices[taker]:
            if choice not in tried:
                tried.add(choice)
                if choice not in holder or gets_one(holder[choice], tried):
                    holder[choice] = taker
                    return True
        return False

    for taker in choices:
        gets_one(taker, set())
    return {taker: choice for choice, taker in holder.items()}
