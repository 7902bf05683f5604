"""Random gating with the statistics of recorded gating: a Dirichlet-multinomial model with drift.

Experts of a layer differ in popularity, layers are independent, sources (ranks) may deviate from
their layer, popularity may drift from iteration to iteration, and tokens of a sequence choose
alike, so that counts vary more than independent choices would:

    score[t, l, e]   normal; a constant part and an AR(1) process over iterations t
    p[t, l, e]       popularity: log-normal, Zipf or recorded loads, in the order of the scores
    p[t, l, r, e]    Dirichlet(concentration x E x p[l]) for each source r, moved by the drift
    q[t, l, r, e]    Dirichlet about p[t, l, r] for each draw: overdispersion
    tokens           top_k distinct experts for each token, expert e with probability top_k x q[e]

Numbers are independent streams of a seed, one for each layer, source and draw: more layers, ranks
or iterations leave the others as they are.
"""

import math
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import numpy as np
from annotated_types import Gt, Interval

from moefabric.workload.gating.traces import Counts, FloatArray, GatingTrace

Popularity = Literal["log-normal", "zipf", "recorded"]
"""Distribution of the popularity of a layer's experts.

* `log-normal`: the logarithm is normal with the standard deviation `skew`.
* `zipf`: the n-th expert has n^-skew.
* `recorded`: the quantiles of `loads`, to the power of `skew`.
"""
POPULARITIES: Final[tuple[Popularity, ...]] = get_args(Popularity)

_LAYER, _SOURCE, _DRAW, _COMMON = range(4)
_LEAST_SHARE: Final = 1e-12
"""Share of an expert below which it counts as that: logarithms stay finite."""
_MOST_RATIOS: Final = 4096
"""Sources of layers whose own shares a generator keeps, so that its memory has a bound."""


@dataclass(frozen=True)
class GatingParameters:
    """Parameters of random gating.

    Raises:
        ValueError: If a parameter is out of range. The message names it.
    """

    experts: Annotated[int, Interval(ge=1, le=1 << 16)]
    """Experts of a layer."""
    top_k: Annotated[int, Interval(ge=1, le=1 << 16)]
    """Distinct experts of each token."""
    tokens: Annotated[int, Interval(ge=1, le=1 << 40)]
    """Tokens of a rank in one draw (a layer of a micro-batch)."""
    popularity: Popularity = "log-normal"
    """Distribution of the popularity of a layer's experts."""
    skew: Annotated[float, Interval(ge=0, le=100)] = 0.0
    """Standard deviation of the logarithm of the popularity of a layer's experts, or exponent of
    Zipf's law or of recorded loads."""
    skew_variation: Annotated[float, Interval(ge=0, le=10)] = 0.0
    """Standard deviation of the logarithm of `skew` over layers."""
    loads: tuple[float, ...] = ()
    """Recorded loads of experts, in any unit, for `recorded`."""
    shared: bool = True
    """Whether a layer's sources prefer the same experts. If not, each has an order of its own."""
    concentration: Annotated[float, Gt(0)] = math.inf
    """Dirichlet parameter of an average expert (kappa / E); a source's share of it deviates by
    1 / sqrt(concentration), for all iterations. With 1e9, all ranks have the same distribution."""
    sources: Annotated[int, Interval(ge=0, le=1 << 20)] = 0
    """Number of different sources (text domains), which ranks take in turn. 0: one for each
    rank."""
    overdispersion: Annotated[float, Interval(ge=1, le=1e9)] = 1.0
    """Variance of counts, relative to independent choices of tokens.

    A draw has tokens x top_k / overdispersion effective choices.
    """
    persistence: Annotated[float, Interval(ge=0, le=1)] = 1.0
    """Part of the variance of popularity that doesn't drift."""
    drift_time: Annotated[float, Gt(0)] = 1.0
    """Iterations in which the correlation of the drifting part falls to 1/e."""
    layer_correlation: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Correlation of the popularity of expert numbers in two layers."""
    groups: Annotated[int, Interval(ge=1, le=1 << 16)] = 1
    """Groups of successive experts, as node-limited routing has them."""
    group_share: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Part of the variance of popularity that the experts of a group have in common.

    With it, servers that hold whole groups differ more.
    """

    def __post_init__(self) -> None:
        for name, bound in _bounds().items():
            value = getattr(self, name)
            match bound:
                case Interval(ge=least, le=most) if not least <= value <= most:
                    raise ValueError(f"{name}: {value:g} is not in {least:g} to {most:g}")
                case Gt(gt=least) if not value > least:
                    raise ValueError(f"{name}: {value:g} is not above {least:g}")
        if self.top_k > self.experts:
            raise ValueError(f"top_k: a token has no {self.top_k} of {self.experts} experts")
        if self.popularity not in POPULARITIES:
            names = ", ".join(POPULARITIES)
            raise ValueError(f"popularity: {self.popularity!r} is not one of {names}")
        if (self.popularity == "recorded") != bool(self.loads):
            raise ValueError("loads: recorded popularity needs loads, and only that has them")
        is_finite = all(0 <= load < math.inf for load in self.loads)
        if not is_finite or (self.loads and not sum(self.loads)):
            raise ValueError("loads: finite loads of at least 0, not all 0, are needed")

    @property
    def choices(self) -> int:
        """Choices of experts of a rank in one draw: tokens x top_k."""
        return self.tokens * self.top_k


