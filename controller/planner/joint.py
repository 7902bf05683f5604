"""Circuits and split chosen together: the ones with which everything ends soonest, never later than with Algorithm 1's circuits and spill."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controller.planner import mixnet, nics, static, water
from controller.planner.policy import Pair, counted, counts
from controller.planner.water import Array, EpsLinks, Places
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.flows import Split
from moefabric.topology import Fabric, Region

_GAIN = 5e-4
"""By how much an answer has to be better to be worth looking for."""


@dataclass(frozen=True)
class _Program:
    """How many times a second (tau) the demand could be carried, as a mixed-integer program in units of one circuit's rate.

    Variables: circuits of each pair (whole), what each ordered pair sends by the EPS, tau. Greatest tau such that light and EPS carry tau times
    what each pair owes, no server has more circuits than NICs, and no link of the EPS more than its budget. Linear, since the time itself isn't in it.
    """

    owed: Array
    ports: NDArray[np.int64]
    links: EpsLinks

    def solved(self, tau_low: float, tau_high: float, budget_s: float) -> NDArray[np.int64] | None:
        """Circuits of each pair [server, server] with `tau_low` or more; None where there are none, or none was found in time."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        n, pairs, senders = len(self.owed), *self._pairs()
        index = np.full((n, n), -1)
        index[pairs] = index[pairs[::-1]] = np.arange(len(pairs[0]))
        lit, sent = len(pairs[0]), len(senders[0])
        matrix, most = self._rows(index, pairs, senders)
        done = milp(
            np.concatenate([np.zeros(lit + sent), [-1.0]]),
            constraints=LinearConstraint(matrix, -np.inf, most),
            integrality=np.concatenate([np.ones(lit), np.zeros(sent + 1)]),
            bounds=Bounds(
                np.concatenate([np.zeros(lit + sent), [tau_low]]),
                np.concatenate([np.full(lit, self.ports.max(initial=0)), np.full(sent, np.inf), [tau_high]]),
            ),
            options={"time_limit": budget_s, "mip_rel_gap": _GAIN},
        )
        if done.x is None:
            return None
        made = np.zeros((n, n), dtype=np.int64)
        made[pairs] = np.rint(done.x[:lit])
        return made + made.T

    def _pairs(self) -> tuple[Places, Places]:
        """Pairs that owe anything either way, and ordered pairs that do."""
        return np.nonzero(np.triu(self.owed + self.owed.T, 1)), np.nonzero(self.owed)

    def _rows(self, index: NDArray[np.int64], pairs: Places, senders: Places) -> tuple[object, Array]:
        """Sparse rows over (circuits, EPS, tau), and what each may be at most: demand, ports, links of the EPS."""
        from scipy.sparse import coo_array, hstack, vstack

        lit, sent, n = len(pairs[0]), len(senders[0]), len(self.owed)
        each = np.arange(sent)
        by_light = coo_array((-np.ones(sent), (each, index[senders])), shape=(sent, lit))
        by_eps = coo_array((-np.ones(sent), (each, each)), shape=(sent, sent))
        due = coo_array(self.owed[senders].reshape(-1, 1))
        ends = (np.concatenate(pairs), np.tile(np.arange(lit), 2))
        ports = coo_array((np.ones(2 * lit), ends), shape=(n, lit))
        loads = coo_array(self.links.shares(senders))
        matrix = vstack(
            [
                hstack([by_light, by_eps, due]),
                hstack([ports, coo_array((n, sent)), coo_array((n, 1))]),
                hstack([coo_array((loads.shape[0], lit)), loads, coo_array((loads.shape[0], 1))]),
            ]
        )
        most = np.concatenate([np.zeros(sent), self.ports.astype(np.float64), self.links.budget])
        return matrix.tocsr(), most


def best(
    owed: Array, ports: NDArray[np.int64], rate: float, links: EpsLinks, budget_s: float
) -> NDArray[np.int64]:
    """Circuits of each pair [server, server]: Algorithm 1's, or better ones where such are found within the budget.

    `owed[from, to]` in bytes, diagonal empty; `ports[i]` optical NICs of a server; a circuit carries `rate` bytes a second each way. Better ones are no later for the transposed
    demand either: dispatch and combine are each other's transpose and share their light.
    """
    n = len(owed)
    start = _matrix(mixnet.order(owed + owed.T, ports.tolist()), n)
    largest = float(owed.max(initial=0.0))
    if not largest:
        return start
    # Where demand is nearly even, Algorithm 1 may leave one server almost without light: uniform circuits are a better start.
    uniform = _matrix(static.order(ports.tolist()), n)
    if _worse(owed, start, uniform, rate, links) and not _worse(owed, uniform, start, rate, links):
        start = uniform
    ends = _ends(owed, start, rate, links)[0]
    busiest = max(owed.sum(axis=0).max(), owed.sum(axis=1).max())
    soonest = busiest / (float(ports.max()) * rate + links.budget[: 2 * n].max())
    if ends <= soonest * (1 + _GAIN):
        return start
    # In units of one circuit and of the largest debt, every number of the program is about 1.
    scaled = _Program(owed / largest, ports, links.scaled(1 / rate))
    better = scaled.solved(largest / rate / ends * (1 + _GAIN), largest / rate / soonest, budget_s)
    return start if better is None or _worse(owed, better, start, rate, links) else better


@dataclass(frozen=True)
class Joint:
    """The best circuits that are found within `budget_s`, with the best split over them.

    An answer that the budget cuts short depends on the machine; light that is as good as it stays.
    """

    name: str = "joint"
    moves: bool = True
    budget_s: float = 0.06

    def circuits(self, fabric: Fabric, region: Region, demand: DemandMatrix, now: CircuitSet) -> CircuitSet:
        """The best circuits known; those that are lit where none are better."""
        if not fabric.leaves or not fabric.optical:
            return mixnet.MIXNET.circuits(fabric, region, demand, now)
        owed = water.off_diagonal(demand)
        # Posed the same way for dispatch and combine, so that both get the same answer.
        owed = min(owed, owed.T, key=lambda each: each.tolist())
        rate, links = water.circuit_rate(fabric), EpsLinks.of(fabric, region.servers)
        ports = np.full(len(region.servers), fabric.optical)
        found = best(owed, ports, rate, links, self.budget_s)
        lit = counted(region.servers, now)
        if not _worse(owed, lit, found, rate, links):
            found = lit
        return nics.circuits(fabric, region, tuple(tuple(map(int, row)) for row in found), now)

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        """By light what it carries until all ends, by the EPS the rest."""
        return water.parted(fabric, demand, circuits)


def _matrix(lit: list[Pair], servers: int) -> NDArray[np.int64]:
    return np.array(counts(servers, lit), dtype=np.int64).reshape(servers, servers)


def _ends(owed: Array, lit: NDArray[np.int64], rate: float, links: EpsLinks) -> tuple[float, float]:
    """When the demand and its transpose end over these circuits, with the best split."""
    light = rate * lit.astype(np.float64)
    return water.seconds(owed, light, links), water.seconds(owed.T, light, links)


def _worse(
    owed: Array, one: NDArray[np.int64], other: NDArray[np.int64], rate: float, links: EpsLinks
) -> bool:
    """Whether either way ends later over `one` than over `other`."""
    ends = zip(_ends(owed, one, rate, links), _ends(owed, other, rate, links), strict=True)
    return any(mine > its * (1 + 1e-9) for mine, its in ends)
