"""The circuits with which a demand ends soonest, from a mixed-integer program."""

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from moefabric.planner.arrays import Array, Ints
from moefabric.planner.waterfill import EpsLinks, completion_s


def optimal_circuits(owed: Array, ports: Ints, rate: float, links: EpsLinks) -> Ints:
    """Return optimal circuits of each pair [server, server].

    Variables: circuits of each pair (whole), what each ordered pair sends over the EPS, and tau,
    how often a second the demand could be carried. The program maximises tau such that circuits
    and EPS carry tau times what each pair owes, no server has more circuits than NICs and no link
    of the EPS is over its budget. It is linear because time isn't a variable.
    """
    n, largest = len(owed), owed.max()
    pairs = [(i, j) for i in range(n) for j in range(i) if owed[i, j] + owed[j, i]]
    senders = [(i, j) for i in range(n) for j in range(n) if owed[i, j]]
    circuits, sent = len(pairs), len(senders)
    index = {pair: number for number, (i, j) in enumerate(pairs) for pair in ((i, j), (j, i))}
    due, nics = np.zeros((sent, circuits + sent + 1)), np.zeros((n, circuits + sent + 1))
    carried = np.zeros((len(links.budget), circuits + sent + 1))
    for number, pair in enumerate(senders):
        due[number, index[pair]] = due[number, circuits + number] = -1.0
        due[number, -1] = owed[pair] / largest
        alone = np.zeros_like(owed)
        alone[pair] = 1.0
        carried[:, circuits + number] = links.loads(alone)
    for number, pair in enumerate(pairs):
        nics[list(pair), number] = 1.0
    whole = np.concatenate([np.ones(circuits), np.zeros(sent + 1)])
    limits = np.concatenate([np.zeros(sent), ports, links.budget / rate])
    solution = milp(
        np.append(np.zeros(circuits + sent), -1.0),
        constraints=LinearConstraint(np.vstack([due, nics, carried]), -np.inf, limits),
        integrality=whole,
        bounds=Bounds(0.0, np.where(whole, ports.max(), np.inf)),
        options={"mip_rel_gap": 1e-4},
    )
    assert solution.success, solution.message
    counts = np.zeros((n, n), dtype=np.int64)
    for pair, lit in zip(pairs, np.rint(solution.x[:circuits]).astype(int), strict=True):
        counts[pair] = lit
    return counts + counts.T


def end_s(owed: Array, counts: Ints, rate: float, links: EpsLinks) -> float:
    """Return when a demand ends over circuits with the best split."""
    return completion_s(owed, rate * counts.astype(np.float64), links)