@cache
def _bounds() -> dict[str, Any]:
    """Return the bounds of parameters by name."""
    hints = get_type_hints(GatingParameters, include_extras=True)
    annotated = {name: hint for name, hint in hints.items() if get_origin(hint) is Annotated}
    return {name: get_args(hint)[1] for name, hint in annotated.items()}


@dataclass(frozen=True)
class GatingGenerator:
    """Source of random gating: the same draw for the same seed, iteration, layer and region.

    Regions are replicas of one model: they share the popularity of experts, and the tokens of each
    are its own.

    Attributes:
        parameters: The statistics.
        ranks: Ranks of a region, which send tokens.
        seed: Seed of all random numbers.
    """

    parameters: GatingParameters
    ranks: int
    seed: int = 1
    _layers: dict[tuple[int, int], "_LayerScores"] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _ratios: dict[tuple[int, int], FloatArray] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def tokens(self, iteration: int, layer: int, region: int = 0, micro_batch: int = 0) -> Counts:
        """Return the tokens [rank, expert] of one layer; each row sums to tokens x top_k.

        Args:
            iteration: Number of the iteration, from 0.
            layer: Number of the layer, from 0.
            region: Number of the EP group.
            micro_batch: Number of the micro-batch in the iteration.
        """
        place = (iteration, layer, region, micro_batch)
        random = np.random.default_rng([self.seed, _DRAW, *place])
        return draw_tokens(self.shares(iteration, layer, region), self.parameters, random)

    def shares(self, iteration: int, layer: int, region: int = 0) -> FloatArray:
        """Return the expected shares [rank, expert] of one layer."""
        numbers = np.arange(region * self.ranks, (region + 1) * self.ranks)
        if self.parameters.sources:
            numbers %= self.parameters.sources
        return np.stack([self._source_shares(iteration, layer, int(n)) for n in numbers])

    def _source_shares(self, iteration: int, layer: int, source: int) -> FloatArray:
        parameters = self.parameters
        order = -1 if parameters.shared else source
        scores = self._layers.get((layer, order))
        if scores is None:
            scores = self._layers[layer, order] = _LayerScores(parameters, self.seed, layer, order)
        shares = popularity(scores.at(iteration), parameters, scores.skew)
        if math.isinf(parameters.concentration):
            return shares
        ratio = self._ratios.get((layer, source))
        if ratio is None:
            ratio = self._source_ratio(layer, source, scores)
            if len(self._ratios) < _MOST_RATIOS:
                self._ratios[layer, source] = ratio
        return _normalised(shares * ratio)

    def _source_ratio(self, layer: int, source: int, scores: "_LayerScores") -> FloatArray:
        """Return a source's own shares over those of its layer, in all iterations."""
        parameters = self.parameters
        mean = popularity(scores.constant, parameters, scores.skew)
        random = np.random.default_rng([self.seed, _SOURCE, layer, source])
        own = random.standard_gamma(parameters.concentration * parameters.experts * mean)
        ratio: FloatArray = np.maximum(own / own.sum(), _LEAST_SHARE)
        return ratio / np.maximum(mean, _LEAST_SHARE)

    def trace(self, iterations: int, layers: int) -> GatingTrace:
        """Return the gating of one region, one micro-batch an iteration."""
        tokens = [[self.tokens(i, layer) for layer in range(layers)] for i in range(iterations)]
        return GatingTrace(np.array(tokens), "generated")


