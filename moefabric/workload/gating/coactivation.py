"""Co-activation: pairs of experts that tokens have in common."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric.workload.gating.token_routes import Experts

Pairs = NDArray[np.int64]
"""Tokens [expert, expert] that have both experts; 0 on the diagonal."""

_TOKENS: Final = 1 << 16
"""Tokens whose choices are in memory as a matrix [token, expert] at a time."""


def coactivation(routes: Experts, experts: int) -> Pairs:
    """Return the tokens that each pair of experts has in common.

    Args:
        routes: Experts [..., choice].
        experts: Number of experts.
    """
    rows = routes.reshape(-1, routes.shape[-1])
    pairs = np.zeros((experts, experts), dtype=np.int64)
    for start in range(0, len(rows), _TOKENS):
        part = rows[start : start + _TOKENS]
        chosen = np.zeros((len(part), experts))
        np.put_along_axis(chosen, part.astype(np.int64), 1.0, axis=1)
        pairs += np.rint(chosen.T @ chosen).astype(np.int64)
    np.fill_diagonal(pairs, 0)
    return pairs
