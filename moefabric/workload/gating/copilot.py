"""MixNet-Copilot: predicts the expert loads of the next layer (arXiv 2501.03905, appendix B.1).

The load of a layer's experts becomes the load of the next layer's by load_l = P load_(l-1), where
P[j, i] is the probability that a token of expert i goes to expert j of the next layer: between 0
and 1, columns summing to 1. P is the least-squares fit to a window of recent iterations, later ones
weighing more. The paper solves the same problem with SLSQP.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_MOST_STEPS = 20_000
"""Steps after which the best transition so far is returned; no trace has needed a tenth of them."""
_TOLERANCE = 1e-3
"""Tolerance of Copilot's fits: closer fits predict no better."""
_MOST_ROUNDS = 200
_MARGIN_ERROR = 1e-9


@dataclass(frozen=True)
class TransitionFit:
    """The result of a fit.

    Attributes:
        transition: Probabilities [expert of the next layer, expert of this layer].
        loss: Its weighted loss.
        gap: Upper bound of the difference between the loss and the least possible loss.
    """

    transition: Array
    loss: float
    gap: float


def iteration_weights(window: int, half_life: float) -> Array:
    """Return the weights of a window of iterations, oldest first, summing to 1.

    Args:
        window: Number of iterations.
        half_life: Iterations after which a weight is half as large.
    """
    weights: Array = 0.5 ** (np.arange(window)[::-1] / half_life)
    weights /= weights.sum()
    return weights


def weighted_loss(transition: Array, before: Array, after: Array, weights: Array) -> float:
    """Return the weighted sum of squared errors of a transition.

    Args:
        transition: Probabilities [expert of the next layer, expert of this layer].
        before: Loads of this layer [iteration, expert].
        after: Loads of the next layer [iteration, expert].
        weights: Weight of each iteration.
    """
    errors = after - before @ transition.T
    return float((weights * (errors**2).sum(axis=1)).sum())


def fit_transition(
    before: Array,
    after: Array,
    weights: Array,
    *,
    tolerance: float = 1e-6,
    start: Array | None = None,
) -> TransitionFit:
    """Fit the transition of least loss.

    The solver is the accelerated projected gradient method (FISTA, restarted where the loss would
    rise). Each step follows the gradient downwards and projects every column onto the simplex. The
    solver stops when the Frank-Wolfe gap is small: the loss's tangent, which is least at a corner
    of the simplices, bounds how much smaller the loss can get. If a window doesn't determine the
    transition, the result is one of least loss near the start.

    Args:
        before: Loads of this layer [iteration, expert].
        after: Loads of the next layer [iteration, expert].
        weights: Weight of each iteration.
        tolerance: Gap at which to stop, relative to the loss of the uniform transition.
        start: Where to start, such as the last window's transition; the uniform one if not given.

    Returns:
        The fit.
    """
    experts, loads = after.shape[1], before.shape[1]
    half_gradient = _half_gradient(before, after, weights)
    uniform = np.full((experts, loads), 1 / experts)
    target_gap = tolerance * weighted_loss(uniform, before, after, weights)
    step = 1 / max(float(np.linalg.norm(before * np.sqrt(weights)[:, None], 2)) ** 2, 1e-300)
    current = ahead = uniform if start is None else start
    momentum, gap = 1.0, np.inf
    for number in range(1, _MOST_STEPS + 1):
        down = half_gradient(ahead)
        following = project_onto_simplex(ahead - step * down)
        if float((down * (following - current)).sum()) > 0:
            momentum = 1.0
        grown = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = following + (momentum - 1) / grown * (following - current)
        current, momentum = following, grown
        if number % 10 == 0:
            gradient = 2 * half_gradient(current)
            gap = float((gradient * current).sum() - gradient.min(axis=0).sum())
            if gap <= target_gap:
                break
    return TransitionFit(current, weighted_loss(current, before, after, weights), gap)


def _half_gradient(before: Array, after: Array, weights: Array) -> Callable[[Array], Array]:
    """Return half the gradient of the loss, as a function of the transition."""
    weighted = before * weights[:, None]
    if 2 * len(before) < before.shape[1]:
        # A large model has more experts than a window has iterations: products with the window
        # are cheaper than products with a matrix of all pairs of experts.
        return lambda transition: (transition @ before.T - after.T) @ weighted
    gram, cross = weighted.T @ before, after.T @ weighted
    return lambda transition: transition @ gram - cross