def generate(
    parameters: GatingParameters, *, ranks: int, layers: int, iterations: int, seed: int = 1
) -> GatingTrace:
    """Return a random gating trace.

    Args:
        parameters: The statistics: `moefabric.workload.gating.presets`, or fitted to a trace.
        ranks: Ranks that send tokens.
        layers: MoE layers.
        iterations: Iterations.
        seed: Seed of all random numbers.

    Returns:
        Tokens [iteration, layer, rank, expert]; rows sum to tokens x top_k.

    Raises:
        ValueError: If a number is below 1.
    """
    for name, number in (("ranks", ranks), ("layers", layers), ("iterations", iterations)):
        if number < 1:
            raise ValueError(f"{name}: {number} is below 1")
    return GatingGenerator(parameters, ranks, seed).trace(iterations, layers)


class _LayerScores:
    """Scores of the experts of a layer, iteration after iteration."""

    def __init__(self, parameters: GatingParameters, seed: int, layer: int, order: int) -> None:
        self._parameters = parameters
        common = np.random.default_rng([seed, _COMMON, order + 1])
        self._random = np.random.default_rng([seed, _LAYER, layer, order + 1])
        # The skew is that of the layer, whatever order a source has.
        deviation = np.random.default_rng([seed, _LAYER, layer]).normal()
        self.skew = parameters.skew * math.exp(parameters.skew_variation * deviation)
        own = self._normal(self._random)
        self._constant = _mixed(own, self._normal(common), parameters.layer_correlation)
        self._drift = [self._normal(self._random)]

    @property
    def constant(self) -> FloatArray:
        """The scores [expert] without drift: their mean over iterations."""
        return math.sqrt(self._parameters.persistence) * self._constant

    def at(self, iteration: int) -> FloatArray:
        """Return the scores [expert] in an iteration."""
        constant = self._parameters.persistence
        if constant == 1:
            return self._constant
        remaining = math.exp(-1 / self._parameters.drift_time)
        while len(self._drift) <= iteration:
            step = self._normal(self._random)
            self._drift.append(_mixed(step, self._drift[-1], remaining**2))
        return _mixed(self._drift[iteration], self._constant, constant)

    def _normal(self, random: np.random.Generator) -> FloatArray:
        """Return normal numbers [expert], correlated in groups."""
        experts, groups = self._parameters.experts, self._parameters.groups
        group = np.arange(experts) * groups // experts
        common = random.normal(size=groups)[group]
        return _mixed(random.normal(size=experts), common, self._parameters.group_share)


def _mixed(first: FloatArray, second: FloatArray, share: float) -> FloatArray:
    """Return a sum of normal numbers whose variance is theirs, the second's part being `share`."""
    return math.sqrt(1 - share) * first + math.sqrt(share) * second


def popularity(scores: FloatArray, parameters: GatingParameters, skew: float) -> FloatArray:
    """Return the shares of experts whose order is that of their scores.

    Args:
        scores: Normal numbers [expert].
        parameters: The distribution.
        skew: The layer's skew.

    Returns:
        Shares [expert], which sum to 1.
    """
    if parameters.popularity == "log-normal":
        logs = skew * scores
    else:
        rank = np.argsort(np.argsort(-scores))
        if parameters.popularity == "zipf":
            logs = -skew * np.log1p(rank)
        else:
            logs = skew * _recorded_logs(parameters.loads, len(scores))[rank]
    return _normalised(np.exp(logs - logs.max()))


def _normalised(weights: FloatArray) -> FloatArray:
    shares: FloatArray = weights / weights.sum()
    return shares


