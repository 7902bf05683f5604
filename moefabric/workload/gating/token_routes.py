"""Routes of tokens: the experts of each single token, which counts by expert don't tell."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Experts = NDArray[np.integer[Any]]
"""Numbers of experts [..., token, choice]; those of a token differ."""


@dataclass(frozen=True, eq=False)
class LayerRoutes:
    """Routes of one layer in one iteration.

    Attributes:
        experts: Experts [rank, token, choice].
        scores: Scores of the gate [rank, token, choice] in any unit; None if they are unknown.
    """

    experts: Experts
    scores: NDArray[Any] | None = None


@dataclass(frozen=True, eq=False)
class TokenRoutes:
    """The experts of single tokens.

    Attributes:
        experts: Experts [iteration, layer, source rank, token, choice].
        scores: Scores of the gate, in any unit and of the same shape; None if they are unknown.

    Raises:
        ValueError: If an array has another shape, is empty or negative, or a token has an expert
            twice.
    """

    experts: Experts
    scores: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        experts = self.experts
        if experts.ndim != 5 or not experts.size or not np.issubdtype(experts.dtype, np.integer):
            axes = "iterations x layers x ranks x tokens x choices"
            raise ValueError(f"{experts.dtype} of shape {experts.shape} is not {axes}")
        if experts.min() < 0:
            raise ValueError(f"expert {experts.min()} is below 0")
        ordered = np.sort(experts, axis=-1)
        if (ordered[..., 1:] == ordered[..., :-1]).any():
            raise ValueError("a token has an expert twice")
        if self.scores is not None and self.scores.shape != experts.shape:
            shapes = f"{self.scores.shape}, experts of shape {experts.shape}"
            raise ValueError(f"scores of shape {shapes}")

    @property
    def top_k(self) -> int:
        """Experts of a token."""
        return int(self.experts.shape[-1])

    def counts(self, experts: int = 0) -> NDArray[np.int64]:
        """Return tokens [iteration, layer, rank, expert].

        Args:
            experts: Number of experts; 0 for the largest number that a token has, and one.
        """
        experts = experts or int(self.experts.max()) + 1
        rows = self.experts.reshape(-1, self.experts.shape[3] * self.top_k)
        counted = [np.bincount(row, minlength=experts) for row in rows]
        counts: NDArray[np.int64] = np.array(counted, dtype=np.int64)
        return counts.reshape(*self.experts.shape[:3], experts)

    def layer(self, iteration: int, layer: int) -> LayerRoutes:
        """Return the routes of one layer in one iteration; layers repeat."""
        place = iteration, layer % self.experts.shape[1]
        return LayerRoutes(self.experts[place], None if self.scores is None else self.scores[place])

    def of_ranks(self, ranks: int) -> "TokenRoutes":
        """Return the same tokens in the same order, spread evenly over `ranks` ranks.

        Raises:
            ValueError: If the tokens of a layer don't fill the ranks evenly.
        """
        iterations, layers, known, tokens, choices = self.experts.shape
        if known * tokens % ranks:
            raise ValueError(f"{known * tokens} tokens of a layer don't fill {ranks} ranks evenly")
        shape = iterations, layers, ranks, known * tokens // ranks, choices
        return self._changed(lambda array: array.reshape(shape))

    def steps(self, first: int, stride: int = 1, first_layer: int = 0) -> "TokenRoutes":
        """Return each `stride`-th iteration from `first` on, with layers from `first_layer` on."""
        return self._changed(lambda array: np.roll(array[first::stride], -first_layer, axis=1))

    def _changed(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> "TokenRoutes":
        scores = None if self.scores is None else change(self.scores)
        return TokenRoutes(change(self.experts), scores)


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
