"""Orders of an all-to-all in which a sender serves one receiver at a time.

The fabric is one switch, and every server has one port of equal rate. Aurora (arXiv 2410.17043,
theorem 4.2) shows that an all-to-all then needs at least the time of its busiest port's bytes, and
reaches it if no receiver is ever contended.

Orders with synchronous phases are `Aurora` and `AuroraGreedy`. In the others, each sender works
through a list of its own and waits for nobody: `ShortestFirst`, `RandomOrder` and `RingShift`.
Their phases are cut where a transfer ends, with rates that are max-min fair in between.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric.api.networks import max_min_rates
from moefabric.api.workloads import Bytes

SHORTEST_PHASE: Final = 0.01
"""Part of the busiest port's bytes below which phases are joined with their neighbours."""
_ROUNDING: Final = 1e-12


def port_bytes(demand: Bytes) -> float:
    """Return the bytes of the busiest port, sent or received: the bound of theorem 4.2."""
    return float(max(demand.sum(axis=0).max(initial=0.0), demand.sum(axis=1).max(initial=0.0)))


def joined_short_phases(phases: Iterator[Bytes], shortest: float) -> Sequence[Bytes]:
    """Join successive phases until each takes its busiest port at least `shortest` bytes.

    The joined phase takes no longer than its parts one after the other.
    """
    joined: list[Bytes] = []
    for phase in phases:
        if joined and port_bytes(joined[-1]) < shortest:
            joined[-1] = joined[-1] + phase
        else:
            joined.append(phase)
    if len(joined) > 1 and port_bytes(joined[-1]) < shortest:
        joined[-2:] = [joined[-2] + joined[-1]]
    return joined


@dataclass(frozen=True)
class _Order(ABC):
    """Base of all orders.

    Attributes:
        barrier_s: Model seconds from the end of a phase to the start of the next one.
        solve_s: Model seconds that computing the phases takes.
        shortest: Part of the busiest port's bytes below which phases are joined.
    """

    barrier_s: float = 0.0
    solve_s: float = 0.0
    shortest: float = SHORTEST_PHASE
    name: str = ""

    def phases(self, demand: Bytes) -> Sequence[Bytes]:
        """Return the phases; short ones are joined."""
        return joined_short_phases(self.parts(demand), self.shortest * port_bytes(demand))

    @abstractmethod
    def parts(self, demand: Bytes) -> Iterator[Bytes]:
        """Return the phases before short ones are joined."""


@dataclass(frozen=True)
class Aurora(_Order):
    """Permutations of senders and receivers that together take the least possible time.

    The demand is padded until every port has the bytes of the busiest one (Aurora, section 4).
    The padded matrix is a sum of weighted permutations (Birkhoff and von Neumann), each of which is
    a phase. Aurora's own second step sends to distinct receivers in an order that isn't proved to
    exist; this decomposition always does.
    """

    name: str = "aurora"

    def parts(self, demand: Bytes) -> Iterator[Bytes]:
        """Return the permutations, those of most bytes first."""
        return iter(sorted(birkhoff(demand), key=port_bytes, reverse=True))


@dataclass(frozen=True)
class AuroraGreedy(_Order):
    """Whole transfers, each as soon as both of its ports are idle: Aurora's algorithm 1.

    The ports with the most bytes left come first. A transfer isn't interrupted; phases are cut
    where one ends, and the next phase starts after a barrier.
    """

    name: str = "aurora-greedy"

    def parts(self, demand: Bytes) -> Iterator[Bytes]:
        """Return the intervals between two ends of transfers."""
        return _cut_where_transfers_end(demand, _uncontended)


class _SenderLists(_Order):
    """Base of the orders in which each sender has a list and waits for nobody."""

    @abstractmethod
    def receivers(self, demand: Bytes) -> NDArray[np.int64]:
        """Return each sender's receivers in their order [sender, place]."""

    def parts(self, demand: Bytes) -> Iterator[Bytes]:
        """Return the intervals between two ends of transfers."""
        return _cut_where_transfers_end(demand, _heads(self.receivers(demand)))


@dataclass(frozen=True)
class ShortestFirst(_SenderLists):
    """Each sender serves its receivers in the order of their bytes, the fewest first (SJF)."""

    name: str = "sjf"

    def receivers(self, demand: Bytes) -> NDArray[np.int64]:
        """Return receivers by their bytes."""
        return np.argsort(demand, axis=1, kind="stable")


@dataclass(frozen=True)
class RandomOrder(_SenderLists):
    """Each sender serves its receivers in random order (RCS)."""

    name: str = "rcs"
    seed: int = 1

    def receivers(self, demand: Bytes) -> NDArray[np.int64]:
        """Return receivers in random order."""
        rng, n = np.random.default_rng(self.seed), len(demand)
        return np.array([rng.permutation(n) for _ in range(n)])


