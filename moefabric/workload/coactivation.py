"""Co-activation: pairs of experts that tokens have in common, and the copies that follow from them.

Occult (arXiv 2505.13345) calls the mean number of devices to which a token goes its communication
traffic, CT.
"""

from math import comb
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric.workload.token_routes import Experts

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


def structure_index(pairs: Pairs) -> float:
    """Return the part of the pairs that independent choices would have elsewhere, 0 to 1.

    It is the total variation distance between the pairs and those of experts that are as often
    chosen, but independently of each other.
    """
    degrees = pairs.sum(axis=1).astype(np.float64)
    expected = np.outer(degrees, degrees)
    np.fill_diagonal(expected, 0.0)
    for _ in range(50):  # iterative proportional fitting: without a diagonal, rows fall short
        factors = np.sqrt(degrees / np.maximum(expected.sum(axis=1), 1e-300))
        expected *= np.outer(factors, factors)
    return float(np.abs(pairs - expected).sum() / 2 / max(pairs.sum(), 1))


def copies_of_token(routes: Experts, device: NDArray[np.integer]) -> float:
    """Return the mean number of devices to which a token goes (CT).

    Args:
        routes: Experts [..., choice].
        device: Device [expert].
    """
    places = np.sort(device[routes], axis=-1)
    return float(1.0 + (np.diff(places, axis=-1) != 0).sum(axis=-1).mean())


def expected_copies(experts: int, top_k: int, devices: int) -> float:
    """Return the CT of a random balanced placement, whatever the routes are.

    A device is missed if all `top_k` experts of a token are among those of the others.
    """
    missed = comb(experts - experts // devices, top_k) / comb(experts, top_k)
    return devices * (1 - missed)
