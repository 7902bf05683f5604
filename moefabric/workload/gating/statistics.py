"""Statistics of gating traces: skew, structure of sources, variation over iterations and layers.

All take tokens [iteration, layer, rank, expert] of a trace, or loads, and count relative to the
mean, so that traces of different sizes compare.
"""

import math
from dataclasses import dataclass

import numpy as np

from moefabric.workload.gating.traces import Counts, FloatArray, GatingTrace


@dataclass(frozen=True)
class GatingStatistics:
    """Statistics of a trace: medians over its layers, and over iterations where they have them.

    Attributes:
        max_over_mean: Tokens of the busiest expert, relative to the mean.
        variation: Coefficient of variation of the experts' loads.
        entropy: Entropy of the experts' shares, relative to that of equal shares.
        row_distance: Total variation distance between the shares of two ranks, mean over pairs.
        pair_max_over_mean: Largest entry of the rank-expert matrix, relative to the mean.
        rank1_energy: Part of the matrix's squared norm in its largest singular value.
        step_distance: Total variation distance of the experts' shares in successive iterations.
        step_floor: The same for independent choices of as many tokens.
        layer_correlation: Correlation of the loads of expert numbers in two layers, mean over
            pairs.
        lag1_correlation: Correlation of shares an iteration apart.
        lag10_correlation: Correlation of shares ten iterations apart.

    Statistics for which a trace has too few ranks, layers or iterations are not a number.
    """

    max_over_mean: float
    variation: float
    entropy: float
    row_distance: float
    pair_max_over_mean: float
    rank1_energy: float
    step_distance: float
    step_floor: float
    layer_correlation: float
    lag1_correlation: float
    lag10_correlation: float


def gating_statistics(trace: GatingTrace) -> GatingStatistics:
    """Return the statistics of a trace."""
    tokens = trace.tokens
    loads = expert_shares(trace)
    rows = tokens / np.maximum(tokens.sum(axis=-1, keepdims=True), 1)
    squares = np.linalg.svd(rows, compute_uv=False) ** 2
    of_layers = {
        "max_over_mean": loads.max(axis=-1) / loads.mean(axis=-1),
        "variation": loads.std(axis=-1) / loads.mean(axis=-1),
        "entropy": entropy(loads),
        "row_distance": row_distance(rows),
        "pair_max_over_mean": rows.max(axis=(-2, -1)) * tokens.shape[-1],
        "rank1_energy": squares[..., 0] / squares.sum(axis=-1),
    }
    return GatingStatistics(
        **{name: float(np.median(values)) for name, values in of_layers.items()},
        step_distance=step_distance(loads),
        step_floor=step_floor(loads, tokens.sum(axis=(-2, -1))),
        layer_correlation=layer_correlation(loads),
        lag1_correlation=lag_correlation(loads, 1),
        lag10_correlation=lag_correlation(loads, 10),
    )


def expert_shares(trace: GatingTrace) -> FloatArray:
    """Return the share of each expert in all ranks' tokens [iteration, layer, expert]."""
    loads = trace.tokens.sum(axis=-2).astype(np.float64)
    shares: FloatArray = loads / np.maximum(loads.sum(axis=-1, keepdims=True), 1)
    return shares


def entropy(shares: FloatArray) -> FloatArray:
    """Return the entropy along the last axis, relative to that of equal shares."""
    experts = shares.shape[-1]
    if experts == 1:
        return np.ones(shares.shape[:-1])
    logs = np.log(np.where(shares > 0, shares, 1.0))
    relative: FloatArray = -(shares * logs).sum(axis=-1) / math.log(experts)
    return relative


def row_distance(rows: FloatArray) -> FloatArray:
    """Return the mean total variation distance of pairs of rows [..., rank, expert]."""
    ranks = rows.shape[-2]
    if ranks < 2:
        return np.full(rows.shape[:-2], math.nan)
    # Of n ascending values, the i-th is subtracted from i and added to n - 1 - i others.
    weights = 2 * np.arange(ranks) - (ranks - 1)
    pairs = ranks * (ranks - 1) / 2
    distances = (np.sort(rows, axis=-2) * weights[:, np.newaxis]).sum(axis=(-2, -1))
    mean: FloatArray = distances / 2 / pairs
    return mean


def step_distance(shares: FloatArray) -> float:
    """Return the median total variation distance of shares in successive iterations."""
    if len(shares) < 2:
        return math.nan
    return float(np.median(np.abs(np.diff(shares, axis=0)).sum(axis=-1) / 2))


def step_floor(shares: FloatArray, choices: Counts) -> float:
    """Return the mean distance of successive shares if tokens chose independently.

    The difference of two counts' shares is normal with twice their variance p (1 - p) / n. For
    equal shares that gives sqrt(E / (pi n)).

    Args:
        shares: Shares [iteration, layer, expert].
        choices: Choices of experts [iteration, layer].
    """
    if len(shares) < 2:
        return math.nan
    mean = shares.mean(axis=0)
    spread = np.sqrt(mean * (1 - mean)).sum(axis=-1)
    return float(np.median(spread / np.sqrt(math.pi * np.maximum(choices.mean(axis=0), 1))))


def layer_correlation(shares: FloatArray) -> float:
    """Return the mean correlation of the mean shares [iteration, layer, expert] of two layers."""
    layers = shares.shape[1]
    if layers < 2:
        return math.nan
    normal = _normal(shares.mean(axis=0))
    correlations = normal @ normal.T / shares.shape[-1]
    return float((correlations.sum() - np.trace(correlations)) / (layers * (layers - 1)))


def lag_correlation(shares: FloatArray, lag: int) -> float:
    """Return the median correlation of shares [iteration, layer, expert] `lag` iterations apart."""
    if len(shares) <= lag:
        return math.nan
    normal = _normal(shares)
    return float(np.median((normal[lag:] * normal[:-lag]).mean(axis=-1)))


def _normal(values: FloatArray) -> FloatArray:
    centred = values - values.mean(axis=-1, keepdims=True)
    normal: FloatArray = centred / np.maximum(centred.std(axis=-1, keepdims=True), 1e-300)
    return normal
