"""Noise: how gating differs from region to region, from layer to layer and from iteration to iteration."""

import numpy as np
from numpy.typing import NDArray


def noisy(gating: NDArray[np.int64], sigma: float, seed: int, place: tuple[int, ...]) -> NDArray[np.int64]:
    """A gating matrix [rank, expert] as another region, layer or iteration might have it; `sigma` 0 is the very same.

    Each expert's popularity, and then each rank's share of each expert, is multiplied by exp(N(0, sigma)). Rows keep their sums to within rounding:
    every token still has its top-k experts. `place` is (iteration, layer, region), and the micro-batch where it isn't the first; each has a stream of its own, so that more regions change
    nothing in the others. sigma 0.1 moves 5 to 7 % of a row's tokens to other experts, which is what two steps of a training run differ by.
    """
    if not sigma:
        return gating
    random = np.random.default_rng([seed, *place])
    popularity = np.exp(random.normal(0.0, sigma, gating.shape[1]))
    shares = gating * popularity * np.exp(random.normal(0.0, sigma, gating.shape))
    rows = shares.sum(axis=1, keepdims=True)
    made: NDArray[np.int64] = np.rint(
        shares / np.where(rows > 0, rows, 1.0) * gating.sum(axis=1, keepdims=True)
    ).astype(np.int64)
    return made
