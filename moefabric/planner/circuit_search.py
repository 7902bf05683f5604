"""Tabu search for circuits with which every link of the EPS meets a deadline.

Bytes that circuits don't carry go over the EPS; those that a link can't carry by the deadline are
late. Each step exchanges the ends of two circuits, or of a circuit and a dark NIC, so that the
fewest bytes are late. If no exchange improves on the last step, the best one is made nevertheless,
and the circuits that it took away stay away for some steps (Glover, Tabu Search, ORSA Journal on
Computing 1(3), 1989). Steps are counted, not timed: equal arguments give equal circuits on every
machine.
"""

from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from moefabric.planner.arrays import Array, Ints
from moefabric.planner.waterfill import EpsLinks, Rates, pair_rates

_TENURE: Final = 5
"""Steps for which a removed circuit stays away; up to four more, as equal periods may cycle."""
_PAIRS: Final = 64
"""Pairs that may get a circuit in a step, those with the greatest gain."""
_ROUNDING: Final = 1e-9
"""Bytes late, relative to the demand, that count as a rounding error."""

_NEVER_LATE: Final = np.array([-np.inf])
"""Late bytes of the server that stands for dark NICs."""

Exchanges = NDArray[np.intp]
"""Servers i, j, x, y of each exchange [4, exchange].

Circuits (i, x) and (j, y) become circuits (i, j) and (x, y).
"""


@dataclass(frozen=True)
class CircuitSearch:
    """The search for circuits that carry a demand.

    Attributes:
        owed: Bytes [from, to], diagonal empty, and an empty row and column for dark NICs.
        ports: Optical NICs of each server.
        rates: Bytes per second of a pair's circuit [server, server].
        links: Links of the EPS.
        pod: Pod of each server; any for dark NICs, which owe nothing.
        visited: Deadlines and circuits of earlier steps; a run that repeats one ends.
    """

    owed: Array
    ports: Ints
    rates: Array
    links: EpsLinks
    pod: NDArray[np.intp]
    visited: set[tuple[float, bytes]] = field(default_factory=set)

    @classmethod
    def of(cls, owed: Array, ports: Ints, rates: Rates, links: EpsLinks) -> Self:
        """Return the search for a demand [from, to] with an empty diagonal."""
        padded = np.pad(pair_rates(rates, len(ports)), (0, 1))
        return cls(np.pad(owed, (0, 1)), ports, padded, links, np.append(links.pod, 0))

    def run(self, counts: Ints, deadline_s: float, steps: int) -> Ints:
        """Search until no byte is late, or until circuits repeat.

        Args:
            counts: Circuits at the start [server, server].
            steps: Steps after which the search gives up.

        Returns:
            The circuits with the fewest bytes late [server, server].
        """
        lit = self._with_dark_nics(counts)
        barred_until = np.zeros(lit.shape, dtype=np.int64)
        in_time = _ROUNDING * float(self.owed.sum())
        least, best = np.inf, lit
        for step in range(steps + 1):
            state, key = _Lateness.of(self, lit, deadline_s), (deadline_s, lit.tobytes())
            if state.late_bytes < least:
                least, best = state.late_bytes, lit.copy()
            if least <= in_time or key in self.visited or step == steps:
                break
            self.visited.add(key)
            exchanges = _exchanges(state.gains(), lit)
            if not exchanges.size:
                break
            after = state.late_bytes_after(exchanges)
            i, j, x, y = exchanges
            barred = (barred_until[i, j] > step) | (barred_until[x, y] > step)
            after[barred & (after >= least)] += self.owed.sum()
            i, j, x, y = exchanges[:, after.argmin()].tolist()
            for a, b, change in ((i, x, -1), (j, y, -1), (i, j, 1), (x, y, 1)):
                lit[a, b] = lit[b, a] = lit[a, b] + change
            for a, b in ((i, x), (j, y)):
                barred_until[a, b] = barred_until[b, a] = step + _TENURE + 7 * step % 5
            barred_until[-1, -1] = 0
        return best[:-1, :-1]

    def _with_dark_nics(self, counts: Ints) -> Ints:
        """Return circuits with an additional server, on which the dark NICs of all others end.

        Every change of circuits is then an exchange that leaves no server with too many.
        """
        lit = np.pad(counts, (0, 1))
        lit[-1, :-1] = lit[:-1, -1] = self.ports - counts.sum(axis=1)
        return lit


