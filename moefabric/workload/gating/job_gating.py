"""The gating of a job: the tokens of its ranks in any iteration, layer, region and micro-batch."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from moefabric.workload.gating.generator import GatingGenerator
from moefabric.workload.gating.token_routes import LayerRoutes, Pairs, TokenRoutes, coactivation
from moefabric.workload.gating.traces import Counts, add_noise


class RecordedGating:
    """Tokens [rank, expert] of each layer of each iteration, recorded while a program trains.

    Args:
        ranks: Ranks of the EP group.
        experts: Experts of a layer.

    Attributes:
        layers: Tokens by iteration and layer.
    """

    def __init__(self, ranks: int, experts: int) -> None:
        self.layers: dict[tuple[int, int], Counts] = {}
        self._even = np.ones((ranks, experts), np.int64)

    def record(self, iteration: int, layer: int, tokens: Counts) -> None:
        """Keep the tokens [rank, expert] of a layer; those of an earlier attempt are replaced."""
        self.layers[iteration, layer] = tokens

    def knows(self, iteration: int, layer: int) -> bool:
        """Return whether the gate of a layer has run."""
        return (iteration, layer) in self.layers

    def tokens(self, iteration: int, layer: int, _region: int, _micro_batch: int = 0) -> Counts:
        """Return the tokens [rank, expert] of a layer; even ones if its gate hasn't run."""
        return self.layers.get((iteration, layer), self._even)

    def array(self, iterations: int, layers: int) -> Counts:
        """Return the tokens [iteration, layer, rank, expert] of the first iterations."""
        places = ((iteration, layer) for iteration in range(iterations) for layer in range(layers))
        tokens = np.array([self.tokens(*place, 0) for place in places])
        return tokens.reshape(iterations, layers, *self._even.shape)


@dataclass(frozen=True)
class JobGating:
    """The gating of a job, in the order of the experts' numbers.

    Iterations before the job's first one have negative numbers. They are the history, from which
    demand is predicted and experts are placed.

    Attributes:
        source: Tokens [iteration, layer, rank, expert]; shorter traces repeat. Or a generator, or
            the gating of a program that trains.
        label: Its name in reports.
        noise: Standard deviation by which regions, layers and iterations differ from the tokens.
        seed: Seed of the noise.
        history: Tokens [iteration, layer, rank, expert] of the history; the number of its
            iterations, if a generator makes them.
        routes: Routes of the tokens that `history` and `source` count; None if they are unknown.
    """

    source: Counts | GatingGenerator | RecordedGating
    label: str
    noise: float = 0.0
    seed: int = 1
    history: Counts | int | None = None
    routes: TokenRoutes | None = None

    @property
    def first(self) -> int:
        """The number of the first iteration whose gating is known: that of the history's."""
        if self.history is None or isinstance(self.history, int):
            return -(self.history or 0)
        return -len(self.history)

    def tokens(self, iteration: int, layer: int, region: int, micro_batch: int = 0) -> Counts:
        """Return the tokens [rank, expert number] of a layer; micro-batches differ by noise."""
        if not isinstance(self.source, np.ndarray):
            return self.source.tokens(iteration - self.first, layer, region, micro_batch)
        recorded = self.source
        if iteration < 0 and isinstance(self.history, np.ndarray):
            recorded = self.history
        iterations, layers = recorded.shape[:2]
        matrix = recorded[iteration % iterations, layer % layers]
        # Numbers of a seed are at least 0; those of the history come last.
        step = iteration % 2**32
        place = (step, layer, region, *((micro_batch,) if micro_batch else ()))
        return add_noise(matrix, self.noise, self.seed, place)

    def layer_routes(self, iteration: int, layer: int) -> LayerRoutes:
        """Return the routes of a layer's tokens, if routes are known."""
        assert self.routes is not None, "copy rules other than the default need routes"
        history = -self.first
        if iteration >= 0:
            iteration %= len(self.routes.experts) - history
        return self.routes.layer(iteration + history, layer)

    def pairs(self, iterations: Iterable[int], layer: int, experts: int) -> Pairs | None:
        """Return the tokens that each pair of a layer's experts has in common, from routes."""
        if self.routes is None:
            return None
        known = [self.layer_routes(iteration, layer).experts for iteration in iterations]
        return coactivation(np.stack(known), experts)
