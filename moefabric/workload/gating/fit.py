"""Fits the parameters of random gating to a recorded trace, by its second moments.

Loads are relative to the mean, x = E x share - 1. A product of two sources has no noise of draws,
nor has one of two iterations, so that the moments separate what the parameters say:

    two sources, same iteration          popularity: skew
    two sources, h iterations apart      its drift: persistence and drift time
    the same source, h iterations apart  the same, and what distinguishes sources: concentration
    the same source, same iteration      all that, and the draws: overdispersion
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from moefabric.workload.gating.generator import GatingParameters, Popularity, generate
from moefabric.workload.gating.statistics import expert_shares, layer_correlation, row_distance
from moefabric.workload.gating.traces import FloatArray, GatingTrace

_MOST_LAGS: Final = 100
_MOST_SKEW: Final = 4.0
_DRIFT_TIMES: Final = np.geomspace(0.5, 2000.0, 60)
_REPLICAS: Final = 400
_ROUNDS: Final = 4
_LAYERS_OF_ROUND: Final = 48


def fit(
    trace: GatingTrace,
    top_k: int = 1,
    *,
    popularity: Popularity = "log-normal",
    alike: bool = False,
    groups: int = 1,
) -> GatingParameters:
    """Return parameters whose traces have the second moments of a recorded one.

    A trace of one iteration can't tell what distinguishes sources from what distinguishes draws,
    a trace of one rank and one iteration neither: the variance is then that of sources, or with
    `alike` that of draws. What a trace can't tell has the default value: no drift, no
    overdispersion, independent layers.

    Args:
        trace: Tokens [iteration, layer, rank, expert].
        top_k: Experts of a token, which counts don't tell.
        popularity: `log-normal`, or `recorded` to keep the quantiles of the recorded loads.
        alike: Whether ranks are known to have tokens of the same kind.
        groups: Groups of successive experts of the model, of equal size.

    Raises:
        ValueError: If a rank has no tokens, there are fewer than `top_k` or two experts, groups
            don't divide experts, or `popularity` is not one that can be fitted.
    """
    experts = trace.tokens.shape[-1]
    if experts < max(2, top_k):
        raise ValueError(f"{experts} experts: at least {max(2, top_k)} are needed")
    if groups < 1 or experts % groups:
        raise ValueError(f"groups: {experts} experts don't form {groups} groups of equal size")
    if popularity == "zipf":
        raise ValueError("popularity: zipf can't be fitted, only log-normal and recorded")
    choices = _median_choices(trace)
    moments = _moments(trace, top_k, choices)
    known, of_known = _moments_by_skew(experts)
    skews = np.interp(moments.layers, of_known, known)
    skews, group_share = _with_groups(trace, skews, groups)
    skew, spread = _skew_of_layers(skews, experts)
    persistence, drift_time = _drift(moments.popularity)
    loads: tuple[float, ...] = ()
    if popularity == "recorded":
        loads, skew = _quantiles(trace), 1.0
    fitted = GatingParameters(
        experts=experts,
        top_k=top_k,
        tokens=max(1, round(choices / top_k)),
        popularity=popularity,
        skew=skew,
        skew_variation=spread,
        loads=loads,
        concentration=math.inf if alike else _concentration(moments, experts),
        overdispersion=_overdispersion(moments, experts, top_k, choices, alike=alike),
        persistence=persistence,
        drift_time=drift_time,
        layer_correlation=_layer_correlation(trace, skew),
        groups=groups,
        group_share=group_share,
    )
    return _with_distances(fitted, trace)


def _median_choices(trace: GatingTrace) -> float:
    """Return the median number of experts that all tokens of a rank choose in a layer."""
    sums = trace.tokens.sum(axis=-1)
    if not sums.all():
        at = "".join(f"[{i}]" for i in np.argwhere(sums == 0)[0])
        raise ValueError(f"{at} (iteration, layer, rank): no tokens")
    return float(np.median(sums))


@dataclass(frozen=True)
class _Moments:
    """Second moments of relative loads.

    Attributes:
        popularity: Of a layer's popularity, by lag from 0; mean over layers.
        layers: Of each layer's popularity at lag 0.
        own: Of what distinguishes a source, at all times; 0 if there is one source.
        draws: Of draws: what distinguishes an iteration of a source from the next; None if there
            is one iteration.
        mixed: Of sources and draws together, at lag 0.
    """

    popularity: FloatArray
    layers: FloatArray
    own: float
    draws: float | None
    mixed: float


def _moments(trace: GatingTrace, top_k: int, choices: float) -> _Moments:
    iterations, _, ranks, experts = trace.tokens.shape
    shares = trace.shares
    lags = range(min(iterations, max(2, iterations // 2), _MOST_LAGS + 1))
    same = np.array([_moment(shares, shares, lag) for lag in lags])
    noise = (experts - top_k * (1 + same[0])) / choices
    if ranks == 1 and iterations == 1:
        popularity = same[:1] - noise
        return _Moments(popularity.mean(axis=1), popularity[0], 0.0, None, float(noise.mean()))
    if ranks == 1:
        # Without a second source, what changes within one iteration counts as a draw.
        popularity = np.concatenate([same[1:2], same[1:]])
        draws = float((same[0] - same[1]).mean())
        return _Moments(popularity.mean(axis=1), same[1], 0.0, draws, draws)
    total = shares.sum(axis=2, keepdims=True) / ranks
    # E^2 mean(S S') = sum over sources of E^2 mean(x x'), distinct ones and the same.
    sums = np.array([_moment(total, total, lag) for lag in lags])
    cross = (sums * ranks - same) / (ranks - 1)
    # Drift lowers the product of a source's iterations: lag 0 is extrapolated.
    apart = (same - cross).mean(axis=1)
    mixed = float(apart[0])
    if iterations == 1:
        own, draws_or_none = mixed - float(noise.mean()), None
    else:
        own = float(2 * apart[1] - apart[2]) if len(apart) > 2 else float(apart[1])
        draws_or_none = mixed - own
    return _Moments(cross.mean(axis=1), cross[0], max(0.0, own), draws_or_none, mixed)


def _moment(first: FloatArray, second: FloatArray, lag: int) -> FloatArray:
    """Return the mean product of relative loads `lag` iterations apart, for each layer."""
    experts, iterations = first.shape[-1], len(first)
    products = first[: iterations - lag] * second[lag:]
    mean: FloatArray = products.sum(axis=-1).mean(axis=(0, 2)) * experts - 1
    return mean


@lru_cache(maxsize=32)
def _moments_by_skew(experts: int) -> tuple[FloatArray, FloatArray]:
    """Return skews of log-normal popularity, and the moment of each: the mean of replicas."""
    scores = np.random.default_rng(0).normal(size=(_REPLICAS, experts))
    skews = np.linspace(0.0, _MOST_SKEW, 161)
    moments = []
    for skew in skews:
        shares = np.exp(skew * scores)
        shares /= shares.sum(axis=1, keepdims=True)
        moments.append(experts * (shares**2).sum(axis=1).mean() - 1)
    return skews, np.array(moments)


def _skew_of_layers(skews: FloatArray, experts: int) -> tuple[float, float]:
    """Return the median of log-normal skews of layers, and the deviation of their logarithms.

    The logarithm of a standard deviation of E values varies by 1 / (2 E), which is no difference of
    layers.
    """
    mean = float(skews.mean())
    if len(skews) < 2 or not mean:
        return mean, 0.0
    variance = math.log1p(float(skews.var()) / mean**2)
    variance_of_layers = max(0.0, variance - 0.5 / experts)
    return mean * math.exp(-variance_of_layers / 2), math.sqrt(variance_of_layers)


def _drift(moments: FloatArray) -> tuple[float, float]:
    """Return persistence and drift time for moments of log-normal popularity by lag."""
    if len(moments) < 3 or moments[0] <= 0:
        return 1.0, 1.0
    # Log-normal shares have the moment exp(variance x correlation) - 1.
    correlation = np.log1p(np.maximum(moments, -0.9)) / math.log1p(moments[0])
    lags = np.arange(1, len(moments))
    best = (math.inf, 1.0, 1.0)
    for time in _DRIFT_TIMES:
        decay = np.exp(-lags / time)
        # correlation = persistence (1 - decay) + decay
        left, right = 1 - decay, correlation[1:] - decay
        persistence = float(np.clip((left @ right) / (left @ left), 0.0, 1.0))
        error = float(((persistence * left - right) ** 2).sum())
        best = min(best, (error, persistence, float(time)))
    return best[1], best[2]


def _concentration(moments: _Moments, experts: int) -> float:
    left = experts - 1 - moments.popularity[0]
    if moments.own <= 1e-3 * max(left, 1e-9) / experts:
        return math.inf
    return float(max(1e-3, (left / moments.own - 1) / experts))


def _overdispersion(
    moments: _Moments, experts: int, top_k: int, choices: float, *, alike: bool
) -> float:
    draws = moments.mixed if alike else moments.draws
    if draws is None:
        return 1.0
    square = 1 + moments.popularity[0] + (0.0 if alike else moments.own)
    surplus = draws * choices - (experts - top_k * square)
    return float(max(1.0, 1 + surplus / max(experts - square, 1e-9)))


def _layer_correlation(trace: GatingTrace, skew: float) -> float:
    """Return the correlation of scores for that of loads, if it exceeds two standard errors."""
    layers, experts = trace.tokens.shape[1], trace.tokens.shape[-1]
    if layers < 2 or not skew:
        return 0.0
    loads = layer_correlation(expert_shares(trace))
    if loads < 2 / math.sqrt(experts * layers * (layers - 1) / 2):
        return 0.0
    # Log-normal shares correlate as (exp(variance x correlation) - 1) / (exp(variance) - 1).
    return float(np.clip(math.log1p(loads * math.expm1(skew**2)) / skew**2, 0.0, 1.0))


def _with_groups(trace: GatingTrace, skews: FloatArray, groups: int) -> tuple[FloatArray, float]:
    """Return the layers' skews, and the part of their variance that groups of experts share.

    Both are adjusted until the loads of replicas have the recorded moments.

    Args:
        trace: The recorded trace.
        skews: Skew of each layer if experts were independent.
        groups: Groups of successive experts.
    """
    experts = trace.tokens.shape[-1]
    if groups in {1, experts} or not skews.any():
        return skews, 0.0
    common_wanted = _group_moment(trace.shares.mean(axis=(0, 2)) * experts, groups)
    given = skew = float(np.sqrt((skews**2).mean()))
    wanted = float(np.interp(given, *_moments_by_skew(experts)))
    share = float(np.clip(common_wanted / math.log1p(wanted), 0.0, 1.0))
    random = np.random.default_rng(0)
    own = random.normal(size=(_REPLICAS, experts))
    common = np.repeat(random.normal(size=(_REPLICAS, groups)), experts // groups, axis=1)
    for _ in range(2 * _ROUNDS):
        if not share:
            break
        loads = np.exp(skew * (math.sqrt(1 - share) * own + math.sqrt(share) * common))
        loads *= experts / loads.sum(axis=1, keepdims=True)
        skew *= math.sqrt(math.log1p(wanted) / math.log(float((loads**2).mean())))
        present = max(_group_moment(loads, groups), 1e-3)
        share = float(np.clip(share * common_wanted / present, 0.0, 1.0))
    return skews * (skew / given), share


def _group_moment(loads: FloatArray, groups: int) -> float:
    """Return the logarithm of the mean product of two relative loads [layer, expert] of a group."""
    size = loads.shape[-1] // groups
    by_group = loads.reshape(len(loads), groups, size)
    pairs = by_group.sum(axis=-1) ** 2 - (by_group**2).sum(axis=-1)
    return math.log(max(float(pairs.mean()) / (size * (size - 1)), 1e-3))


def _quantiles(trace: GatingTrace) -> tuple[float, ...]:
    """Return relative loads of experts, the highest first: means over layers."""
    ordered = np.sort(trace.shares.mean(axis=(0, 2)), axis=-1)[:, ::-1].mean(axis=0)
    return tuple(float(load) for load in np.round(ordered * len(ordered), 4))


def _with_distances(fitted: GatingParameters, trace: GatingTrace) -> GatingParameters:
    """Return parameters whose traces have the recorded distances of rows, too.

    Moments weigh the busiest experts most; distances weigh all alike. Concentration and
    overdispersion are adjusted until generated traces have the distance of ranks, and that of an
    iteration's row to the next.
    """
    iterations, _, ranks, _ = trace.tokens.shape
    pairs, steps = _distances(trace)
    for seed in range(_ROUNDS):
        shape = {"ranks": ranks, "layers": _LAYERS_OF_ROUND, "iterations": min(3, iterations)}
        generated = generate(fitted, **shape, seed=seed)
        pairs_now, steps_now = _distances(generated)
        overdispersion, concentration = fitted.overdispersion, fitted.concentration
        distance, present = (steps, steps_now) if iterations > 1 else (pairs, pairs_now)
        if present > 0 and (iterations > 1 or (ranks > 1 and math.isinf(concentration))):
            overdispersion = max(1.0, overdispersion * (distance / present) ** 2)
        # Squares of distances add: those of draws, and those of sources.
        wanted, present = pairs**2 - steps**2, pairs_now**2 - steps_now**2
        if ranks > 1 and not math.isinf(concentration) and wanted > 0 and present > 0:
            concentration *= present / wanted
        fitted = replace(fitted, overdispersion=overdispersion, concentration=concentration)
    return fitted


def _distances(trace: GatingTrace) -> tuple[float, float]:
    """Return the mean distances of two ranks' rows, and of a row in successive iterations.

    What isn't there has distance 0.
    """
    rows = trace.shares
    pairs = float(row_distance(rows).mean()) if rows.shape[2] > 1 else 0.0
    steps = float(np.abs(np.diff(rows, axis=0)).sum(axis=-1).mean() / 2) if len(rows) > 1 else 0.0
    return pairs, steps
