"""Weighted sums of experts' results: at a token's source, or at each server before that."""

from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from moefabric.api.workloads import LayerRoutes

_HIDDEN = 1024
"""Numbers of a result."""


@dataclass(frozen=True)
class ServerSums:
    """Sums that really ran, in 32 bits.

    Attributes:
        difference: Largest difference of the two results, relative to the largest value.
        time_ratios: Time of the sums at servers and source, relative to that of one sum.
    """

    difference: float
    time_ratios: tuple[float, ...]


def sum_at_servers(
    routes: LayerRoutes, server: NDArray[np.int64], tokens: int = 1024, repetitions: int = 7
) -> ServerSums:
    """Sum random results of the experts of a rank's tokens in both ways.

    Args:
        routes: Routes with scores.
        server: Server [expert].
        tokens: The first tokens, which are summed up.
        repetitions: How often both ways are timed.
    """
    assert routes.scores is not None
    experts, scores = routes.experts[0, :tokens], routes.scores[0, :tokens]
    order = np.argsort(server[experts], axis=-1, kind="stable")
    places = np.take_along_axis(server[experts], order, axis=-1)
    weights = np.take_along_axis(scores, order, axis=-1).astype(np.float32)
    results = np.random.default_rng(1).normal(size=(weights.size, _HIDDEN)).astype(np.float32)
    weighted = results * weights.reshape(-1, 1)
    is_first = np.diff(places, axis=-1, prepend=-1) != 0
    of_token = np.arange(0, weights.size, experts.shape[-1])
    of_server = np.flatnonzero(is_first)
    of_copies = np.concatenate([[0], is_first.sum(axis=-1).cumsum()[:-1]])
    ratios, difference = [], 0.0
    for _ in range(repetitions):
        began = perf_counter()
        plain = np.add.reduceat(weighted, of_token)
        middle = perf_counter()
        returned = np.add.reduceat(weighted, of_server)
        total = np.add.reduceat(returned, of_copies)
        ratios.append((perf_counter() - middle) / (middle - began))
        difference = float(np.abs(total - plain).max() / np.abs(plain).max())
    return ServerSums(difference, tuple(ratios))
