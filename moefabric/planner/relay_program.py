"""The linear program of splits with forwarding: circuits, the EPS and relay trees end together.

The bytes of a pair take its own circuits, the EPS, or relay trees. Where every two servers have a
circuit, the program ends as soon as one that allows every path does (`test_multihop.py`).

Each pair has a base path: its own circuits; without these the EPS; without that a tree. Variables
are the bytes that leave the base path, and time. With all bytes on base paths, the dual simplex
method has a start that needs no first phase and is few steps from the optimum if few bytes move.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from moefabric.core.circuits import CircuitSet
from moefabric.core.forwarding import relay_trees
from moefabric.planner.policy import Array
from moefabric.planner.waterfill import EpsLinks

Indices = NDArray[np.intp]

_FORWARDING_COST: Final = 1e-3
"""Cost of forwarding all bytes once, relative to that of the least time that NICs allow."""
_MOST_SERVERS_FOR_ALL_TREES: Final = 16
_ROUNDING: Final = 1e-9
"""Rounding error of bytes and times, relative to the least time that NICs allow."""


@dataclass(frozen=True)
class RelaySplit:
    """The bytes of each pair by path.

    Attributes:
        seconds: When all of them have arrived; infinite if a pair has no path.
        light: Bytes over the pair's own circuits [from, to].
        eps: Bytes over the EPS [from, to]; those of pairs without any path are here, too.
        forwarded: Bytes over relay trees, by (from, to, root).
    """

    seconds: float
    light: Array
    eps: Array
    forwarded: Mapping[tuple[int, int, str], float]


@dataclass(frozen=True)
class _Paths:
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


class _Circuits:
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

    def __init__(self, servers: tuple[str, ...], circuits: CircuitSet) -> None:
        links = [direction for circuit in circuits for direction in circuit.directions]
        self.names = tuple(dict.fromkeys((*servers, *(near.server for near, _ in links))))
        number = {name: position for position, name in enumerate(self.names)}
        link_from = {near: position for position, (near, _) in enumerate(links)}
        self.near = np.array([number[near.server] for near, _ in links], dtype=np.intp)
        self.far = np.array([number[far.server] for _, far in links], dtype=np.intp)
        trees = relay_trees(circuits)
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

    def direct_paths(self, servers: int) -> _Paths:
        """Return the paths of pairs over their own circuits, spread evenly."""
        own = np.flatnonzero((self.near < servers) & (self.far < servers))
        of_link = self.near[own] * servers + self.far[own]
        pair, path, parallel = np.unique(of_link, return_inverse=True, return_counts=True)
        ones = np.ones(len(pair), dtype=np.intp)
        return _Paths(pair, -ones, ones, path.astype(np.intp), own, 1.0 / parallel[path])

    def tree_paths(self, servers: int) -> _Paths:
        """Return the paths of pairs over trees and other servers, each that of its first tree.

        In large regions, only the trees whose root is next to the destination count: with evenly
        spread circuits the others save nothing and take most of the time.
        """
        number, parent = self.root_number, self.parent
        inside = (parent >= 0) | (np.arange(parent.shape[1]) == number[:, None])
        ends = inside[:, :servers]
        possible = ends[:, :, None] & ends[:, None, :] & ~np.eye(servers, dtype=bool)
        if servers > _MOST_SERVERS_FOR_ALL_TREES:
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
        return _Paths(pair[chosen], root[chosen], hops[chosen], path, link, np.ones(len(path)))

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


def _eps_paths(eps: EpsLinks, first: int) -> _Paths:
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
    return _Paths(source * servers + destination, -ones, ones, path, link, np.ones(len(path)))


def _over_forwarders(trees: _Paths, near: Indices, first: int, servers: int) -> _Paths:
    """Return tree paths that also load a link of each server that forwards.

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


