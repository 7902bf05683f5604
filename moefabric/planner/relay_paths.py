"""Paths of pairs of servers over circuits, the EPS and relay trees, as arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from moefabric.core.circuits import CircuitSet
from moefabric.core.forwarding import RelayTree
from moefabric.planner.arrays import Array
from moefabric.planner.waterfill import EpsLinks

Indices = NDArray[np.intp]

MOST_SERVERS_FOR_ALL_TREES: Final = 16


@dataclass(frozen=True)
class Paths:
    """Paths of pairs over links.

    Attributes:
        pair: The pair of each path, as source * servers + destination.
        root: The root of each path's relay tree, as an index; negative for other paths.
        lane: The lane of the tree.
        hops: The circuits of each path; 1 for the EPS.
        entry_path: The path of each entry of the incidence matrix.
        entry_link: The link of each entry.
        entry_share: The share of the path's bytes that the link carries.
    """

    pair: Indices
    root: Indices
    lane: Indices
    hops: Indices
    entry_path: Indices
    entry_link: Indices
    entry_share: Array

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return all paths, numbered on from part to part."""
        starts = np.cumsum([0, *(len(part.pair) for part in parts)])
        entries = [p.entry_path + start for p, start in zip(parts, starts, strict=False)]
        return cls(
            np.concatenate([part.pair for part in parts]),
            np.concatenate([part.root for part in parts]),
            np.concatenate([part.lane for part in parts]),
            np.concatenate([part.hops for part in parts]),
            np.concatenate(entries),
            np.concatenate([part.entry_link for part in parts]),
            np.concatenate([part.entry_share for part in parts]),
        )


