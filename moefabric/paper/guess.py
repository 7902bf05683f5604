"""Guessing: how good Copilot's predictions are on a training trace, and what a wrong guess costs.

The trace is the project's own training run; the later half of its steps is predicted, step by step, from what came before.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

import numpy as np

from agents import traces
from controller.planner import static
from controller.planner.policy import counts as circuit_counts
from moefabric.copilot.expansion import expanded
from moefabric.copilot.predictor import Window, normalised, top_k_hits
from moefabric.copilot.transition import Array, fitted, weights
from moefabric.model import Model
from moefabric.paper.network import Counts, byte_rate, greedy, light_first_s, lit_rates

TOP_K: Final = 4
Nics = tuple[int, int]
"""Optical and electrical NICs of a server."""
NICS: Final[tuple[Nics, ...]] = ((6, 2), (3, 1))
"""The paper's simulation and its testbed."""
_EVERY: Final = 25
_RATE_BPS: Final = 100e9
_RANK_TOKENS: Final = 8 * 4096
_TOLERANCE: Final = 1e-3


@dataclass(frozen=True)
class Guesses:
    """By predictor: the part of the `TOP_K` most loaded experts found; by NICs and predictor, how many milliseconds longer a dispatch takes.

    Longer than over the circuits that Algorithm 1 lights for its own demand (`dispatch_ms`); as that isn't always best, a guess may be luckier.
    """

    accuracy: dict[str, float]
    wrong_ms: dict[Nics, dict[str, float]]
    dispatch_ms: dict[Nics, float]


def guesses(trace: Path, model: Model) -> Guesses:
    """Of the later half of a trace [step, layer, rank, expert]; each rank is on a server of its own, with NICs of 100 Gb/s.

    `random` circuits are uniform; `unchanged` takes the load of the layer before, `last iteration` the same layer's of the iteration before. All but
    the first are spread over ranks like the last iteration's matrix.
    """
    counts = traces.gating(trace).tokens.astype(np.float64)
    hits = defaultdict[str, list[float]](list)
    late = {nics: defaultdict[str, list[float]](list) for nics in NICS}
    right: dict[Nics, list[float]] = {nics: [] for nics in NICS}
    for true, last, guessed in _steps(counts):
        for name, load in guessed.items():
            hits[name].append(top_k_hits(load, normalised(true), TOP_K))
        for nics in NICS:
            best = _seconds(true, greedy(_bytes(true, model), nics[0]), nics, model)
            right[nics].append(best)
            lit = {
                name: greedy(_bytes(expanded(load, true.sum(axis=1), last), model), nics[0])
                for name, load in guessed.items()
            }
            lit["random"] = _uniform(len(true), nics[0])
            for name, circuits in lit.items():
                late[nics][name].append(_seconds(true, circuits, nics, model) - best)
    accuracy = {"random": TOP_K / counts.shape[3]} | {name: mean(found) for name, found in hits.items()}
    wrong = {nics: {name: 1e3 * mean(late[nics][name]) for name in accuracy} for nics in NICS}
    return Guesses(accuracy, wrong, {nics: 1e3 * mean(right[nics]) for nics in NICS})


def _steps(counts: Array) -> Iterator[tuple[Array, Array, dict[str, Array]]]:
    """What a layer's gates did, what they did the iteration before, and the loads that each predictor guesses."""
    loads = normalised(counts)
    for pair in range(counts.shape[1] - 1):
        transition: Array | None = None
        for step in range(len(counts) // 2, len(counts), _EVERY):
            transition = _transition(loads[:step], pair, transition)
            guessed = {
                "copilot": transition @ loads[step, pair],
                "unchanged": loads[step, pair],
                "last iteration": loads[step - 1, pair + 1],
            }
            yield counts[step, pair + 1], counts[step - 1, pair + 1], guessed


def _transition(loads: Array, pair: int, start: Array | None) -> Array:
    window = Window()
    past = loads[-window.iterations :]
    weighed = weights(len(past), window.half_life)
    return fitted(past[:, pair], past[:, pair + 1], weighed, tolerance=_TOLERANCE, start=start).transition


def _uniform(servers: int, degree: int) -> Counts:
    return np.array(circuit_counts(servers, static.order([degree] * servers)), dtype=np.int64)


def _seconds(tokens: Array, circuits: Counts, nics: Nics, model: Model) -> float:
    """One dispatch of these tokens over these circuits, each pair with one by light alone."""
    rate = byte_rate(_RATE_BPS)
    return light_first_s(
        _bytes(tokens, model), lit_rates(circuits, rate), np.full(len(tokens), nics[1] * rate)
    )


def _bytes(tokens: Array, model: Model) -> Array:
    """Bytes [server, server] of tokens [rank, expert], every rank sending a whole micro-batch."""
    ranks = len(tokens)
    shares = tokens / tokens.sum(axis=1, keepdims=True)
    made: Array = (
        shares.reshape(ranks, ranks, -1).sum(axis=2) * _RANK_TOKENS * model.top_k * model.token_bytes
    )
    np.fill_diagonal(made, 0.0)
    return made
