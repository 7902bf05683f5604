"""Circuits and split chosen together: the ones with which everything ends soonest, never later than with Algorithm 1's circuits and spill."""

from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Self

import numpy as np
from numpy.typing import NDArray

from controller.planner import aimed, mixnet, nics, solver, static, water
from controller.planner.policy import Pair, counted, counts
from controller.planner.water import Array, EpsLinks, Places
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.flows import Split
from moefabric.topology import Fabric, Region

_GAIN = 5e-4
"""By how much an answer has to be better to be worth looking for."""
_WORTH_PROVING = 0.02
"""And by how much to be worth the mixed-integer program, which takes a hundred times as long."""
_DEADLINES = 3
_NODES = 1
"""Of the program's search tree: its root and the heuristics there have found the optimum of every demand tried, in the same steps on every machine."""
_PROVABLE = 12
"""Servers up to which the program takes less than a tenth of a second; for 24 it may take one."""
_HARDLY = 0.01
"""How much later light that is there may end than the best, and stay."""


@dataclass(frozen=True)
class _Program:
    """How many times a second (tau) the demand could be carried, as a mixed-integer program in units of one circuit's rate.

    Variables: circuits of each pair (whole), what each ordered pair sends by the EPS, tau. Greatest tau such that light and EPS carry tau times
    what each pair owes, no server has more circuits than NICs, and no link of the EPS more than its budget. Linear, since the time itself isn't in it.
    """

    owed: Array
    ports: NDArray[np.int64]
    links: EpsLinks

    def solved(self, tau_low: float, tau_high: float, until: float) -> NDArray[np.int64] | None:
        """Circuits of each pair [server, server] with `tau_low` or more; None where there are none, or none was found `until` then."""
        if perf_counter() > until or not solver.ready():
            return None
        from scipy.optimize import Bounds, LinearConstraint, milp

        n, pairs, senders = len(self.owed), *self._pairs()
        index = np.full((n, n), -1)
        index[pairs] = index[pairs[::-1]] = np.arange(len(pairs[0]))
        lit, sent = len(pairs[0]), len(senders[0])
        matrix, most = self._rows(index, pairs, senders)
        left_s = until - perf_counter()
        if left_s <= 0:
            return None
        done = milp(
            np.concatenate([np.zeros(lit + sent), [-1.0]]),
            constraints=LinearConstraint(matrix, -np.inf, most),
            integrality=np.concatenate([np.ones(lit), np.zeros(sent + 1)]),
            bounds=Bounds(
                np.concatenate([np.zeros(lit + sent), [tau_low]]),
                np.concatenate([np.full(lit, self.ports.max(initial=0)), np.full(sent, np.inf), [tau_high]]),
            ),
            options={"time_limit": left_s, "node_limit": _NODES, "mip_rel_gap": _GAIN},
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
    owed: Array, ports: NDArray[np.int64], rate: float, links: EpsLinks, budget_s: float, proof_s: float = 0.0
) -> NDArray[np.int64]:
    """Circuits of each pair [server, server]: Algorithm 1's, or better ones where such are found within the budget.

    `owed[from, to]` in bytes, diagonal empty; `ports[i]` optical NICs of a server; a circuit carries `rate` bytes a second each way. Better ones are no later for the transposed
    demand either: dispatch and combine are each other's transpose and share their light. The mixed-integer program is asked where both together might end
    `proof_s` sooner, and 2 %.
    """
    return _Search(owed, ports, rate, links).over(budget_s, proof_s).found


