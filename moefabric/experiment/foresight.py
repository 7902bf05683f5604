"""Foresight: what Copilot says of each layer's gating before its gate has run, having seen all iterations before, and the layers above it in this one."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from moefabric.copilot.expansion import expanded
from moefabric.copilot.predictor import Copilot, normalised, top_k_hits
from moefabric.copilot.transition import Array

Tokens = Callable[[int, int, int], Array]
"""The tokens [rank, expert] of an iteration, a layer and a region."""


@dataclass(frozen=True)
class Guess:
    """What is foreseen of one layer: tokens [rank, expert] of each region; and how that compares with what came, a mean over regions.

    `hits` is the part of the `k` busiest experts that were foreseen; `unchanged_hits` what it would be for the loads of the layer before (of the
    same layer an iteration ago, for the first one), and `random_hits` for any.
    """

    tokens: tuple[Array, ...]
    k: int
    hits: float
    unchanged_hits: float
    random_hits: float


class Foresight:
    """The Copilots of a job, one for each region. Asked for an iteration, they have learnt all those before it, and no later one."""

    def __init__(self, tokens: Tokens, layers: int, regions: int) -> None:
        self._tokens, self._layers, self._regions = tokens, layers, regions
        self._copilots = [Copilot(layers) for _ in range(regions)]
        self._learnt = 0
        self._said: dict[int, tuple[Guess | None, ...]] = {}

    def guesses(self, iteration: int) -> tuple[Guess | None, ...]:
        """What is foreseen of each layer of an iteration; None of all layers where nothing has been learnt.

        The first layer is taken to be what it was an iteration ago. ValueError for an iteration before one that was asked for.
        """
        if iteration not in self._said:
            if iteration < self._learnt:
                raise ValueError(f"iteration {iteration}: {self._learnt} are learnt already")
            while self._learnt < iteration:
                self._learn(self._learnt)
                self._learnt += 1
            self._said[iteration] = tuple(self._guess(iteration, number) for number in range(self._layers))
        return self._said[iteration]

    def _learn(self, iteration: int) -> None:
        for region, copilot in enumerate(self._copilots):
            copilot.learn(self._loads(iteration, region))

    def _loads(self, iteration: int, region: int) -> Array:
        return np.array(
            [normalised(self._tokens(iteration, number, region)) for number in range(self._layers)]
        )

    def _guess(self, iteration: int, number: int) -> Guess | None:
        if not iteration:
            return None
        made, hits, unchanged, k, experts = [], [], [], 1, 1
        for region, copilot in enumerate(self._copilots):
            came, last = self._tokens(iteration, number, region), self._tokens(iteration - 1, number, region)
            before = last if not number else self._tokens(iteration, number - 1, region)
            load = normalised(before) if not number else copilot.next_load(number - 1, normalised(before))
            assert load is not None
            made.append(last if not number else expanded(load, came.sum(axis=1), last))
            experts = len(load)
            k, seen = max(1, experts // 4), normalised(came)
            hits.append(top_k_hits(load, seen, k))
            unchanged.append(top_k_hits(normalised(before), seen, k))
        return Guess(tuple(made), k, fmean(hits), fmean(unchanged), k / experts)
