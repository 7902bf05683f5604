"""The linear program of splits with forwarding: circuits, the EPS and relay trees end together.

The bytes of a pair take its own circuits, the EPS, or lanes of relay trees. On 1,000 random demands
of 4 to 16 servers, with even circuits of up to 4 optical NICs fewer (of 3 or more) or 3 more than a
full mesh needs, the split ends at most 1 % later than that of a linear program that allows every
path (`test_multihop.py`). With fewer circuits, paths that join the EPS and circuits would help.

Each pair has a base path: its own circuits; without these the EPS; without that a tree. Variables
are the bytes that leave the base path, and time. With all bytes on base paths, the dual simplex
method has a start that needs no first phase and is few steps from the optimum if few bytes move.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from math import inf
from typing import Any, Final

import numpy as np

from moefabric.core.circuits import CircuitSet
from moefabric.core.forwarding import RelayTree
from moefabric.planner.arrays import Array
from moefabric.planner.relay_paths import (
    MOST_SERVERS_FOR_ALL_TREES,
    Circuits,
    Indices,
    Paths,
    eps_paths,
    over_forwarders,
)
from moefabric.planner.relay_prices import Game
from moefabric.planner.waterfill import EpsLinks

_FORWARDING_COST: Final = 1e-3
"""Cost of forwarding all bytes once, relative to that of the least time that NICs allow."""
_LEAST_SHARE: Final = 0.03
"""Share of a pair's bytes that the game of prices puts on a path worth considering."""
_SLACK: Final = 7e-3
"""Time above the bound, relative to it, at which it needn't be reduced further in large regions."""
_TOLERANCE: Final = 1e-2
"""Time above the bound, relative to it, up to which considered paths suffice."""
_ROUNDING: Final = 1e-9
"""Rounding error of bytes and times, relative to the least time that NICs allow."""


@dataclass(frozen=True)
class RelaySplit:
    """The bytes of each pair by path.

    Attributes:
        seconds: When all of them have arrived; infinite if a pair has no path.
        light: Bytes over the pair's own circuits [from, to].
        eps: Bytes over the EPS [from, to], with the bytes of pairs without any path.
        forwarded: Bytes over relay trees, by (from, to, root, lane).
    """

    seconds: float
    light: Array
    eps: Array
    forwarded: Mapping[tuple[int, int, str, int], float]


def load_solver() -> None:
    """Import the solver; otherwise, the first split would take 0.15 s longer."""
    import_module("highspy")
    import_module("scipy.sparse")


