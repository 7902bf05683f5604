"""Circuits for a deadline, and a bound below which no circuits can meet a deadline.

Both consider the electrical NICs of each server: they must carry all bytes that circuits don't
carry by the deadline.
"""

from dataclasses import dataclass
from math import inf

import numpy as np

from moefabric.planner.arrays import Array, Ints
from moefabric.planner.waterfill import EpsLinks, Rates, pair_rates

_IN_TIME_WEIGHT = 1e-6
"""Weight of a byte that a circuit carries for a server that meets the deadline anyway."""
_HALVINGS = 20


def deadline_bound_s(
    owed: Array, ports: Ints, rates: Rates, links: EpsLinks, latest: float, tolerance: float
) -> float:
    """Return a time below which no circuits and no split can carry a demand.

    Each server is considered alone, as if all others had free NICs of its rate for it. A circuit
    carries bytes of one pair only, so that small demands between a server and many peers fill few
    circuits.

    Args:
        owed: Bytes [from, to], diagonal empty.
        ports: Optical NICs of each server.
        rates: Bytes per second of an optical NIC.
        latest: A time in which some circuits carry the demand; infinite if unknown.
        tolerance: Relative error at which the search ends.

    Returns:
        Seconds; infinite if a server owes bytes and has no NIC.
    """
    nic_rates = np.broadcast_to(rates, len(ports))
    light = ports * nic_rates
    pod_light = np.bincount(links.pod, light, len(links.uplinks))[: len(links.uplinks)]
    nics = np.concatenate([light, light, pod_light, pod_light]) + links.budget
    due = links.loads(owed)
    times = np.divide(due, nics, out=np.where(due > 0, inf, 0.0), where=nics > 0)
    low = float(times.max(initial=0.0))
    if low == inf or _all_in_time(owed, ports, nic_rates, links, low):
        return low
    high = max(low, min(latest, low * 2.0**_HALVINGS))
    for _ in range(2 * _HALVINGS):
        if high <= low * (1 + tolerance):
            break
        middle = (low + high) / 2
        if _all_in_time(owed, ports, nic_rates, links, middle):
            high = middle
        else:
            low = middle
    return low


def _all_in_time(owed: Array, ports: Ints, rates: Array, links: EpsLinks, time: float) -> bool:
    """Return whether each server alone, with any circuits, could move its bytes in time."""
    if not time:
        return not owed.any()
    capacity = np.tile(rates, 2) * time
    rows = np.concatenate([owed, owed.T])
    free = np.tile(ports, 2)
    full = np.floor(rows / capacity[:, None])
    filled = np.minimum(full.sum(axis=1), free)
    # After all pairs have the circuits that they fill, each further circuit carries the
    # remainder of one pair, the largest remainders first.
    at_most = min(int(ports.max()), len(owed))
    remainders = rows - full * capacity[:, None]
    if at_most < len(owed):
        dropped = len(owed) - at_most
        remainders = np.partition(remainders, dropped - 1, axis=1)[:, dropped:]
    gains = np.hstack([np.zeros((len(rows), 1)), -np.sort(-remainders, axis=1).cumsum(axis=1)])
    more = np.minimum(free - filled, at_most).astype(np.intp)
    light = filled * capacity + gains[np.arange(len(rows)), more]
    late = rows.sum(axis=1) - light - np.tile(links.nics, 2) * time
    return bool((late <= 1e-9 * rows.sum(axis=1)).all())


def deadline_circuits(owed: Array, ports: Ints, rates: Rates, links: EpsLinks, time: float) -> Ints:
    """Choose circuits so that as many bytes as possible arrive by a deadline.

    Circuits are chosen one after the other. Each goes to the pair for which it most reduces the
    bytes that the electrical NICs of its two servers would have left at the deadline, sending and
    receiving. Servers whose circuits have to be full come first. Once no server is late, each
    circuit goes to the pair for which it carries most.

    Args:
        owed: Bytes [from, to], diagonal empty.
        ports: Optical NICs of each server.
        rates: Bytes per second of an optical NIC.
        time: The deadline in seconds.

    Returns:
        Circuits of each pair [server, server], symmetric.
    """
    n, counts = len(owed), np.zeros(owed.shape, dtype=np.int64)
    uncarried = _Uncarried(
        capacity=pair_rates(rates, len(ports)) * time,
        owed=owed.copy(),
        free=ports.copy(),
        sending=owed.sum(axis=1) - links.nics * time,
        receiving=owed.sum(axis=0) - links.nics * time,
    )
    gain = uncarried.gains(np.arange(n)) if time else np.zeros((0, 0))
    while gain.size:
        i, j = divmod(int(gain.argmax()), n)
        if gain[i, j] <= 0.0:
            break
        for a, b in ((i, j), (j, i)):
            uncarried.carry(a, b)
            counts[a, b] += 1
        ends = np.array([i, j])
        gain[ends] = uncarried.gains(ends)
        gain[:, ends] = gain[ends].T
    return counts


@dataclass(eq=False)
class _Uncarried:
    """Bytes that the circuits chosen so far don't carry; its arrays change with each circuit.

    Attributes:
        capacity: Bytes [from, to] that a circuit carries by the deadline.
        owed: Bytes [from, to] that no circuit carries.
        free: Free optical NICs of each server.
        sending: Bytes that the electrical NICs of each server have left to send at the deadline;
            negative if they end earlier.
        receiving: Bytes that they have left to receive.
    """

    capacity: Array
    owed: Array
    free: Ints
    sending: Array
    receiving: Array

    def carry(self, src: int, dst: int) -> None:
        """Let a new circuit carry as many bytes from a server to another as it can."""
        carried = min(float(self.owed[src, dst]), float(self.capacity[src, dst]))
        self.owed[src, dst] -= carried
        self.sending[src] -= carried
        self.receiving[dst] -= carried
        self.free[src] -= 1

    def gains(self, servers: Ints) -> Array:
        """Return the gain of a circuit from each of these servers to each server.

        The gain is the late bytes that the circuit carries. They weigh more, the fuller the
        remaining circuits of the late server must be.
        """
        limit, nic_bytes = self.capacity[servers], self.capacity.diagonal()
        sent, received = (np.minimum(side[servers], limit) for side in (self.owed, self.owed.T))
        out, into = np.maximum(self.sending, 0.0), np.maximum(self.receiving, 0.0)
        most = np.maximum(self.free, 1) * nic_bytes
        total: Array = _IN_TIME_WEIGHT * (sent + received)
        total += np.minimum(out[servers, None], sent) * (out / most)[servers, None]
        total += np.minimum(into[servers, None], received) * (into / most)[servers, None]
        peer_gain = np.minimum(into, sent) * (into / most)
        total += peer_gain + np.minimum(out, received) * (out / most)
        total[:, self.free <= 0] = 0.0
        total[self.free[servers] <= 0] = 0.0
        return total
