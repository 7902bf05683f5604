"""The transition of a layer pair: how the load of one layer's experts becomes the load of the next layer's.

load_l = P load_(l-1), where P[j, i] is the probability that a token of expert i goes to expert j of the next layer: between 0 and 1, columns summing to 1.
P is the least-squares fit to a window of recent iterations, later ones weighing more (paper, appendix B.1, solves the same with SLSQP).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_MOST = 20_000
"""Steps after which the best transition so far is returned; no trace of ours has needed a tenth of it."""


@dataclass(frozen=True)
class Fit:
    """A transition, [expert of the next layer, expert of this layer]; `loss` is at most `gap` above the least there is."""

    transition: Array
    loss: float
    gap: float
    steps: int


def weights(window: int, half_life: float) -> Array:
    """Of so many iterations, oldest first: an iteration counts half as much as one `half_life` later. They sum up to 1."""
    made: Array = 0.5 ** (np.arange(window)[::-1] / half_life)
    made /= made.sum()
    return made


def loss(transition: Array, before: Array, after: Array, weighed: Array) -> float:
    """Weighted squares of what the transition misses of `after` (loads of the next layer) from `before`, both [iteration, expert]."""
    missed = after - before @ transition.T
    return float((weighed * (missed**2).sum(axis=1)).sum())


def fitted(
    before: Array, after: Array, weighed: Array, *, tolerance: float = 1e-6, start: Array | None = None
) -> Fit:
    """The transition of least loss, to within `tolerance` of the loss of knowing nothing (all transitions even).

    Accelerated projected gradient (FISTA, restarted where it would rise): a step down the gradient, then every column back onto the simplex.
    Stops on a proof: a linear function below the loss is least at a corner of the simplices, and bounds how much less the loss can get. Where a
    window doesn't determine the transition, one of least loss nearest to where it started; `start` may be the last window's.
    """
    experts, loads = after.shape[1], before.shape[1]
    slope = _slope(before, after, weighed)
    even = np.full((experts, loads), 1 / experts)
    enough = tolerance * loss(even, before, after, weighed)
    step = 1 / max(float(np.linalg.norm(before * np.sqrt(weighed)[:, None], 2)) ** 2, 1e-300)
    here = ahead = even if start is None else start
    momentum, gap = 1.0, np.inf
    for number in range(1, _MOST + 1):
        down = slope(ahead)
        there = onto_simplex(ahead - step * down)
        if float((down * (there - here)).sum()) > 0:
            momentum = 1.0
        grown = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = there + (momentum - 1) / grown * (there - here)
        here, momentum = there, grown
        if number % 10 == 0:
            steep = 2 * slope(here)
            gap = float((steep * here).sum() - steep.min(axis=0).sum())
            if gap <= enough:
                return Fit(here, loss(here, before, after, weighed), gap, number)
    return Fit(here, loss(here, before, after, weighed), gap, _MOST)


def _slope(before: Array, after: Array, weighed: Array) -> Callable[[Array], Array]:
    """Half the loss's gradient at a transition."""
    weighty = before * weighed[:, None]
    if 2 * len(before) < before.shape[1]:
        # A large model has more experts than a window iterations: the way through the window is shorter than that through all pairs of experts.
        return lambda transition: (transition @ before.T - after.T) @ weighty
    gram, cross = weighty.T @ before, after.T @ weighty
    return lambda transition: transition @ gram - cross


def onto_simplex(columns: Array) -> Array:
    """Each column's nearest one whose entries are 0 or more and sum up to 1 (Held, Wolfe and Crowder, 1974)."""
    falling = -np.sort(-columns, axis=0)
    over = (np.cumsum(falling, axis=0) - 1) / np.arange(1, len(columns) + 1)[:, None]
    last = np.count_nonzero(falling > over, axis=0) - 1
    made: Array = np.maximum(columns - over[last, np.arange(columns.shape[1])], 0.0)
    return made
