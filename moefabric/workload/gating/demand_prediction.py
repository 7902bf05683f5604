"""Predicts each layer's gating before its gate has run.

The prediction of a layer uses all earlier iterations, and the earlier layers of its own iteration.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from moefabric.workload.gating.copilot import Array, Copilot, expand_load, expert_loads, top_k_hits

Tokens = Callable[[int, int, int], Array]
"""Returns the tokens [rank, expert] of an iteration, a layer and a region."""


@dataclass(frozen=True)
class GatingPrediction:
    """The prediction of one layer's gating, and its quality as a mean over regions.

    Attributes:
        tokens: Predicted tokens [rank, expert] of each region.
        k: Number of busiest experts that count: a quarter of all, at least one.
        hits: Part of the `k` busiest experts that was predicted.
        persistence_hits: Hits if the loads of the layer before are the prediction (for the first
            layer, its own loads an iteration ago).
        random_hits: Hits if random loads are the prediction.
    """

    tokens: tuple[Array, ...]
    k: int
    hits: float
    persistence_hits: float
    random_hits: float


class GatingPredictor:
    """Predicts the gating of a job, with a Copilot for each region."""

    def __init__(self, tokens: Tokens, layers: int, regions: int, first: int = 0) -> None:
        """Start without any history.

        Args:
            tokens: Returns the measured tokens.
            layers: Number of MoE layers.
            regions: Number of regions.
            first: Number of the first iteration; negative if some ran before iteration 0.
        """
        self._tokens, self._layers = tokens, layers
        self._copilots = [Copilot(layers) for _ in range(regions)]
        self._first = self._learnt = first
        self._predicted: dict[tuple[int, int], tuple[Array, ...]] = {}
        self._compared: dict[int, tuple[GatingPrediction | None, ...]] = {}

    def predictions(self, iteration: int) -> tuple[GatingPrediction | None, ...]:
        """Predict each layer of an iteration, and compare with the choices of its gates.

        Args:
            iteration: Number of the iteration.

        Returns:
            The prediction of each layer; None for all layers of the first iteration.

        Raises:
            ValueError: If later iterations have been learnt already.
        """
        if iteration not in self._compared:
            layers = range(self._layers)
            self._compared[iteration] = tuple(self._prediction(iteration, n) for n in layers)
        return self._compared[iteration]

    def predicted_tokens(self, iteration: int, layer: int) -> tuple[Array, ...] | None:
        """Predict a layer from all iterations before, and from the gates of the layer before.

        The first layer is predicted to be what it was an iteration ago.

        Args:
            iteration: Number of the iteration. Iterations are predicted in ascending order.
            layer: Number of the layer.

        Returns:
            Tokens [rank, expert] of each region; None in the first iteration.

        Raises:
            ValueError: If later iterations have been learnt already.
        """
        if iteration == self._first:
            return None
        if (iteration, layer) not in self._predicted:
            if iteration < self._learnt:
                learned = f"the predictor has learned {self._learnt} iterations"
                raise ValueError(f"iteration {iteration}: {learned}")
            while self._learnt < iteration:
                self._learn(self._learnt)
                self._learnt += 1
            regions = range(len(self._copilots))
            expected = tuple(self._expected_tokens(iteration, layer, r) for r in regions)
            self._predicted[iteration, layer] = expected
        return self._predicted[iteration, layer]

    def _learn(self, iteration: int) -> None:
        for region, copilot in enumerate(self._copilots):
            layers = range(self._layers)
            loads = [expert_loads(self._tokens(iteration, layer, region)) for layer in layers]
            copilot.learn(np.array(loads))

    def _expected_tokens(self, iteration: int, layer: int, region: int) -> Array:
        last = self._tokens(iteration - 1, layer, region)
        if not layer:
            return last
        before = expert_loads(self._tokens(iteration, layer - 1, region))
        load = self._copilots[region].next_load(layer - 1, before)
        assert load is not None
        rank_tokens = self._tokens(iteration, layer, region).sum(axis=1)
        return expand_load(load, rank_tokens, last)

    def _prediction(self, iteration: int, layer: int) -> GatingPrediction | None:
        predicted = self.predicted_tokens(iteration, layer)
        if predicted is None:
            return None
        experts = predicted[0].shape[1]
        k, hits, persistence_hits = max(1, experts // 4), [], []
        unchanged = (iteration, layer - 1) if layer else (iteration - 1, layer)
        for region, tokens in enumerate(predicted):
            measured = expert_loads(self._tokens(iteration, layer, region))
            before = expert_loads(self._tokens(*unchanged, region))
            hits.append(top_k_hits(expert_loads(tokens), measured, k))
            persistence_hits.append(top_k_hits(before, measured, k))
        return GatingPrediction(predicted, k, fmean(hits), fmean(persistence_hits), k / experts)
