"""Gains of placements by co-activation, by the structure of the routes; without a network.

Occult (arXiv 2505.13345) calls the mean number of devices to which a token goes its communication
traffic, CT.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import comb
from time import perf_counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from moefabric.api.workloads import Experts, LayerRoutes, Pairs, TokenRoutes, coactivation
from moefabric_studies.systems.measured import times_s
from moefabric_studies.systems.occult.placement import Occult

_TOPICS: Final = 16
_TOKENS: Final = 8192
"""Tokens from which a placement is chosen, and as many others by which it is judged."""
_HIDDEN = 1024
"""Numbers of a result."""


@dataclass(frozen=True)
class ServerSums:
    """Sums that really ran, in 32 bits.

    Attributes:
        difference: Largest difference of the two results, relative to the largest value.
        time_ratios: Time of the sums at servers and source, relative to that of one sum.
    """

    difference: float
    time_ratios: tuple[float, ...]


@dataclass(frozen=True)
class StructureGain:
    """The gain of placements on the routes of a layer.

    Attributes:
        name: Name of the routes.
        structure: Structure index of the routes.
        greedy: Percentage of CT that the greedy placement saves, against the order of numbers.
        swap: The same with swaps.
    """

    name: str
    structure: float
    greedy: float
    swap: float


def structure_gain(name: str, known: Experts, later: Experts, devices: int) -> StructureGain:
    """Return the gain of placements that are chosen from known tokens, on later ones.

    Args:
        name: Name of the routes.
        known: Experts [..., choice].
        later: Experts [..., choice] of the same layer.
        devices: Number of devices.
    """
    experts = 1 + int(max(known.max(), later.max()))
    experts += -experts % devices
    pairs, plain = coactivation(known, experts), np.arange(experts) * devices // experts
    before = copies_of_token(later, plain)
    saved = {}
    for place in (Occult(), Occult("swap")):
        device = np.empty(experts, dtype=np.int64)
        device[place.experts_by_coactivation(pairs, devices, devices)] = plain
        saved[place.refine] = 100 * (1 - copies_of_token(later, device) / before)
    return StructureGain(name, structure_index(pairs), saved["none"], saved["swap"])


def generated_gains(
    strengths: Sequence[float], experts: int, top_k: int, devices: int
) -> list[StructureGain]:
    """Return the gains for generated routes of these strengths."""
    gains = []
    for strength in strengths:
        routes = topic_routes(experts, top_k, (2, 1, 1, _TOKENS), strength=strength)
        name = f"topics, strength {strength:g}"
        gains.append(structure_gain(name, routes.experts[0], routes.experts[1], devices))
    return gains


def recorded_gains(routes: TokenRoutes, known: int, devices: int) -> list[StructureGain]:
    """Return the gains for each layer of recorded routes.

    Args:
        known: Iterations from which placements are chosen; others judge them.
        devices: Number of devices.
    """
    return [
        structure_gain(
            f"trained model, layer {n}",
            routes.experts[:known, n],
            routes.experts[known:, n],
            devices,
        )
        for n in range(routes.experts.shape[1])
    ]


def placement_ms(pairs: Pairs, place: Occult, devices: int, repetitions: int = 9) -> list[float]:
    """Return the milliseconds that it takes to place the experts of a layer."""
    place_once = partial(place.experts_by_coactivation, pairs, devices, devices)
    return [1e3 * seconds for seconds in times_s(place_once, repetitions)]


def structure_index(pairs: Pairs) -> float:
    """Return the part of the pairs that independent choices would have elsewhere, 0 to 1.

    It is the total variation distance between the pairs and those of experts that are as often
    chosen, but independently of each other.
    """
    degrees = pairs.sum(axis=1).astype(np.float64)
    expected = np.outer(degrees, degrees)
    np.fill_diagonal(expected, 0.0)
    for _ in range(50):  # iterative proportional fitting: without a diagonal, rows fall short
        factors = np.sqrt(degrees / np.maximum(expected.sum(axis=1), 1e-300))
        expected *= np.outer(factors, factors)
    return float(np.abs(pairs - expected).sum() / 2 / max(pairs.sum(), 1))


def copies_of_token(routes: Experts, device: NDArray[np.integer]) -> float:
    """Return the mean number of devices to which a token goes (CT).

    Args:
        routes: Experts [..., choice].
        device: Device [expert].
    """
    places = np.sort(device[routes], axis=-1)
    return float(1.0 + (np.diff(places, axis=-1) != 0).sum(axis=-1).mean())


def expected_copies(experts: int, top_k: int, devices: int) -> float:
    """Return the CT of a random balanced placement, whatever the routes are.

    A device is missed if all `top_k` experts of a token are among those of the others.
    """
    missed = comb(experts - experts // devices, top_k) / comb(experts, top_k)
    return devices * (1 - missed)


def topic_routes(
    experts: int, top_k: int, shape: tuple[int, int, int, int], *, strength: float, seed: int = 1
) -> TokenRoutes:
    """Return routes with scores, for each layer with other tastes of the topics.

    Each topic has a normal preference for each expert, and each token a topic. A token has the
    `top_k` experts with the largest sums of preference times strength and a Gumbel number: experts
    drawn without replacement, in proportion to exp(strength x preference).

    Args:
        experts: Experts of a layer.
        top_k: Experts of a token.
        shape: Iterations, layers, ranks, and tokens of a rank.
        strength: 0 for independent choices; at 4, a topic's tokens have almost equal experts.
        seed: Seed of the random numbers.
    """
    random = np.random.default_rng(seed)
    layers = shape[1]
    preferences = random.normal(size=(layers, _TOPICS, experts))
    logits = random.gumbel(size=(*shape, experts))
    topic = random.integers(_TOPICS, size=shape)
    layer = np.arange(layers)[None, :, None, None]
    logits += strength * preferences[layer, topic]
    routes = np.argsort(-logits, axis=-1)[..., :top_k]
    chosen = np.exp(np.take_along_axis(logits, routes, axis=-1))
    scores = chosen / chosen.sum(axis=-1, keepdims=True)
    return TokenRoutes(routes.astype(np.uint16), scores)


def sum_at_servers(
    routes: LayerRoutes, server: NDArray[np.int64], tokens: int = 1024, repetitions: int = 7
) -> ServerSums:
    """Sum random results of the experts of a rank's tokens in both ways.

    Args:
        routes: Routes with scores.
        server: Server [expert].
        tokens: The first tokens, which are summed up.
        repetitions: How often both ways are timed.
    """
    assert routes.scores is not None
    experts, scores = routes.experts[0, :tokens], routes.scores[0, :tokens]
    order = np.argsort(server[experts], axis=-1, kind="stable")
    places = np.take_along_axis(server[experts], order, axis=-1)
    weights = np.take_along_axis(scores, order, axis=-1).astype(np.float32)
    results = np.random.default_rng(1).normal(size=(weights.size, _HIDDEN)).astype(np.float32)
    weighted = results * weights.reshape(-1, 1)
    is_first = np.diff(places, axis=-1, prepend=-1) != 0
    of_token = np.arange(0, weights.size, experts.shape[-1])
    of_server = np.flatnonzero(is_first)
    of_copies = np.concatenate([[0], is_first.sum(axis=-1).cumsum()[:-1]])
    ratios, difference = [], 0.0
    for _ in range(repetitions):
        began = perf_counter()
        plain = np.add.reduceat(weighted, of_token)
        middle = perf_counter()
        returned = np.add.reduceat(weighted, of_server)
        total = np.add.reduceat(returned, of_copies)
        ratios.append((perf_counter() - middle) / (middle - began))
        difference = float(np.abs(total - plain).max() / np.abs(plain).max())
    return ServerSums(difference, tuple(ratios))
