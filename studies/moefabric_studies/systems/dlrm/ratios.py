"""Compression ratios of the vectors of a trained model."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from moefabric_studies.codecs.block_codecs import HYBRID, block_codec
from moefabric_studies.codecs.error_bounded import Floats
from moefabric_studies.systems.dlrm.clicks import BOUNDS, table_bounds

GLOBAL_BOUND = 0.02
"""One bound for all tables (the authors' logs)."""
TABLE_WISE: Mapping[str, float] = {"tight": 0.01, "normal": 0.04, "loose": 0.04}
"""Bounds that the authors' logs compare with it."""
FACTORS = (1.0, 2.0, 3.0, 4.0)
"""First factors of the early phase."""


def coded_bytes(vectors: Floats, codec: str, bounds: NDArray[np.float64], ranks: int) -> list[int]:
    """Return the bytes of each table's vectors, a slice for each rank.

    Args:
        vectors: Shape [table, sample, dimension].
        codec: Name of the codec.
        bounds: Bound of each table.
        ranks: Slices of a table.
    """
    return [
        sum(len(block_codec(codec, bound).encode(block)) for block in np.split(table, ranks))
        for table, bound in zip(vectors, bounds, strict=True)
    ]


class Ratios:
    """Ratios of plain to coded bytes of the vectors of all tables.

    Args:
        vectors: Shape [table, sample, dimension].
        ranks: Slices of a table.
    """

    def __init__(self, vectors: Floats, ranks: int) -> None:
        self._vectors, self._ranks = vectors, ranks

    def by_table(self, codec: str) -> list[float]:
        """Return the ratio of each table with the default bounds."""
        plain = self._vectors[0].nbytes
        return [plain / size for size in self._coded(codec, table_bounds())]

    def of_all(self, codec: str = HYBRID, bounds: NDArray[np.float64] | None = None) -> float:
        """Return the ratio of all tables together; the default bounds are those of the classes."""
        chosen = table_bounds() if bounds is None else bounds
        return self._vectors.nbytes / sum(self._coded(codec, chosen))

    def best_over_single(self) -> float:
        """Return the gain of choosing a stream for each block over the better single stream."""
        return self.of_all() / max(self.of_all("vector-lz"), self.of_all("ans"))

    def table_wise_over_global(self) -> float:
        """Return the gain of bounds by table over one bound for all tables."""
        equal = np.full(len(self._vectors), GLOBAL_BOUND)
        return self.of_all(bounds=table_bounds(TABLE_WISE)) / self.of_all(bounds=equal)

    def by_factor(self) -> list[float]:
        """Return the ratio at each of `FACTORS`."""
        return [self.of_all(bounds=factor * table_bounds(BOUNDS)) for factor in FACTORS]

    def _coded(self, codec: str, bounds: NDArray[np.float64]) -> list[int]:
        return coded_bytes(self._vectors, codec, bounds, self._ranks)


def least_step(ratios: Sequence[float]) -> float:
    """Return the least ratio of a value to the one before it."""
    return min(after / before for before, after in pairwise(ratios))
