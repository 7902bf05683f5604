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
_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class Paths:
    """Paths of pairs over links.

    Attributes:
        pair: The pair of each path, as source * servers + destination.
        root: The root of each path's relay tree, as an index; negative for other paths.
        hops: The circuits of each path; 1 for the EPS.
        entry_path: The path of each entry of the incidence matrix.
        entry_link: The link of each entry.
        entry_share: The share of the path's bytes that the link carries.
    """

    pair: Indices
    root: Indices
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
        parent: Each server's parent in each tree [root, server]; negative for none.
        up: The link from a server to its parent [root, server].
        down: The link from its parent to a server [root, server].
    """

    def __init__(
        self, servers: tuple[str, ...], circuits: CircuitSet, trees: Mapping[str, RelayTree]
    ) -> None:
        links = [direction for circuit in circuits for direction in circuit.directions]
        self.names = tuple(dict.fromkeys((*servers, *(near.server for near, _ in links))))
        number = {name: position for position, name in enumerate(self.names)}
        link_from = {near: position for position, (near, _) in enumerate(links)}
        self.near = np.array([number[near.server] for near, _ in links], dtype=np.intp)
        self.far = np.array([number[far.server] for _, far in links], dtype=np.intp)
        self.roots = tuple(trees)
        self.root_number = np.array([number[root] for root in trees], dtype=np.intp)
        self.parent = np.full((len(trees), len(self.names)), -1, dtype=np.intp)
        self.up = np.full_like(self.parent, -1)
        for position, tree in enumerate(trees.values()):
            for server, nic in tree.up.items():
                link = link_from[nic]
                self.parent[position, number[server]] = self.far[link]
                self.up[position, number[server]] = link
        # Both directions of a circuit are neighbours in the list of links.
        self.down = np.where(self.up >= 0, self.up ^ 1, -1)

    def direct_paths(self, servers: int) -> Paths:
        """Return the paths of pairs over their own circuits, spread evenly."""
        own = np.flatnonzero((self.near < servers) & (self.far < servers))
        of_link = self.near[own] * servers + self.far[own]
        pair, path, parallel = np.unique(of_link, return_inverse=True, return_counts=True)
        ones = np.ones(len(pair), dtype=np.intp)
        return Paths(pair, -ones, ones, path.astype(np.intp), own, 1.0 / parallel[path])

    def tree_paths(self, servers: int) -> Paths:
        """Return the paths of pairs over relay trees; a path of several trees is that of the first.

        In large regions, only the trees whose root is next to the destination count: with evenly
        spread circuits the others save nothing and take most of the time.
        """
        number, parent = self.root_number, self.parent
        inside = (parent >= 0) | (np.arange(parent.shape[1]) == number[:, None])
        ends = inside[:, :servers]
        possible = ends[:, :, None] & ends[:, None, :] & ~np.eye(servers, dtype=bool)
        if servers > MOST_SERVERS_FOR_ALL_TREES:
            possible &= (parent[:, :servers] == number[:, None])[:, None, :]
        root, source, destination = np.nonzero(possible)
        other = (source != number[root]) & (destination != number[root])
        root, source, destination = root[other], source[other], destination[other]
        links, walking = list[Indices](), list[Indices]()
        at, active, below = source.copy(), np.arange(len(root)), self._child_towards(servers)
        while len(active):
            tree, here = root[active], at[active]
            child = below[tree, here, destination[active]]
            links.append(np.where(child >= 0, self.down[tree, child], self.up[tree, here]))
            walking.append(active)
            at[active] = np.where(child >= 0, child, parent[tree, here])
            active = active[at[active] != destination[active]]
        path, link = np.concatenate([*walking, root[:0]]), np.concatenate([*links, root[:0]])
        pair, hops = source * servers + destination, np.bincount(path, minlength=len(root))
        # Equal paths have equal sums of the random numbers of their links.
        draw = np.random.RandomState(0).random_sample(len(self.near))
        sums = np.bincount(path, draw[link], len(root))
        order = np.lexsort((root, sums, pair))
        changes = np.diff(pair[order], prepend=-1) > 0
        changes[1:] |= np.diff(sums[order]) > _ROUNDING
        chosen = np.zeros(len(root), dtype=bool)
        chosen[order[changes]] = True
        chosen &= hops > 1
        used, new_number = chosen[path], np.cumsum(chosen) - 1
        path, link = new_number[path[used]], link[used]
        return Paths(pair[chosen], root[chosen], hops[chosen], path, link, np.ones(len(path)))

    def _child_towards(self, servers: int) -> Indices:
        """Return each server's child towards each destination below it, or -1.

        Returns:
            Children [root, server, destination].
        """
        roots, names = self.parent.shape
        child = np.full((roots, names, servers), -1, dtype=np.intp)
        root, destination = np.nonzero(self.parent[:, :servers] >= 0)
        at = destination
        while len(root):
            above = self.parent[root, at]
            child[root, above, destination] = at
            goes_on = self.parent[root, above] >= 0
            root, destination, at = root[goes_on], destination[goes_on], above[goes_on]
        return child


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
    return Paths(source * servers + destination, -ones, ones, path, link, np.ones(len(path)))


def over_forwarders(trees: Paths, near: Indices, first: int, servers: int) -> Paths:
    """Return tree paths that also load the forwarding rate of each server that forwards.

    Args:
        trees: The paths.
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
        entry_share=np.concatenate([trees.entry_share, np.ones(np.count_nonzero(forwards))]),
    )