class RelayLinearProgram:
    """The linear program of a region's circuits and EPS, for any demand.

    Args:
        servers: Servers of the demand.
        circuits: Circuits that are lit; other servers' circuits forward, too.
        trees: Relay trees over these circuits, by their roots.
        rates: Bytes per second of an optical NIC, of all servers or by server.
        eps: Links of the EPS between the servers; None if there is none.
        forwarding_rate: Bytes per second that a server forwards for all others together; None if
            only its links limit that.
        lanes: Lanes of each relay tree.
    """

    def __init__(
        self,
        servers: tuple[str, ...],
        circuits: CircuitSet,
        trees: Mapping[str, RelayTree],
        rates: float | Mapping[str, float],
        eps: EpsLinks | None,
        forwarding_rate: float | None = None,
        lanes: int = 1,
    ) -> None:
        from scipy.sparse import csc_array

        wired, count = Circuits(servers, circuits, trees, lanes), len(servers)
        if not isinstance(rates, Mapping):
            rates = dict.fromkeys(wired.names, rates)
        nic = np.array([rates[name] for name in wired.names])
        light = np.minimum(nic[wired.near], nic[wired.far])
        direct, relayed = wired.direct_paths(count), wired.tree_paths(count)
        links = [light]
        parts = [direct]
        if eps is not None:
            parts.append(eps_paths(eps, len(wired.near)))
            links.append(eps.budget)
        if forwarding_rate is not None:
            relayed = over_forwarders(relayed, wired.near, sum(map(len, links)), count)
            links.append(np.full(len(wired.names), forwarding_rate))
        self._paths = paths = Paths.joined([*parts, relayed])
        self._root_names, self._unit_rate = wired.roots, float(nic.max())
        self._is_direct = np.arange(len(paths.pair)) < len(direct.pair)
        self._capacity = np.concatenate(links)
        nics = np.zeros(count) if eps is None else eps.nics
        unit = self._unit_rate
        self._out, self._into = (
            nics + unit * np.bincount(ends, light / unit, count)[:count]
            for ends in (wired.near, wired.far)
        )
        shape = len(self._capacity), len(paths.pair)
        self._incidence: Any = csc_array(
            (paths.entry_share, (paths.entry_link, paths.entry_path)), shape=shape
        )
        rank = np.where(self._is_direct, 0, paths.hops + (paths.root >= 0))
        order = np.lexsort((rank, paths.pair))
        base = order[np.diff(paths.pair[order], prepend=-1) > 0]
        self._base = np.full(count**2, -1, dtype=np.intp)
        self._base[paths.pair[base]] = base

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
            exact: Whether the time is exactly the least over these paths. Otherwise it is up to a
                thousandth longer for each time that all bytes needn't be forwarded once, and up to
                a hundredth longer in large regions.

        Returns:
            The split.
        """
        flat = owed.ravel()
        stranded = np.where(self._base < 0, flat, 0.0)
        due = flat - stranded
        carried = np.zeros(len(self._paths.pair))
        if unit := self._unit_rate * self.bound_s(due.reshape(owed.shape)):
            carried = unit * self._carried(due / unit, exact=exact)
        return self._split(carried, stranded.reshape(owed.shape))

    def _carried(self, due: Array, *, exact: bool) -> Array:
        """Return the bytes over each path.

        The unit of time is the least that the NICs of the servers allow, the unit of bytes what the
        fastest NIC carries in that time.

        Args:
            due: Bytes of each pair.
            exact: As in `split`.
        """
        if exact:
            least = self._all_moves.solve(due, forwarding_cost=0.0).time
            limit = least * (1 + _ROUNDING)
            return self._all_moves.solve(due, time_cost=0.0, most_time=limit).carried
        if len(due) > MOST_SERVERS_FOR_ALL_TREES**2:
            return self._nearly_least(due)
        return self._all_moves.solve(due).carried

    def _nearly_least(self, due: Array) -> Array:
        """Return the bytes over each path; only paths that a game of prices uses are considered.

        The main paths of the game are the base paths. Until the time is within a hundredth of the
        bound, the paths are added that are cheapest at the prices of the last solution.
        """
        paths, capacity = self._paths, self._capacity / self._unit_rate
        usable = np.flatnonzero(due[paths.pair] > 0)
        usable = usable[np.argsort(paths.pair[usable], kind="stable")]
        pair, forwards = paths.pair[usable], paths.hops[usable].astype(np.float64) - 1.0
        game = Game(self._incidence[:, usable], capacity, pair, due[pair], forwards)
        shares, weights = game.play()
        main = np.lexsort((-shares, pair))[np.diff(pair, prepend=-1) > 0]
        base = self._base.copy()
        base[pair[main]] = usable[main]
        considered, bound = shares > _LEAST_SHARE, max(1.0, game.bound(weights))
        while True:
            moves = _Moves(paths, self._incidence, capacity, base, usable[considered])
            solution = moves.solve(due, least_time=bound * (1 + _SLACK))
            bound = max(bound, game.bound(solution.weights))
            cheaper = game.cheapest(solution.weights) & ~considered
            if solution.time <= bound * (1 + _TOLERANCE) or not cheaper.any():
                return solution.carried
            considered |= cheaper

    @cached_property
    def _all_moves(self) -> "_Moves":
        """The moves from base paths to all others."""
        every = np.arange(len(self._paths.pair))
        return _Moves(
            self._paths, self._incidence, self._capacity / self._unit_rate, self._base, every
        )

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
            (*divmod(pair, count), self._root_names[root], lane): size
            for pair, root, lane, size in zip(
                paths.pair[used].tolist(),
                paths.root[used].tolist(),
                paths.lane[used].tolist(),
                carried[used].tolist(),
                strict=True,
            )
        }
        load = self._incidence @ carried
        seconds = inf if stranded.any() else float(np.max(load / self._capacity, initial=0.0))
        return RelaySplit(seconds, light, eps + stranded, forwarded)


@dataclass(frozen=True)
class _Solution:
    """A solution of the linear program.

    Attributes:
        carried: Bytes over each path.
        time: End of all links.
        weights: Time saved by each link if its rate grows by a small share, in any unit.
    """

    carried: Array
    time: float
    weights: Array


class _Moves:
    """The linear program whose variables are time and the bytes that leave base paths.

    Args:
        incidence: Share of a path's bytes on each link [link, path], sparse.
        capacity: Bytes per unit of time of each link.
        base: The base path of each pair; negative for none.
        considered: Paths to which bytes may move.
    """

    def __init__(
        self, paths: Paths, incidence: Any, capacity: Array, base: Indices, considered: Indices
    ) -> None:
        from scipy.sparse import csc_array, hstack, vstack

        self._incidence, self._capacity, self._base = incidence, capacity, base
        self._to = considered[base[paths.pair[considered]] != considered]
        self._pair = paths.pair[self._to]
        from_path = base[self._pair]
        self._forwards = (paths.hops[self._to] - paths.hops[from_path]).astype(np.float64)
        choices = np.bincount(self._pair, minlength=len(base))
        # A pair with one move can't exceed its bytes; the others have a row each.
        self._limited = np.flatnonzero(choices > 1)
        row = np.full(len(base), -1, dtype=np.intp)
        row[self._limited] = np.arange(len(self._limited))
        several = np.flatnonzero(row[self._pair] >= 0)
        limits = csc_array(
            (np.ones(len(several)), (row[self._pair[several]], several)),
            shape=(len(self._limited), len(self._to)),
        )
        time = np.concatenate([-capacity, np.zeros(len(self._limited))])
        change = incidence[:, self._to] - incidence[:, from_path]
        self._rows: Any = hstack([vstack([change, limits]), csc_array(time[:, None])], format="csc")

    def solve(
        self,
        due: Array,
        *,
        time_cost: float = 1.0,
        forwarding_cost: float = _FORWARDING_COST,
        least_time: float = 1.0,
        most_time: float = inf,
    ) -> _Solution:
        """Solve the linear program for the bytes of each pair.

        `time_cost` is the cost of a unit of time, `forwarding_cost` that of forwarding all bytes
        once.
        """
        owing = np.flatnonzero(due > 0)
        active = np.flatnonzero(due[self._pair] > 0)
        most = due[self._pair[active]]
        on_base = self._incidence[:, self._base[owing]] @ due[owing]
        values, prices = _optimum(
            # In this unit of cost, the solver's tolerances fit.
            np.append(forwarding_cost * self._forwards[active], time_cost * due.sum()),
            self._rows[:, np.append(active, len(self._to))],
            np.concatenate([-on_base, due[self._limited]]),
            np.append(0.0 * most, least_time),
            np.append(most, most_time),
        )
        moved = np.zeros(len(self._to))
        moved[active] = np.where(values[:-1] > _ROUNDING, values[:-1], 0.0)
        leaving = _sums(self._pair, moved, len(due))
        # The solver may exceed limits by rounding errors.
        moved *= np.divide(due, leaving, out=np.ones(len(due)), where=leaving > due)[self._pair]
        carried = np.zeros(self._incidence.shape[1])
        carried[self._to] = moved
        carried[self._base[owing]] += np.maximum(due - leaving, 0.0)[owing]
        weights = -self._capacity * prices[: len(self._capacity)]
        return _Solution(carried, float(values[-1]), weights)


def _optimum(
    cost: Array, rows: Any, limit: Array, least: Array, most: Array
) -> tuple[Array, Array]:
    """Return the values of least cost whose rows are within their limits, and the rows' prices.

    `scipy.optimize.linprog` solves the same and then walks over all values, which takes longer.

    Args:
        cost: Cost of each value.
        rows: Coefficients [row, value], sparse by columns.
        limit: Upper limit of each row.
        least: Lower bound of each value.
        most: Upper bound of each value.
    """
    from highspy import Highs, HighsLp, HighsModelStatus

    lp = HighsLp()
    lp.num_row_, lp.num_col_ = lp.a_matrix_.num_row_, lp.a_matrix_.num_col_ = rows.shape
    lp.a_matrix_.start_, lp.a_matrix_.index_ = rows.indptr, rows.indices
    lp.a_matrix_.value_ = rows.data
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, least, most
    lp.row_lower_, lp.row_upper_ = np.full(len(limit), -inf), limit
    solver = Highs()
    for option, value in (("output_flag", False), ("presolve", "off"), ("solver", "simplex")):
        solver.setOptionValue(option, value)
    solver.passModel(lp)
    solver.run()
    status = solver.getModelStatus()
    assert status == HighsModelStatus.kOptimal, solver.modelStatusToString(status)
    solution = solver.getSolution()
    return np.array(solution.col_value), np.array(solution.row_dual)


def _sums(number: Indices, values: Array, count: int) -> Array:
    """Return the sum of the values of each number below `count`."""
    return np.bincount(number, values, count).astype(np.float64)
