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
        server = np.repeat(np.arange(servers), [len(own) for own in self.circuits])
        peer, n = np.array([circuit for own in self.circuits for circuit in own]).T
        starts = np.searchsorted(server, np.arange(servers))
        bit = 1 << np.arange(len(server)) - starts[server]
        next_to = np.zeros((servers, servers), dtype=np.int64)
        np.add.at(next_to, (server, peer), bit)
        self.firsts = np.add.reduceat(np.where(n == 0, bit, 0), starts).tolist()
        fewer = np.where(np.array(self.counts)[peer] <= n[:, None], bit[:, None], 0)
        idle = np.add.reduceat(fewer, starts) & ~next_to
        # By destination, server and root, all at once, from the root outwards. Floating-point
        # numbers, whose products are much faster, are exact for these few bits.
        same, bits = np.eye(servers, dtype=bool), next_to.astype(np.float64)
        others = bits * ~(same[:, :, None] | same[:, None, :])
        inwards, across = np.zeros((2, *others.shape))
        here, unreached = np.broadcast_to(same, others.shape), np.broadcast_to(~same, others.shape)
        while here.any():
            to_here = others @ here
            across += to_here * here
            here = unreached & (to_here > 0)
            unreached = unreached & ~here
            inwards += to_here * here
        nearer, level = inwards.astype(np.int64), across.astype(np.int64)
        unused = idle.T[:, :, None]
        self.idle, self.nearer = idle.tolist(), nearer.tolist()
        self.aside = (level & unused).tolist()
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
            beginnings = self._beginnings(server, last, turn)
            for bit, end in _matching(beginnings).items():
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

    def _beginnings(self, server: int, roots: Sequence[int], turn: int) -> Sequence[Sequence[int]]:
        """Return the circuits with which a detour may begin, for each of some roots.

        A server that isn't next to the root begins with circuits to nearer servers; in the second
        layer, also with circuits to servers as near to the root as itself.
        """
        wiring, destination, order = self._wiring, self._destination, -1 if turn else 1
        begin, aside = wiring.begin[destination][server], wiring.aside[destination][server]
        counts, peers, lanes = wiring.counts[server], wiring.circuits[server], self._layers[turn]
        choices = [_bits(begin[root])[::order] for root in roots]
        for number, root in enumerate(roots):
            may_go_aside = aside[root] and (turn or counts[root])
            if may_go_aside and (own := self._own_lanes(server, root, lanes)):
                straight, level = self._straight[root], _bits(aside[root])[::order]
                choices[number] += tuple([n for n in level if own & straight[peers[n][0]]])
        return choices

    def _own_lanes(self, server: int, root: int, lanes: range) -> int:
        """Return the lanes of a root's tree on which a server may make a detour."""
        free = self._straight[root][server] & (1 << lanes.stop) - (1 << lanes.start)
        to = self._wiring.counts[root]
        if free.bit_count() <= min(to[server], to[self._destination]):
            return 0
        return free & self._uncrossed[root][server]


def _matching(choices: Sequence[Sequence[int]]) -> Mapping[int, int]:
    """Return the taker of each choice in a maximum matching: each taker gets one at most."""
    holder: dict[int, int] = {}
    for taker, own in enumerate(choices):
        if own and own[0] not in holder:
            holder[own[0]] = taker  # as `_gets_one` would, in less time
        elif own:
            _gets_one(taker, choices, holder, set())
    return holder


def _gets_one(
    taker: int, choices: Sequence[Sequence[int]], holder: dict[int, int], tried: set[int]
) -> bool:
    """Give a taker one of its choices, if need be by giving others another one; or return False."""
    for choice in choices[taker]:
        if choice not in tried:
            tried.add(choice)
            if choice not in holder or _gets_one(holder[choice], choices, holder, tried):
                holder[choice] = taker
                return True
    return False