def project_onto_simplex(columns: Array) -> Array:
    """Return the nearest column to each whose entries are at least 0 and sum to 1.

    The method is that of Held, Wolfe and Crowder (1974).
    """
    descending = -np.sort(-columns, axis=0)
    over = (np.cumsum(descending, axis=0) - 1) / np.arange(1, len(columns) + 1)[:, None]
    last = np.count_nonzero(descending > over, axis=0) - 1
    projected: Array = np.maximum(columns - over[last, np.arange(columns.shape[1])], 0.0)
    return projected


WINDOW: Final = 32
"""Iterations to which a transition is fitted."""
HALF_LIFE: Final = 4.0
"""Iterations after which an iteration counts half.

The paper gives neither size. Of windows of 16 to 64 iterations, these sizes predict best on the
first half of the training trace in `examples/data`.
"""


class Copilot:
    """The transitions of all pairs of neighbouring layers, fitted anew after each iteration."""

    def __init__(self, layers: int, window: int = WINDOW, half_life: float = HALF_LIFE) -> None:
        """Start without any history.

        Args:
            layers: Number of MoE layers.
            window: Iterations that are fitted.
            half_life: Iterations after which an iteration counts half.
        """
        self._history, self._half_life = deque[Array](maxlen=window), half_life
        self._transitions: list[Array | None] = [None] * (layers - 1)

    def learn(self, loads: Array) -> None:
        """Add the loads of a completed iteration.

        Args:
            loads: Loads [layer, expert]; those of each layer sum to 1.
        """
        self._history.append(loads)
        past = np.array(self._history)
        weights = iteration_weights(len(past), self._half_life)
        for pair, start in enumerate(self._transitions):
            before, after = past[:, pair], past[:, pair + 1]
            fit = fit_transition(before, after, weights, tolerance=_TOLERANCE, start=start)
            self._transitions[pair] = fit.transition

    def next_load(self, layer: int, load: Array) -> Array | None:
        """Predict the load of the next layer.

        Args:
            layer: The layer whose load is known.
            load: Its load [expert].

        Returns:
            The load [expert] of the layer after it; None before the first iteration is over.
        """
        transition = self._transitions[layer]
        return None if transition is None else transition @ load


def expert_loads(tokens: Array) -> Array:
    """Return the loads [..., expert], summing to 1, of token counts [..., rank, expert]."""
    sums: Array = tokens.sum(axis=-2)
    loads: Array = sums / sums.sum(axis=-1, keepdims=True)
    return loads


def top_k_hits(predicted: Array, measured: Array, k: int) -> float:
    """Return the part of the `k` most loaded experts that is among the `k` predicted ones."""
    busiest = [set(np.argsort(-load)[:k].tolist()) for load in (predicted, measured)]
    return len(busiest[0] & busiest[1]) / k


def expand_load(load: Array, rank_tokens: Array, last: Array | None = None) -> Array:
    """Expand a predicted load to the tokens that each rank sends each expert.

    The paper predicts loads only, but circuits need a matrix. The result is the last matrix of the
    same layer, scaled so that its columns have the predicted loads and its rows the tokens that
    each rank has: of all matrices with these sums, the one that differs least from it in relative
    entropy (Sinkhorn and Knopp's iteration). Without a last matrix, all ranks are assumed alike.

    Args:
        load: Predicted load [expert].
        rank_tokens: Tokens that each rank has.
        last: The last tokens [rank, expert] of the layer.

    Returns:
        Tokens [rank, expert].
    """
    total = rank_tokens.sum()
    expert_tokens = load / load.sum() * total
    tokens: Array = np.outer(rank_tokens, expert_tokens) / total
    if last is None:
        return tokens
    # A pair that sent nothing may send something: a hundredth of what it would if ranks were alike.
    tokens = 0.99 * last * (total / max(float(last.sum()), 1.0)) + 0.01 * tokens
    for _ in range(_MOST_ROUNDS):
        tokens *= (expert_tokens / np.maximum(tokens.sum(axis=0), 1e-300))[None, :]
        sums = tokens.sum(axis=1)
        tokens *= (rank_tokens / np.maximum(sums, 1e-300))[:, None]
        if np.abs(sums - rank_tokens).max() <= _MARGIN_ERROR * rank_tokens.max():
            break
    return tokens


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
    """Predicts the gating of a job, with a Copilot for each region.

    The prediction of a layer uses all earlier iterations, and the earlier layers of its own
    iteration, before its own gate has run.
    """

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
