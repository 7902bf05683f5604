"""Synthetic clicks with the shape of Criteo-Kaggle, and the error bounds of its 26 tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

DENSE: Final = 13
"""Numbers of a sample beside its categories."""
CARDINALITIES: Final = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Categories of each table of Criteo-Kaggle."""
TIGHT: Final = frozenset({2, 3, 9, 11, 15, 20, 23, 25})
LOOSE: Final = frozenset({8, 16, 19, 21, 22, 24})
"""Tables with a small and a large bound (the authors' scripts for Kaggle); the rest are normal."""
BOUNDS: Final[Mapping[str, float]] = MappingProxyType(
    {"tight": 0.01, "normal": 0.03, "loose": 0.05}
)
"""Errors relative to the range of a block (the authors' scripts)."""
_ZIPF: Final = 1.05
_LATENT: Final = 4

STEPS: Final = 10
"""Levels of the factor of the early phase (the authors' scripts)."""


def table_class(table: int) -> str:
    """Return the class of a table's bound: tight, normal or loose."""
    return "tight" if table in TIGHT else "loose" if table in LOOSE else "normal"


def table_bounds(bounds: Mapping[str, float] = BOUNDS) -> NDArray[np.float64]:
    """Return the bound of each table, given those of the classes."""
    return np.array([bounds[table_class(table)] for table in range(len(CARDINALITIES))])


def bound_factor(iteration: int, early: int, first: float = 2.0) -> float:
    """Return the factor of all bounds in an iteration (the authors' scripts).

    Args:
        iteration: The iteration, from 0.
        early: Iterations of the early phase, in which the factor falls in ten equal steps to 1.
        first: Factor of the first iteration.
    """
    if iteration >= early:
        return 1.0
    passed = int(iteration / early * STEPS) / STEPS
    return first - (first - 1.0) * passed


@dataclass(frozen=True)
class ClickBatch:
    """Samples.

    Attributes:
        dense: Numbers, shape [sample, DENSE].
        categories: Categories, shape [table, sample].
        clicks: 0 or 1, shape [sample].
    """

    dense: NDArray[np.float32]
    categories: NDArray[np.int64]
    clicks: NDArray[np.float32]


class Clicks:
    """Draws clicks from a planted model: an effect of each category, and pairs of categories.

    Categories follow Zipf's law with exponent 1.05.

    Args:
        most: Largest number of categories of a table.
        seed: Seed of the planted model and of all batches.
    """

    def __init__(self, most: int, seed: int) -> None:
        self.sizes = tuple(min(size, most) for size in CARDINALITIES)
        self._seed = seed
        random = np.random.default_rng([seed, 0])
        self._shares = [_zipf(size) for size in self.sizes]
        self._effects = [random.normal(0, 0.35, size) for size in self.sizes]
        self._latent = [random.normal(0, 0.3, (size, _LATENT)) for size in self.sizes]
        self._dense = random.normal(0, 0.2, DENSE)

    def batch(self, number: int, size: int) -> ClickBatch:
        """Return the batch with this number; equal numbers give equal batches."""
        random = np.random.default_rng([self._seed, 1, number])
        dense = random.normal(size=(size, DENSE)).astype(np.float32)
        categories = np.stack([np.searchsorted(s, random.random(size)) for s in self._shares])
        logits = dense @ self._dense - 1.4
        total: NDArray[Any] = np.zeros((size, _LATENT))
        squares: NDArray[Any] = np.zeros(size)
        for effects, latent, chosen in zip(self._effects, self._latent, categories, strict=True):
            logits += effects[chosen]
            total += latent[chosen]
            squares += (latent[chosen] ** 2).sum(axis=1)
        logits += 0.5 * ((total**2).sum(axis=1) - squares)  # all pairs, as factorization machines
        clicks = random.random(size) < 1 / (1 + np.exp(-logits))
        return ClickBatch(dense, categories, clicks.astype(np.float32))


def _zipf(size: int) -> NDArray[np.float64]:
    """Return the cumulative shares of categories in the order of their frequency."""
    weights = 1 / np.arange(1, size + 1) ** _ZIPF
    shares: NDArray[np.float64] = np.cumsum(weights) / weights.sum()
    shares[-1] = 1.0
    return shares