def _recorded_logs(loads: tuple[float, ...], experts: int) -> FloatArray:
    """Return logarithms of loads, the highest first, for that many experts."""
    ordered = np.sort(np.asarray(loads))[::-1]
    logs: FloatArray = np.log(np.maximum(ordered / ordered.sum(), _LEAST_SHARE))
    if experts == len(loads):
        return logs
    at: FloatArray = (np.arange(experts) + 0.5) / experts
    return np.interp(at, (np.arange(len(loads)) + 0.5) / len(loads), logs)


def draw_tokens(
    shares: FloatArray, parameters: GatingParameters, random: np.random.Generator
) -> Counts:
    """Draw the tokens of each rank to each expert.

    Args:
        shares: Expected shares [rank, expert]; rows sum to 1.
        parameters: `tokens`, `top_k` and `overdispersion`.
        random: Random numbers.

    Returns:
        Tokens [rank, expert]. Rows sum to tokens x top_k, and no count exceeds `tokens`.
    """
    if parameters.overdispersion > 1:
        # A Dirichlet of this concentration has (overdispersion - 1) times the variance of
        # independent choices, which the draw of tokens adds.
        total = max(parameters.choices / (parameters.overdispersion - 1) - 1, _LEAST_SHARE)
        drawn = np.maximum(random.standard_gamma(total * shares), 1e-300)
        shares = drawn / drawn.sum(axis=1, keepdims=True)
    inclusion = inclusion_probabilities(shares, parameters.top_k)
    return systematic_counts(inclusion, parameters.tokens, parameters.top_k, random)


def inclusion_probabilities(shares: FloatArray, top_k: int) -> FloatArray:
    """Return the probability that a token has each expert among its `top_k` distinct ones.

    It is top_k x share, but at most 1: what is above goes to the other experts, in proportion.

    Args:
        shares: Shares [rank, expert]; rows sum to 1.
        top_k: Experts of a token.
    """
    limited = np.zeros(shares.shape, dtype=bool)
    while True:
        others = np.where(limited, 0.0, np.maximum(shares, 1e-300))
        left = top_k - limited.sum(axis=1, keepdims=True)
        sums = np.maximum(others.sum(axis=1, keepdims=True), 1e-300)
        probabilities: FloatArray = np.where(limited, 1.0, others / sums * left)
        above = probabilities > 1 + 1e-12
        if not above.any():
            return np.minimum(probabilities, 1.0)
        limited |= above


def systematic_counts(
    inclusion: FloatArray, tokens: int, top_k: int, random: np.random.Generator
) -> Counts:
    """Draw how many of a rank's tokens have each expert (systematic sampling, Madow 1949).

    Experts in random order are laid along a line of length `top_k`, each as long as its
    probability. A token draws u in [0, 1) and has the experts at u, u + 1, ...: `top_k` distinct
    ones, as none is longer than 1. The fractions of the experts' ends divide [0, 1) into intervals,
    so that one multinomial draw counts all tokens of a rank.

    Args:
        inclusion: Probabilities [rank, expert], at most 1; rows sum to `top_k`.
        tokens: Tokens of each rank.
        top_k: Experts of a token.
        random: Random numbers.

    Returns:
        Counts [rank, expert]; rows sum to tokens x top_k, and no count exceeds `tokens`.
    """
    ranks, experts = inclusion.shape
    order = np.argsort(random.random(inclusion.shape), axis=1)
    ends = np.minimum(np.cumsum(np.take_along_axis(inclusion, order, axis=1), axis=1), top_k)
    ends[:, -1] = top_k
    whole = np.floor(ends).astype(np.int64)
    fractions = ends - whole
    ascending = np.argsort(fractions, axis=1)
    lengths = np.diff(np.take_along_axis(fractions, ascending, axis=1), prepend=0.0, append=1.0)
    drawn = random.multinomial(tokens, np.maximum(lengths, 0.0))
    below = np.empty((ranks, experts), dtype=np.int64)
    np.put_along_axis(below, ascending, np.cumsum(drawn[:, :-1], axis=1), axis=1)
    # Experts up to here have `tokens` for each whole unit of the line, and those with u below.
    up_to = tokens * whole + below
    counts = np.empty_like(up_to)
    np.put_along_axis(counts, order, np.diff(up_to, axis=1, prepend=0), axis=1)
    return counts
