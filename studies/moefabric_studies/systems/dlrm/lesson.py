"""Sizes, error bounds and result of a small DLRM's training."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moefabric_studies.arrays import Array
from moefabric_studies.systems.dlrm.clicks import bound_factor, table_bounds


@dataclass(frozen=True)
class Lesson:
    """Sizes of a training.

    Attributes:
        most: Largest number of categories of a table.
        dimension: Numbers of a vector.
        width: Width of the perceptrons.
        batch: Samples of all ranks.
        ranks: Ranks, each of which gets a slice of a table's vectors.
        iterations: Iterations.
        held_out: Batches by which the model is judged.
    """

    most: int
    dimension: int
    width: int
    batch: int
    ranks: int
    iterations: int
    held_out: int


@dataclass(frozen=True)
class Bounding:
    """Error bounds of a training.

    Attributes:
        classes: Bound of each class of tables; None for numbers as they are.
        first: The factor of the first iteration.
        early: Share of the iterations that is the early phase.
    """

    classes: Mapping[str, float] | None
    first: float = 2.0
    early: float = 0.5

    def of(self, iteration: int, iterations: int) -> NDArray[np.float64] | None:
        """Return the bounds of all tables in an iteration."""
        if self.classes is None:
            return None
        early = max(1, round(self.early * iterations))
        return table_bounds(self.classes) * bound_factor(iteration, early, self.first)


@dataclass(frozen=True)
class Trained:
    """A trained model.

    Attributes:
        accuracy: Share of held-out samples whose click is predicted.
        log_loss: Mean log loss of held-out samples.
        no_clicks: Share of held-out samples without a click.
        vectors: Vectors of the last training batch, shape [table, sample, dimension].
    """

    accuracy: float
    log_loss: float
    no_clicks: float
    vectors: Array[np.float32]