class Circuits:
    """Circuits as directed links, and their relay trees as arrays.

    Attributes:
        names: Servers; those of the demand come first.
        near: The server that sends over each link, as an index of `names`.
        far: The server that receives over it.
        roots: Servers that have a tree.
    """

    def __init__(
        self,
        servers: tuple[str, ...],
        circuits: CircuitSet,
        trees: Mapping[str, RelayTree],
        lanes: int,
    ) -> None:
        links = [direction for circuit in circuits for direction in circuit.directions]
        self.names = tuple(dict.fromkeys((*servers, *(near.server for near, _ in links))))
        number = {name: position for position, name in enumerate(self.names)}
        link_from = {near: position for position, (near, _) in enumerate(links)}
        self.near = np.array([number[near.server] for near, _ in links], dtype=np.intp)
        self.far = np.array([number[far.server] for _, far in links], dtype=np.intp)
        self.roots = tuple(trees)
        self._root_number = np.array([number[root] for root in trees], dtype=np.intp)
        # The link of each tree, lane, server and destination; negative for none.
        self._link = np.full((len(trees), lanes, *2 * [len(self.names)]), -1, dtype=np.intp)
        for of_tree, tree in zip(self._link, trees.values(), strict=True):
            for lane, of_lane in enumerate(of_tree):
                for server, nics in tree.up.items():
                    of_lane[number[server]] = link_from[nics[lane % len(nics)]]
                for server, others in tree.aside.items():
                    of_server = of_lane[number[server]]
                    for destination, nics in others.items():
                        of_server[number[destination]] = link_from[nics[lane % len(nics)]]

    def direct_paths(self, servers: int) -> Paths:
        """Return the paths of pairs over their own circuits, spread evenly."""
        inner = np.flatnonzero((self.near < servers) & (self.far < servers))
        of_link = self.near[inner] * servers + self.far[inner]
        pair, path, parallel = np.unique(of_link, return_inverse=True, return_counts=True)
        none, ones = np.zeros_like(pair), np.ones_like(pair)
        return Paths(pair, -ones, none, ones, path.astype(np.intp), inner, 1.0 / parallel[path])

    def tree_paths(self, servers: int) -> Paths:
        """Return the paths of pairs over lanes of relay trees; of equal paths, the first.

        In large regions, only the trees whose root is next to the destination count: with evenly
        spread circuits the others save nothing and take most of the time.
        """
        number, lanes = self._root_number, self._link.shape[1]
        to_root = self._link[np.arange(len(number)), 0, :servers, number]
        # Without a link, the far end is that of the last link, which is ignored.
        ends = (to_root >= 0) | (np.arange(servers) == number[:, None])
        possible = ends[:, :, None] & ends[:, None, :] & ~np.eye(servers, dtype=bool)
        if servers > MOST_SERVERS_FOR_ALL_TREES:
            is_next = (to_root >= 0) & (self.far[to_root] == number[:, None])
            possible &= is_next[:, None, :]
        root, source, destination = np.nonzero(possible)
        other = (source != number[root]) & (destination != number[root])
        root, source, destination = (
            np.repeat(n[other], lanes) for n in (root, source, destination)
        )
        lane = np.tile(np.arange(lanes), len(root) // lanes)
        links, walking, link_of = list[Indices](), list[Indices](), self._link.ravel()
        way = (root * lanes + lane) * len(self.names) ** 2 + destination
        at, active = source.copy(), np.arange(len(root))
        while len(active):
            links.append(link_of[way[active] + at[active] * len(self.names)])
            walking.append(active)
            at[active] = self.far[links[-1]]
            active = active[at[active] != destination[active]]
        path, link = np.concatenate([*walking, root[:0]]), np.concatenate([*links, root[:0]])
        pair, hops = source * servers + destination, np.bincount(path, minlength=len(root))
        # Equal paths have equal sums of the random numbers of their links.
        draw = np.random.RandomState(0).random_sample(len(self.near))
        key = pair + np.bincount(path, draw[link], len(root)) / len(self.names)
        order = np.argsort(key)  # not stable, but much faster; so equal paths have ranks
        starts = np.flatnonzero(np.diff(key[order], prepend=-1) > 0)
        rank = (lane * len(number) + root) * len(root) + np.arange(len(root))
        chosen = np.zeros(len(root), dtype=bool)
        chosen[np.minimum.reduceat(rank[order], starts) % len(root)] = True
        chosen &= hops > 1
        used, new_number = chosen[path], np.cumsum(chosen) - 1
        path, link = new_number[path[used]], link[used]
        pair, root, lane, hops = (of_path[chosen] for of_path in (pair, root, lane, hops))
        return Paths(pair, root, lane, hops, path, link, np.ones(len(path)))


def eps_paths(eps: EpsLinks, first: int) -> Paths:
    """Return the paths of all pairs over the EPS, whose links have numbers from `first` on."""
    servers, pods = len(eps.nics), len(eps.uplinks)
    source, destination = np.nonzero(~np.eye(servers, dtype=bool))
    links, paths = [source, servers + destination], [np.arange(len(source))] * 2
    if pods:
        crossing = np.flatnonzero(eps.pod[source] != eps.pod[destination])
        links += [2 * servers + eps.pod[source[crossing]]]
        links += [2 * servers + pods + eps.pod[destination[crossing]]]
        paths += [crossing] * 2
    path, link = np.concatenate(paths), first + np.concatenate(links)
    ones = np.ones(len(source), dtype=np.intp)
    return Paths(
        source * servers + destination, -ones, 0 * ones, ones, path, link, np.ones(len(path))
    )


def over_forwarders(trees: Paths, near: Indices, first: int, servers: int) -> Paths:
    """Return tree paths that also load the forwarding rate of each server that forwards.

    Args:
        near: The server that sends over each circuit.
        first: Number of the first of these links, which are numbered as servers are.
        servers: Servers of the demand.
    """
    sender = near[trees.entry_link]
    forwards = sender != trees.pair[trees.entry_path] // servers
    return replace(
        trees,
        entry_path=np.concatenate([trees.entry_path, trees.entry_path[forwards]]),
        entry_link=np.concatenate([trees.entry_link, first + sender[forwards]]),
        entry_share=np.concatenate([trees.entry_share, trees.entry_share[forwards]]),
    )
