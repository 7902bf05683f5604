"""Expansion: from a predicted load of each expert to the tokens that each rank sends it.

The paper predicts loads only. Circuits need a matrix; ours is the last one seen of the same layer, scaled so that its columns have the predicted loads
and its rows the tokens that each rank has: the matrix with these margins that differs least from it (in relative entropy; Sinkhorn and Knopp's
iteration). Where none was seen, ranks are taken to be alike.
"""

import numpy as np

from moefabric.copilot.transition import Array

_ROUNDS = 200
_CLOSE = 1e-9


def expanded(load: Array, rows: Array, last: Array | None = None) -> Array:
    """Tokens [rank, expert] whose rows sum up to `rows` and whose columns are in proportion to `load`."""
    columns = load / load.sum() * rows.sum()
    made: Array = np.outer(rows, columns) / rows.sum()
    if last is None:
        return made
    # A pair that sent nothing may send something: a hundredth of what it would if ranks were alike.
    made = 0.99 * last * (rows.sum() / max(float(last.sum()), 1.0)) + 0.01 * made
    for _ in range(_ROUNDS):
        made *= (columns / np.maximum(made.sum(axis=0), 1e-300))[None, :]
        sums = made.sum(axis=1)
        made *= (rows / np.maximum(sums, 1e-300))[:, None]
        if np.abs(sums - rows).max() <= _CLOSE * rows.max():
            break
    return made