@dataclass(frozen=True)
class RingShift(_SenderLists):
    """Server i sends to i + 1, then to i + 2, and so on, as pairwise all-to-alls do."""

    name: str = "ring-shift"

    def receivers(self, demand: Bytes) -> NDArray[np.int64]:
        """Return receivers by their distance on the ring."""
        places = np.arange(len(demand))
        return (places[:, None] + places[None, :]) % len(demand)


def birkhoff(demand: Bytes) -> Iterator[Bytes]:
    """Yield permutations whose sum is the demand, and whose largest cells add up to the bound.

    Each permutation is the one with the greatest sum of logarithms of bytes, from which the least
    of its cells is taken. At least one cell of the padded matrix becomes zero each time.
    """
    from scipy.optimize import linear_sum_assignment

    left, padded = demand.copy(), padded_demand(demand)
    negligible = _ROUNDING * max(1.0, port_bytes(demand))
    while left.any():
        cells = np.where(padded > negligible, padded, 0.0)
        weights = np.log(cells, out=np.full(cells.shape, -1e9), where=cells > 0)
        rows, columns = linear_sum_assignment(weights, maximize=True)
        step = float(padded[rows, columns].min())
        if step <= negligible:  # what is left is rounding error
            yield left
            return
        phase = np.zeros_like(left)
        phase[rows, columns] = np.minimum(left[rows, columns], step)
        padded[rows, columns] -= step
        ends = left[rows, columns] - step <= negligible
        phase[rows[ends], columns[ends]] = left[rows[ends], columns[ends]]
        left = left - phase
        if phase.any():
            yield phase


def padded_demand(demand: Bytes) -> Bytes:
    """Return the demand with bytes added until all rows and columns have equal sums."""
    padded, bound = demand.copy(), port_bytes(demand)
    rows, columns = bound - demand.sum(axis=1), bound - demand.sum(axis=0)
    row = column = 0
    while row < len(demand) and column < len(demand):
        added = max(0.0, min(rows[row], columns[column]))
        padded[row, column] += added
        rows[row] -= added
        columns[column] -= added
        is_full = rows[row] <= columns[column]
        row, column = row + is_full, column + (not is_full)
    return padded


Choice = Callable[[Bytes, list[tuple[int, int]]], list[tuple[int, int]]]
"""Returns the transfers under way, given the bytes left and the unfinished ones of before."""


def _heads(receivers: NDArray[np.int64]) -> Choice:
    """Return the choice of the next transfer of each sender's list."""

    def choose(left: Bytes, _current: list[tuple[int, int]]) -> list[tuple[int, int]]:
        waiting = [[r for r in own if left[s, r] > 0] for s, own in enumerate(receivers.tolist())]
        return [(sender, own[0]) for sender, own in enumerate(waiting) if own]

    return choose


def _uncontended(left: Bytes, current: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return transfers under way, and those with two idle ports, the busiest ports first."""
    sent, received = left.sum(axis=1), left.sum(axis=0)
    chosen = list(current)
    senders, receivers = {pair[0] for pair in chosen}, {pair[1] for pair in chosen}
    waiting = [(int(i), int(j)) for i, j in np.argwhere(left > 0)]
    waiting.sort(key=lambda p: (-max(sent[p[0]], received[p[1]]), -(sent[p[0]] + received[p[1]])))
    for i, j in waiting:
        if i not in senders and j not in receivers:
            chosen.append((i, j))
            senders.add(i)
            receivers.add(j)
    return chosen


def _cut_where_transfers_end(demand: Bytes, choose: Choice) -> Iterator[Bytes]:
    """Yield the bytes between two ends of transfers, at rates that are max-min fair."""
    left, current = demand.copy(), list[tuple[int, int]]()
    negligible, servers = _ROUNDING * max(1.0, port_bytes(demand)), len(demand)
    while left.any():
        current = choose(left, current)
        senders, receivers = np.array(current).T
        links = np.stack([senders, servers + receivers], axis=1)
        ones = np.ones(2 * servers)
        rates = max_min_rates(links, np.full(len(current), np.inf), ones)
        sizes = left[senders, receivers]
        sent = np.minimum(sizes, rates * float((sizes / rates).min()))
        sent = np.where(sizes - sent <= negligible, sizes, sent)
        phase = np.zeros_like(left)
        phase[senders, receivers] = sent
        left = left - phase
        current = [pair for pair in current if left[pair] > 0]
        yield phase
