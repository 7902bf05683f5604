"""The gating of a program that trains, known as far as its gates have run."""

import numpy as np
from numpy.typing import NDArray


class RecordedGating:
    """Tokens [rank, expert] of each layer of each iteration, recorded while a program trains.

    Args:
        ranks: Ranks of the EP group.
        experts: Experts of a layer.

    Attributes:
        layers: Tokens by iteration and layer.
    """

    def __init__(self, ranks: int, experts: int) -> None:
        self.layers: dict[tuple[int, int], NDArray[np.int64]] = {}
        self._even = np.ones((ranks, experts), np.int64)

    def record(self, iteration: int, layer: int, tokens: NDArray[np.int64]) -> None:
        """Keep the tokens [rank, expert] of a layer; those of an earlier attempt are replaced."""
        self.layers[iteration, layer] = tokens

    def knows(self, iteration: int, layer: int) -> bool:
        """Return whether the gate of a layer has run."""
        return (iteration, layer) in self.layers

    def tokens(
        self, iteration: int, layer: int, _region: int, _micro_batch: int = 0
    ) -> NDArray[np.int64]:
        """Return the tokens [rank, expert] of a layer; even ones if its gate hasn't run."""
        return self.layers.get((iteration, layer), self._even)

    def array(self, iterations: int, layers: int) -> NDArray[np.int64]:
        """Return the tokens [iteration, layer, rank, expert] of the first iterations."""
        places = ((iteration, layer) for iteration in range(iterations) for layer in range(layers))
        tokens = np.array([self.tokens(*place, 0) for place in places])
        return tokens.reshape(iterations, layers, *self._even.shape)
