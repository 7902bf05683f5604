"""Circuits for a deadline: each goes to the pair in which it takes most off servers whose NICs to the EPS would be late; and which deadlines nobody meets."""

from math import inf

import numpy as np
from numpy.typing import NDArray

from controller.planner.water import Array

Ints = NDArray[np.int64]
_ASIDE = 1e-6
"""What a byte counts that light takes off a server which is in time anyway, to one that is late."""
_HALVINGS = 20


def soonest(owed: Array, ports: Ints, rate: float, budget: Array, latest: float, close: float) -> float:
    """No circuits and no split end sooner, to within `close` of it: each server for itself, as if all others had NICs for it.

    `owed[from, to]` bytes, diagonal empty; `ports[server]` circuits of `rate` bytes a second each way; `budget` bytes a second to the EPS of each server's sending,
    then receiving NICs. `latest` is when it is known to end, infinite where that is unknown. A circuit carries bytes of one pair alone, so that a server that many owe a little fills few.
    """
    nics = ports * rate + np.split(budget[: 2 * len(owed)], 2)
    due = np.array([owed.sum(axis=1), owed.sum(axis=0)])
    each = np.divide(due, nics, out=np.where(due > 0, inf, 0.0), where=nics > 0)
    low = float(each.max(initial=0.0))
    if low == inf or _in_time(owed, ports, rate, budget, low):
        return low
    high = max(low, min(latest, low * 2.0**_HALVINGS))
    for _ in range(2 * _HALVINGS):
        if high <= low * (1 + close):
            break
        middle = (low + high) / 2
        if _in_time(owed, ports, rate, budget, middle):
            high = middle
        else:
            low = middle
    return low


def _in_time(owed: Array, ports: Ints, rate: float, budget: Array, time: float) -> bool:
    """Whether every server, had it its choice of circuits, could send and receive all by then."""
    carried = rate * time
    if not carried:
        return not owed.any()
    each = np.concatenate([owed, owed.T])
    free = np.tile(ports, 2)
    whole = np.floor(each / carried)
    filled = np.minimum(whole.sum(axis=1), free)
    # Once all pairs have the circuits that they fill, one more carries what is left of a pair: the largest of these first.
    at_most = min(int(ports.max()), len(owed))
    rest = each - whole * carried
    if at_most < len(owed):
        rest = np.partition(rest, len(owed) - at_most - 1, axis=1)[:, len(owed) - at_most :]
    most = np.hstack([np.zeros((len(each), 1)), -np.sort(-rest, axis=1).cumsum(axis=1)])
    more = np.minimum(free - filled, at_most).astype(np.intp)
    light = filled * carried + most[np.arange(len(each)), more]
    late = each.sum(axis=1) - light - budget[: 2 * len(owed)] * time
    return bool((late <= 1e-9 * each.sum(axis=1)).all())


def circuits(owed: Array, ports: Ints, rate: float, budget: Array, time: float) -> Ints:
    """Circuits of each pair [server, server], with which as much as possible ends in time; arguments as of `soonest`.

    One after the other, each to the pair in which it takes most off what the two servers' NICs to the EPS would have left by then, sending and receiving;
    first to servers whose circuits have to be full. Then, where nobody is late any more, to the pair in which it carries most.
    """
    n, carried = len(owed), rate * time
    left, free, lit = owed.copy(), ports.copy(), np.zeros((len(owed), len(owed)), dtype=np.int64)
    sending, receiving = left.sum(axis=1) - budget[:n] * time, left.sum(axis=0) - budget[n : 2 * n] * time

    def gains(servers: Ints) -> Array:
        """What a circuit from each of these to each server takes off, worth the more the fuller the circuits must be that a late server has left."""
        there, back = np.minimum(left[servers], carried), np.minimum(left.T[servers], carried)
        out, into = np.maximum(sending, 0.0), np.maximum(receiving, 0.0)
        most = np.maximum(free, 1) * carried
        made: Array = _ASIDE * (there + back)
        made += np.minimum(out[servers, None], there) * (out / most)[servers, None]
        made += np.minimum(into[servers, None], back) * (into / most)[servers, None]
        made += np.minimum(into, there) * (into / most) + np.minimum(out, back) * (out / most)
        made[:, free <= 0] = 0.0
        made[free[servers] <= 0] = 0.0
        return made

    gain = gains(np.arange(n)) if carried else np.zeros((0, 0))
    while gain.size:
        i, j = divmod(int(gain.argmax()), n)
        if gain[i, j] <= 0.0:
            break
        for a, b in ((i, j), (j, i)):
            taken = min(float(left[a, b]), carried)
            left[a, b] -= taken
            sending[a] -= taken
            receiving[b] -= taken
            free[a] -= 1
            lit[a, b] += 1
        both = np.array([i, j])
        gain[both] = gains(both)
        gain[:, both] = gain[both].T
    return lit
