"""Quality of Copilot's predictions on a training trace, and the cost of wrong predictions.

The trace is a training run of this project. The later half of its steps is predicted, step by step,
from earlier steps.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

import numpy as np

from moefabric import Model, read_gating
from moefabric.api.networks import circuit_counts, static
from moefabric.api.workloads import copilot
from moefabric_studies.paper.job import Counts, FloatArray, rank_shares
from moefabric_studies.paper.network import algorithm1_circuits, circuits_first_s, nic_bytes_s

TOP_K: Final = 4
NicCounts = tuple[int, int]
"""Optical and electrical NICs of a server."""
NIC_COUNTS: Final[tuple[NicCounts, ...]] = ((6, 2), (3, 1))
"""NICs of the paper's simulation and of its testbed."""
_STEP_STRIDE: Final = 25
_RATE_BPS: Final = 100e9
_RANK_TOKENS: Final = 8 * 4096
_TOLERANCE: Final = 1e-3


@dataclass(frozen=True)
class PredictionQuality:
    """Quality of predictors.

    Attributes:
        accuracy: part of the `TOP_K` most loaded experts that a predictor finds, by predictor.
        extra_ms: mean additional time of a dispatch over circuits for the predicted demand, by NICs
            and predictor, compared with the circuits of Algorithm 1 for its own demand. As
            Algorithm 1 isn't optimal, it may be negative.
        dispatch_ms: mean time of a dispatch over the circuits for its own demand, by NICs.
    """

    accuracy: dict[str, float]
    extra_ms: dict[NicCounts, dict[str, float]]
    dispatch_ms: dict[NicCounts, float]


def measure_prediction_quality(trace: Path, model: Model) -> PredictionQuality:
    """Return the quality of predictors on the later half of a trace.

    Each rank is on a server of its own, with NICs of 100 Gb/s. Circuits of the predictor `random`
    are uniform. `unchanged` predicts the load of the layer before, `last iteration` the load of the
    same layer in the iteration before. Predicted loads are spread over ranks like the last
    iteration's matrix.

    Args:
        trace: file with the gating of training steps [step, layer, rank, expert].
        model: model whose token size is used.
    """
    counts = read_gating(trace).tokens.astype(np.float64)
    hits = defaultdict[str, list[float]](list)
    extra_s = {nics: defaultdict[str, list[float]](list) for nics in NIC_COUNTS}
    dispatch_s: dict[NicCounts, list[float]] = {nics: [] for nics in NIC_COUNTS}
    for tokens, last_tokens, predictions in _steps(counts):
        demand = _bytes(tokens, model)
        predicted = {
            name: _bytes(copilot.expand_load(load, tokens.sum(axis=1), last_tokens), model)
            for name, load in predictions.items()
        }
        for name, load in predictions.items():
            hits[name].append(copilot.top_k_hits(load, copilot.expert_loads(tokens), TOP_K))
        for nics in NIC_COUNTS:
            optical = nics[0]
            least_s = _dispatch_s(demand, algorithm1_circuits(demand, optical), nics)
            dispatch_s[nics].append(least_s)
            circuits = {
                name: algorithm1_circuits(matrix, optical) for name, matrix in predicted.items()
            }
            uniform = static.ring_order([optical] * len(tokens))
            circuits["random"] = circuit_counts(len(tokens), uniform)
            for name, planned in circuits.items():
                extra_s[nics][name].append(_dispatch_s(demand, planned, nics) - least_s)
    accuracy = {"random": TOP_K / counts.shape[3]}
    accuracy |= {name: mean(shares) for name, shares in hits.items()}
    return PredictionQuality(
        accuracy=accuracy,
        extra_ms={
            nics: {name: 1e3 * mean(extra_s[nics][name]) for name in accuracy}
            for nics in NIC_COUNTS
        },
        dispatch_ms={nics: 1e3 * mean(dispatch_s[nics]) for nics in NIC_COUNTS},
    )


def _steps(counts: FloatArray) -> Iterator[tuple[FloatArray, FloatArray, dict[str, FloatArray]]]:
    """Yield a layer's gating, that of the iteration before, and the predicted loads."""
    loads = copilot.expert_loads(counts)
    for layer in range(1, counts.shape[1]):
        transition: FloatArray | None = None
        for step in range(len(counts) // 2, len(counts), _STEP_STRIDE):
            transition = _transition(loads[:step], layer, transition)
            predictions = {
                "copilot": transition @ loads[step, layer - 1],
                "unchanged": loads[step, layer - 1],
                "last iteration": loads[step - 1, layer],
            }
            yield counts[step, layer], counts[step - 1, layer], predictions


def _transition(loads: FloatArray, layer: int, start: FloatArray | None) -> FloatArray:
    past = loads[-copilot.WINDOW :]
    before, after = past[:, layer - 1], past[:, layer]
    weights = copilot.iteration_weights(len(past), copilot.HALF_LIFE)
    fit = copilot.fit_transition(before, after, weights, tolerance=_TOLERANCE, start=start)
    return fit.transition


def _dispatch_s(demand: FloatArray, circuits: Counts, nics: NicCounts) -> float:
    """Return the time of a dispatch in which pairs with circuits use them alone."""
    rate = nic_bytes_s(_RATE_BPS)
    budgets = np.full(len(demand), nics[1] * rate)
    return circuits_first_s(demand, np.multiply(circuits, rate), budgets)


def _bytes(tokens: FloatArray, model: Model) -> FloatArray:
    """Return bytes [server, server] of the tokens [rank, expert] of a micro-batch."""
    demand = rank_shares(tokens) * _RANK_TOKENS * model.top_k * model.token_bytes
    np.fill_diagonal(demand, 0.0)
    return demand
