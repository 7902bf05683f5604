"""What a placement by co-activation gains, by the structure of the routes; without a network."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Final

import numpy as np

from moefabric.workload.coactivation import Pairs, coactivation, copies_of_token, structure_index
from moefabric.workload.coactivation_placement import Occult
from moefabric.workload.token_routes import Experts, TokenRoutes
from moefabric.workload.topic_routes import topic_routes

_TOKENS: Final = 8192
"""Tokens from which a placement is chosen, and as many others by which it is judged."""


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
        routes: The routes.
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
    times = []
    for _ in range(repetitions):
        began = perf_counter()
        place.experts_by_coactivation(pairs, devices, devices)
        times.append(1e3 * (perf_counter() - began))
    return times