class RelayProgram:
    """The program of a region's circuits and EPS, for any demand.

    Args:
        servers: Servers of the demand.
        circuits: Circuits that are lit; other servers' circuits forward, too.
        rate: Bytes per second of a circuit in each direction.
        eps: Links of the EPS between the servers; None if there is none.
        forwarding_rate: Bytes per second that a server forwards for all others together; None if
            only its links limit that.
    """

    def __init__(
        self,
        servers: tuple[str, ...],
        circuits: CircuitSet,
        rate: float,
        eps: EpsLinks | None,
        forwarding_rate: float | None = None,
    ) -> None:
        from scipy.sparse import csc_array, hstack, vstack

        wired, count = _Circuits(servers, circuits), len(servers)
        direct, trees = wired.direct_paths(count), wired.tree_paths(count)
        links = [np.full(len(wired.near), rate)]
        parts = [direct]
        if eps is not None:
            parts.append(_eps_paths(eps, len(wired.near)))
            links.append(eps.budget)
        if forwarding_rate is not None:
            trees = _over_forwarders(trees, wired.near, sum(map(len, links)), count)
            links.append(np.full(len(wired.names), forwarding_rate))
        self._paths = paths = _Paths.joined([*parts, trees])
        self._root_names, self._rate = wired.roots, rate
        self._is_direct = np.arange(len(paths.pair)) < len(direct.pair)
        self._capacity = np.concatenate(links)
        nics = np.zeros(count) if eps is None else eps.nics
        self._out = nics + rate * np.bincount(wired.near, minlength=count)[:count]
        self._into = nics + rate * np.bincount(wired.far, minlength=count)[:count]
        self._incidence: Any = csc_array(
            (paths.entry_share, (paths.entry_link, paths.entry_path)),
            shape=(len(self._capacity), len(paths.pair)),
        )
        rank = np.where(self._is_direct, 0, paths.hops + (paths.root >= 0))
        order = np.lexsort((rank, paths.pair))
        base = order[np.diff(paths.pair[order], prepend=-1) > 0]
        self._base = np.full(count**2, -1, dtype=np.intp)
        self._base[paths.pair[base]] = base
        self._moves = np.setdiff1d(np.arange(len(paths.pair)), base)
        self._pair = paths.pair[self._moves]
        base_of_move = self._base[self._pair]
        self._more_hops = (paths.hops[self._moves] - paths.hops[base_of_move]).astype(np.float64)
        moves = np.arange(len(self._moves))
        limits = csc_array((np.ones(len(moves)), (self._pair, moves)), shape=(count**2, len(moves)))
        change = self._incidence[:, self._moves] - self._incidence[:, base_of_move]
        self._rows: Any = hstack(
            [
                vstack([change, limits]),
                csc_array(np.concatenate([-self._capacity / rate, np.zeros(count**2)])[:, None]),
            ],
            format="csc",
        )
        self._choices = np.bincount(self._pair, minlength=count**2)

    def bound_s(self, owed: Array) -> float:
        """Return a time below which the links of the servers can't carry a demand."""
        sent, received = owed.sum(axis=1), owed.sum(axis=0)
        times = [
            np.divide(due, capacity, out=np.zeros(len(due)), where=capacity > 0)
            for due, capacity in ((sent, self._out), (received, self._into))
        ]
        return float(np.max(times, initial=0.0))

    def split(self, owed: Array, *, exact: bool = False) -> RelaySplit:
        """Return the split that ends soonest and, of equal ones, forwards least.

        Args:
            owed: Bytes [from, to], diagonal empty.
            exact: Whether the time is exactly the least. Otherwise it is up to a thousandth longer
                if that saves forwarding, and takes half the work.

        Returns:
            The split.
        """
        flat = owed.ravel()
        stranded = np.where(self._base < 0, flat, 0.0)
        due = flat - stranded
        carried = np.zeros(len(self._paths.pair))
        if unit := self._rate * self.bound_s(due.reshape(owed.shape)):
            moved = unit * self._least_moves(due / unit, exact=exact)
            moved[moved < _ROUNDING * unit] = 0.0
            leaving = _sums(self._pair, moved, len(due))
            # The solver may exceed limits by rounding errors.
            moved *= np.divide(due, leaving, out=np.ones(len(due)), where=leaving > due)[self._pair]
            carried[self._moves] = moved
            based = np.flatnonzero(self._base >= 0)
            carried[self._base[based]] = np.maximum(due - leaving, 0.0)[based]
        return self._split(carried, stranded.reshape(owed.shape))

    def _least_moves(self, due: Array, *, exact: bool) -> Array:
        """Return the bytes that leave base paths, move by move.

        The unit of time is the least that the NICs of the servers allow, the unit of bytes what a
        circuit carries in that time.

        Args:
            due: Bytes of each pair.
            exact: As in `split`.
        """
        active = np.flatnonzero(due[self._pair] > 0)
        links, several = len(self._capacity), np.flatnonzero(self._choices > 1)
        rows = np.concatenate([np.arange(links), links + several])
        program = self._rows[:, np.append(active, len(self._moves))][rows]
        on_base = self._incidence[:, self._base[due > 0]] @ due[due > 0]
        limits = np.concatenate([-on_base, due[several]])
        hops = np.append(self._more_hops[active], 0.0)
        time = np.append(np.zeros(len(active)), due.sum())
        most = np.append(due[self._pair[active]], inf)
        least = np.append(np.zeros(len(active)), 1.0)
        if exact:
            most[-1] = (1 + _ROUNDING) * _minimum(time, program, limits, least, most)[-1]
            solution = _minimum(hops, program, limits, least, most)
        else:
            solution = _minimum(time + _FORWARDING_COST * hops, program, limits, least, most)
        moved = np.zeros(len(self._moves))
        moved[active] = solution[:-1]
        return moved

    def _split(self, carried: Array, stranded: Array) -> RelaySplit:
        """Return the split of the bytes of each path."""
        paths, count = self._paths, len(stranded)
        trees = paths.root >= 0
        light, eps = (
            _sums(paths.pair[chosen], carried[chosen], count**2).reshape(count, count)
            for chosen in (self._is_direct, ~self._is_direct & ~trees)
        )
        used = np.flatnonzero(trees & (carried > 0))
        forwarded = {
            (*divmod(pair, count), self._root_names[root]): size
            for pair, root, size in zip(
                paths.pair[used].tolist(),
                paths.root[used].tolist(),
                carried[used].tolist(),
                strict=True,
            )
        }
        load = self._incidence @ carried
        seconds = inf if stranded.any() else float(np.max(load / self._capacity, initial=0.0))
        return RelaySplit(seconds, light, eps + stranded, forwarded)


def _sums(number: Indices, values: Array, count: int) -> Array:
    """Return the sum of the values of each number below `count`."""
    sums: Array = np.bincount(number, values, count).astype(np.float64)
    return sums


def _minimum(cost: Array, program: Any, limits: Array, least: Array, most: Array) -> Array:
    """Return the x between `least` and `most` of least cost with `program @ x <= limits`."""
    from scipy.optimize import linprog

    result = linprog(
        cost,
        A_ub=program,
        b_ub=limits,
        bounds=np.column_stack([least, most]),
        method="highs-ds",
        options={"presolve": False},
    )
    assert result.status == 0, result.message
    solution: Array = result.x
    return solution