class _Search:
    """The best circuits that have been found, Algorithm 1's at first: when the demand and its transpose end over them."""

    def __init__(self, owed: Array, ports: NDArray[np.int64], rate: float, links: EpsLinks) -> None:
        self._owed, self._ports, self._rate, self._links = owed, ports, rate, links
        self.found = _matrix(mixnet.order(owed + owed.T, ports.tolist()), len(owed))
        self._both = self._ends(self.found)

    def over(self, budget_s: float, proof_s: float) -> Self:
        """Look for better ones: greedily for one deadline after the other, and then, where they are far above what is possible, by a mixed-integer program."""
        until = perf_counter() + budget_s
        if not self._owed.any():
            return self
        # Where demand is nearly even, Algorithm 1 may leave one server almost without light: uniform circuits are a better start.
        self.offer(_matrix(static.order(self._ports.tolist()), len(self._owed)))
        rest = self._owed, self._ports, self._rate, self._links.budget
        low = time = aimed.soonest(*rest, max(self._both), _GAIN)
        for number in range(_DEADLINES):
            if max(self._both) <= low * (1 + _GAIN) or low == inf or (number and perf_counter() > until):
                break
            ends = self.offer(aimed.circuits(*rest, time))
            time = (min(max(self._both), 4 * time) + (low if ends <= time * (1 + _GAIN) else time)) / 2
        doubtful = max(self._both) > low * (1 + _WORTH_PROVING) and sum(self._both) > 2 * low + proof_s
        if doubtful and len(self._owed) <= _PROVABLE:
            self._prove(low, until)
        return self

    def _prove(self, low: float, until: float) -> None:
        largest = float(self._owed.max())
        # In units of one circuit and of the largest debt, every number of the program is about 1.
        scaled = _Program(self._owed / largest, self._ports, self._links.scaled(1 / self._rate))
        unit = largest / self._rate
        proven = scaled.solved(unit / max(self._both) * (1 + _GAIN), unit / low, until)
        if proven is not None:
            self.offer(proven)

    def offer(self, lit: NDArray[np.int64]) -> float:
        """When these end; they are the best now if they end sooner one way and no later the other."""
        both = self._ends(lit)
        if both != self._both and not _later(both, self._both):
            self.found, self._both = lit, both
        return max(both)

    def as_good(self, lit: NDArray[np.int64], moving_s: float) -> bool:
        """Whether these are no worse than the best; or hardly, so that moving to the best takes longer than it gains in a layer's four all-to-alls."""
        ends = self._ends(lit)
        if max(ends) == inf or _later(ends, self._both, _HARDLY):
            return False
        return not _later(ends, self._both) or 2 * (sum(ends) - sum(self._both)) <= moving_s

    def _ends(self, lit: NDArray[np.int64]) -> tuple[float, float]:
        """When the demand and its transpose end over these circuits, with the best split."""
        light = self._rate * lit.astype(np.float64)
        there = water.seconds(self._owed, light, self._links)
        if self._links.mirrored:
            return there, there
        return there, water.seconds(self._owed.T, light, self._links)


@dataclass(frozen=True)
class Joint:
    """The best circuits that are found within `budget_s`, with the best split over them.

    Equal demand gets equal circuits, unless a machine is so slow that the budget cuts an answer short. Light that is there stays where it is as good, or ends up to a hundredth later and
    would be dark for longer than the better light gains. Looking for the very best circuits takes some
    `proof_s`: it is left out where dispatch and combine together can't gain as much.
    """

    name: str = "joint"
    moves: bool = True
    budget_s: float = 0.5
    proof_s: float = 0.03

    def circuits(self, fabric: Fabric, region: Region, demand: DemandMatrix, now: CircuitSet) -> CircuitSet:
        """The best circuits known; those that are lit where none are better."""
        if not fabric.leaves or not fabric.optical:
            return mixnet.MIXNET.circuits(fabric, region, demand, now)
        owed = water.off_diagonal(demand)
        # Posed the same way for dispatch and combine, so that both get the same answer.
        owed = min(owed, owed.T, key=lambda each: each.tolist())
        rate, links = water.circuit_rate(fabric), EpsLinks.of(fabric, region.servers)
        ports = np.array(nics.ports(fabric, region))
        sought = _Search(owed, ports, rate, links).over(self.budget_s, self.proof_s)
        lit = counted(region.servers, now)
        moving_ns = region.ocs.settle_ns + region.ocs.link_up_ns if region.ocs else 0
        moving_s = moving_ns / 1e9 / fabric.scale.dilation
        found = lit if sought.as_good(lit, moving_s) else sought.found
        return nics.circuits(fabric, region, tuple(tuple(map(int, row)) for row in found), now)

    def split(self, fabric: Fabric, demand: DemandMatrix, circuits: CircuitSet) -> Split:
        """By light what it carries until all ends, by the EPS the rest."""
        return water.parted(fabric, demand, circuits)


def _matrix(lit: list[Pair], servers: int) -> NDArray[np.int64]:
    return np.array(counts(servers, lit), dtype=np.int64).reshape(servers, servers)


def _later(one: tuple[float, float], other: tuple[float, float], hardly: float = 1e-9) -> bool:
    """Whether either way ends later with `one` than with `other`, by more than `hardly`."""
    return any(mine > its * (1 + hardly) for mine, its in zip(one, other, strict=True))
