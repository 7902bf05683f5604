"""The demand for which the split of a layer's first all-to-all is computed.

The demand itself is known only after the gate, when the all-to-all could start.
"""

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from moefabric.core.demand import DemandMatrix

SplitDemandSource = Literal["known", "last", "recent", "predicted", "none"]
"""The source of the demand for which the split of a layer's first all-to-all is computed.

* `known` is the demand itself.
* `last` is that of the same layer an iteration ago.
* `recent` are those of the same layer in the last iterations: the split suits the worst of them.
* `predicted` is Copilot's prediction of the layer.
* `none` is that of a gate that chooses all experts alike.

In the first iteration without history, `last`, `recent` and `predicted` are as `none`.
"""
RECENT_ITERATIONS: Final = 8
"""Iterations that `recent` looks back; twice as many gain 2 % on the recorded traces."""


@dataclass(frozen=True)
class SplitDemand:
    """The demand for which the splits of first all-to-alls are computed.

    Attributes:
        source: Where the demand comes from.
        error: Part by which each pair's bytes are too high or too low, from 0 to 1.
    """

    source: SplitDemandSource = "known"
    error: float = 0.0

    @property
    def is_exact(self) -> bool:
        """True if splits are computed for the demand that is sent."""
        return self.source == "known" and not self.error

    def with_error(self, demand: DemandMatrix, seed: int, place: tuple[int, ...]) -> DemandMatrix:
        """Return a demand with each pair's bytes too high or too low by `error`, at random.

        Args:
            demand: Bytes between servers.
            seed: Seed of the random numbers.
            place: (iteration, layer, region, micro-batch, number of the demand); each has a random
                stream of its own.
        """
        if not self.error:
            return demand
        random = np.random.default_rng([seed, *place])
        signs = random.choice((-1.0, 1.0), demand.array.shape)
        return DemandMatrix(demand.servers, demand.array * (1 + self.error * signs))


KNOWN: Final = SplitDemand()
"""Splits are computed for the demand that is sent."""
