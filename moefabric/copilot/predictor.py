"""A predictor of expert loads: it sees each layer's load as it comes, and says the next one's before it does."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from moefabric.copilot.transition import Array, fitted, weights

_TOLERANCE = 1e-3
"""Of the fit: closer ones predict no better."""


@dataclass(frozen=True)
class Window:
    """How many iterations a transition is fitted to, and after how many an iteration counts half.

    The paper gives neither. These predicted best on the first half of the training trace in `examples/data`, of windows of 16 to 64.
    """

    iterations: int = 32
    half_life: float = 4.0


class Copilot:
    """Transitions of every pair of neighbouring layers, fitted anew after each iteration."""

    def __init__(self, layers: int, window: Window | None = None) -> None:
        self._window = window or Window()
        self._seen: deque[Array] = deque(maxlen=self._window.iterations)
        self._transitions: list[Array | None] = [None] * (layers - 1)

    def learn(self, loads: Array) -> None:
        """The loads [layer, expert] of an iteration that is over; every layer's sum up to 1."""
        self._seen.append(loads)
        past = np.array(self._seen)
        weighed = weights(len(past), self._window.half_life)
        for pair, start in enumerate(self._transitions):
            fit = fitted(past[:, pair], past[:, pair + 1], weighed, tolerance=_TOLERANCE, start=start)
            self._transitions[pair] = fit.transition

    def next_load(self, layer: int, load: Array) -> Array | None:
        """The load of the layer after `layer`, which has just been seen; None before the first iteration is over."""
        transition = self._transitions[layer]
        return None if transition is None else transition @ load


def normalised(tokens: Array) -> Array:
    """Loads [..., expert] that sum up to 1, of token counts [..., rank, expert]."""
    load: Array = tokens.sum(axis=-2)
    made: Array = load / load.sum(axis=-1, keepdims=True)
    return made


def top_k_hits(predicted: Array, seen: Array, k: int) -> float:
    """The part of the `k` most loaded experts that were predicted to be among them."""
    return len(set(np.argsort(-predicted)[:k].tolist()) & set(np.argsort(-seen)[:k].tolist())) / k