def _exchanges(gains: Array, lit: Ints) -> Exchanges:
    """Return the exchanges that give a circuit to the pairs with the greatest gains."""
    i, j = np.nonzero(gains)
    if len(i) > _PAIRS:
        chosen = np.argsort(-gains[i, j], kind="stable")[:_PAIRS]
        i, j = i[chosen], j[chosen]
    entry, x = np.nonzero(lit[i])
    i, j = i[entry], j[entry]
    entry, y = np.nonzero(lit[j])
    i, j, x = i[entry], j[entry], x[entry]
    # Of the four servers, only the one on which dark NICs end may occur twice.
    possible = (x != j) & (y != i) & ((x != y) | (x == len(lit) - 1))
    return np.array([i, j, x, y])[:, possible]


@dataclass(frozen=True)
class _Lateness:
    """The bytes on each link of the EPS that exceed the bytes that it carries by a deadline.

    Attributes:
        late_bytes: Bytes that are late, counted on each link.
        more: Bytes that one more circuit of a pair would carry [from, to].
        fewer: Bytes that one fewer circuit would leave to the EPS in addition [from, to].
        sending: Excess of each server's sending NICs over their budget; negative if they have room.
        receiving: Excess of each server's receiving NICs.
        up: Excess of each pod's uplinks.
        down: Excess of each pod's downlinks.
        pod: Pod of each server.
    """

    late_bytes: float
    more: Array
    fewer: Array
    sending: Array
    receiving: Array
    up: Array
    down: Array
    pod: NDArray[np.intp]

    @classmethod
    def of(cls, search: CircuitSearch, lit: Ints, deadline_s: float) -> Self:
        owed, links, capacity = search.owed, search.links, search.rates * deadline_s
        excess = np.maximum(owed - capacity * lit, 0.0)
        n = len(owed) - 1
        late = links.loads(excess[:n, :n]) - links.budget * deadline_s
        pods = len(links.uplinks)
        return cls(
            float(np.maximum(late, 0.0).sum()),
            excess - np.maximum(owed - capacity * (lit + 1), 0.0),
            np.maximum(owed - capacity * np.maximum(lit - 1, 0), 0.0) - excess,
            np.concatenate([late[:n], _NEVER_LATE]),
            np.concatenate([late[n : 2 * n], _NEVER_LATE]),
            late[2 * n : 2 * n + pods],
            late[2 * n + pods :],
            search.pod,
        )

    def gains(self) -> Array:
        """Return the late bytes of each pair that an additional circuit would carry [from, to]."""
        out, into = np.maximum(self.sending, 0.0), np.maximum(self.receiving, 0.0)
        if len(self.up):
            up, down = self.up[self.pod], self.down[self.pod]
            crosses = self.pod[:, None] != self.pod
            out = np.maximum(out[:, None], np.where(crosses, up[:, None], 0.0))
            into = np.maximum(into[:, None], np.where(crosses, down[:, None], 0.0))
        else:
            out, into = out[:, None], into[:, None]
        return np.minimum(out, self.more) + np.minimum(into, self.more.T)

    def late_bytes_after(self, exchanges: Exchanges) -> Array:
        """Return the bytes that are late after each exchange."""
        lost, gained = exchanges[[2, 3, 0, 1]], exchanges[[1, 0, 3, 2]]
        result = np.full(exchanges.shape[1], self.late_bytes)
        for late, more, fewer in (
            (self.sending, self.more, self.fewer),
            (self.receiving, self.more.T, self.fewer.T),
        ):
            before = late[exchanges]
            after = before + fewer[exchanges, lost] - more[exchanges, gained]
            result += (np.maximum(after, 0.0) - np.maximum(before, 0.0)).sum(axis=0)
        if len(self.up):
            result += self._pods_after(exchanges)
        return result

    def _pods_after(self, exchanges: Exchanges) -> Array:
        """Return the bytes on uplinks and downlinks that each exchange makes late in addition."""
        i, j, x, y = exchanges
        number = np.arange(len(i))
        up = np.zeros((len(i), len(self.up)))
        down = np.zeros_like(up)
        for a, b, change in (
            (i, x, self.fewer),
            (j, y, self.fewer),
            (i, j, -self.more),
            (x, y, -self.more),
        ):
            for source, to in ((a, b), (b, a)):
                crossing = np.where(self.pod[source] != self.pod[to], change[source, to], 0.0)
                up[number, self.pod[source]] += crossing
                down[number, self.pod[to]] += crossing
        total: Array = np.zeros(len(i))
        for before, change in ((self.up, up), (self.down, down)):
            after = before + change
            total += (np.maximum(after, 0.0) - np.maximum(before, 0.0)).sum(axis=1)
        return total
