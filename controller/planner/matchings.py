"""Matchings: which disjoint pairs of servers are worth most together."""

import numpy as np
from numpy.typing import NDArray

from controller.planner.policy import Pair

Array = NDArray[np.float64]


def heaviest(worth: Array) -> list[Pair]:
    """Disjoint pairs whose `worth[i, j]` (above the diagonal) is the most there is, in server order: Edmonds' problem.

    Solved exactly, as an integer program (HiGHS); pairs that are worth nothing are left out. 16 servers take about 10 ms, 128 half a second.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    rows, columns = np.nonzero(np.triu(worth, 1) > 0)
    pairs = len(rows)
    if not pairs:
        return []
    value = worth[rows, columns]
    ends = (np.concatenate([rows, columns]), np.tile(np.arange(pairs), 2))
    once = LinearConstraint(csr_array((np.ones(2 * pairs), ends), shape=(len(worth), pairs)), -np.inf, 1)
    done = milp(-value / value.max(), integrality=np.ones(pairs), bounds=Bounds(0, 1), constraints=once)
    chosen = done.x > 0.5
    return list(zip(rows[chosen].tolist(), columns[chosen].tolist(), strict=True))
