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

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from moefabric.core.paths import MOST_SERVERS_FOR_DETOURS, lanes_of_layer

Parallel = Mapping[str, Mapping[str, int]]
"""By server and neighbour, the number of circuits between the two."""
Hop = tuple[str, int | None]
"""The next server, and the number of the circuit to it; None if lanes take turns."""
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
    left = {*parallel}
    while left:
        members = _members(parallel, min(left))
        left.difference_update(members)
        if len(members) > MOST_SERVERS_FOR_DETOURS:
            continue
        counts = {count for member in members for count in parallel[member].values()}
        if len(counts) == 1 and all(len(parallel[m]) == len(members) - 1 for m in members):
            continue  # an even mesh
        layer = min(lanes, lanes_of_layer(min(counts), max(counts)))
        ends = [lanes * turn // (lanes // layer) for turn in range(lanes // layer + 1)]
        layers, wiring = [range(*pair) for pair in pairwise(ends)], _Wiring(parallel, members)
        for destination, to in enumerate(members):
            trees = _Trees(wiring, destination, layers)
            for server, name in enumerate(members):
                for root, hops in trees.detours_of(server).items():
                    if hops:
                        detours[members[root]][name, to] = hops
    return detours


def _members(parallel: Parallel, server: str) -> tuple[str, ...]:
    """Return a server and all that circuits join with it, sorted."""
    members, level = {server}, {server}
    while level:
        level = set[str]().union(*(parallel[near] for near in level)) - members
        members |= level
    return tuple(sorted(members))


class _Wiring:
    """Servers that circuits join, as numbers, and sets of the circuits of each of them, as bits.

    Attributes:
        names: The servers.
        counts: By server and peer, the number of circuits.
        circuits: By server, the peer and the number of each circuit.
        firsts: By server, the first circuit to each peer.
        idle: By server and other server, the circuits that begin no path of two to the other one.
        nearer: By destination, server and root, the circuits that lead nearer to the root, on paths
            without the destination; none if no path does.
        begin: Those of them that are idle, if the server isn't next to the root.
        aside: The idle circuits to servers that are as near to the root.
    """

    def __init__(self, parallel: Parallel, names: Sequence[str]) -> None:
        number, servers = {name: position for position, name in enumerate(names)}, len(names)
        self.names = names
        self.circuits = [
            [(number[peer], n) for peer, count in parallel[name].items() for n in range(count)]
            for name in names
        ]
        self.counts = [[parallel[a].get(b, 0) for b in names] for a in names]
        self.firsts, self.idle, towards = list[int](), list[list[int]](), list[list[int]]()
        for circuits in self.circuits:
            to, idle = [0] * servers, [0] * servers
            for bit, (peer, n) in enumerate(circuits):
                to[peer] |= 1 << bit
                others = zip(idle, self.counts[peer], strict=True)
                idle = [mask | (count <= n) << bit for mask, count in others]
            self.firsts.append(sum(mask & -mask for mask in to))
            self.idle.append([mask & ~own for mask, own in zip(idle, to, strict=True)])
            towards.append(to)
        # Distances by destination, server and root, of all at once.
        next_to, same = np.array(towards), np.eye(servers, dtype=bool)
        joined = ((next_to > 0) & ~same[:, :, None] & ~same[:, None, :]).astype(np.float32)
        distances = np.full(joined.shape, servers, dtype=np.int8)
        reached = np.broadcast_to(same, joined.shape)
        for distance in range(servers):
            distances[reached] = distance
            reached = (joined @ reached > 0) & (distances > distance)
        farther = distances[:, None] - distances[:, :, None]  # a peer than a server, from a root
        nearer, level = (
            np.where(farther == by, next_to[:, :, None], 0).sum(axis=2) for by in (-1, 0)
        )
        unused = np.array(self.idle).T[:, :, None]
        self.nearer, self.aside = nearer.tolist(), (level & unused).tolist()
        self.begin = np.where(nearer != next_to, nearer & unused, 0).tolist()


@lru_cache(maxsize=1 << 12)
def _bits(mask: int) -> tuple[int, ...]:
    """Return the numbers of the bits that are set, in ascending order."""
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


class _Trees:
    """The trees of the neighbours of a destination, and the detours that they have so far.

    Args:
        layers: The lanes of each layer; layers have different detours.
    """

    def __init__(self, wiring: _Wiring, destination: int, layers: Sequence[range]) -> None:
        self._wiring, self._destination, self._layers = wiring, destination, layers
        roots = dict.fromkeys(peer for peer, _ in wiring.circuits[destination])
        self._number, servers = {root: n for n, root in enumerate(roots)}, len(wiring.names)
        # By root and server, as bits: the lanes on which it makes no detour, and those on which no
        # detour leads over it. The lane of a layer's first bit differs from root to root.
        self._straight = [[-1] * servers for _ in range(servers)]
        self._uncrossed = [[-1] * servers for _ in range(servers)]

    def detours_of(self, server: int) -> Mapping[int, dict[int, Hop]]:
        """Choose the detours of a server.

        Returns:
            By root, the hops of lanes that make a detour.
        """
        wiring, names, destination = self._wiring, self._wiring.names, self._destination
        circuits, ends = wiring.circuits[server], wiring.circuits[destination]
        nearer, idle = wiring.nearer[destination][server], _bits(wiring.idle[destination][server])
        last = [root for bit in idle if nearer[root := ends[bit][0]]]
        hops = {root: dict[int, Hop]() for root in last}
        far = [root for root in hops if not wiring.counts[server][root]]
        for turn, lanes in enumerate(self._layers if last else ()):
            choices = {root: self._beginnings(server, root, turn) for root in hops}
            for end, bit in _matching([choices[root] for root in last]):
                root, (peer, number) = last[end], circuits[bit]
                if nearer[root] >> bit & 1:
                    for lane in lanes:
                        hops[root].setdefault(lane, (names[peer], None))
                elif shared := self._own_lanes(server, root, lanes) & self._straight[root][peer]:
                    least = shared & -shared
                    self._straight[root][server] &= ~least
                    self._uncrossed[root][peer] &= ~least
                    place = self._number[root] + turn + least.bit_length() - 1 - lanes.start
                    hops[root][lanes[place % len(lanes)]] = names[peer], number
            for number, root in enumerate(far, turn):
                for lane in lanes:
                    if lane not in hops[root]:
                        bits = _bits(nearer[root] & wiring.firsts[server])
                        hops[root][lane] = names[circuits[bits[number % len(bits)]][0]], None
        return hops

    def _beginnings(self, server: int, root: int, turn: int) -> Sequence[int]:
        """Return the circuits with which a detour may begin, given its root.

        A server that isn't next to the root begins with circuits to nearer servers; in the second
        layer, also with circuits to servers as near to the root as itself.
        """
        wiring, destination, order = self._wiring, self._destination, -1 if turn else 1
        begin = _bits(wiring.begin[destination][server][root])[::order]
        aside = wiring.aside[destination][server][root]
        if not aside or not (turn or wiring.counts[server][root]):
            return begin
        lanes, straight = self._own_lanes(server, root, self._layers[turn]), self._straight[root]
        peers = wiring.circuits[server]
        return (*begin, *[n for n in _bits(aside)[::order] if lanes & straight[peers[n][0]]])

    def _own_lanes(self, server: int, root: int, lanes: range) -> int:
        """Return the lanes of a root's tree on which a server may make a detour."""
        free = self._straight[root][server] & (1 << lanes.stop) - (1 << lanes.start)
        to = self._wiring.counts[root]
        if free.bit_count() <= min(to[server], to[self._destination]):
            return 0
        return free & self._uncrossed[root][server]


def _matching(choices: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return a maximum matching: each taker gets one of its choices at most, unlike all others."""
    holder: dict[int, int] = {}

    def gets_one(taker: int, tried: set[int]) -> bool:
        for choice in choices[taker]:
            if choice not in tried:
                tried.add(choice)
                if choice not in holder or gets_one(holder[choice], tried):
                    holder[choice] = taker
                    return True
        return False

    for taker in range(len(choices)):
        gets_one(taker, set())
    return [(taker, choice) for choice, taker in holder.items()]
