"""Generated routes of tokens, and a placement that needs them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from moefabric.workload.gating.token_routes import Pairs, TokenRoutes

TOPICS = 16


def topic_routes(
    experts: int,
    top_k: int,
    shape: tuple[int, int, int, int],
    *,
    strength: float = 0.0,
    seed: int = 1,
) -> TokenRoutes:
    """Return routes with scores; tokens of one topic prefer the same experts.

    Args:
        experts: Experts of a layer.
        top_k: Experts of a token.
        shape: Iterations, layers, ranks, and tokens of a rank.
        strength: Strength of the preferences; 0 for independent choices.
        seed: Seed of the random numbers.
    """
    random = np.random.default_rng(seed)
    preferences = strength * random.normal(size=(TOPICS, experts))
    logits = (
        random.gumbel(size=(*shape, experts)) + preferences[random.integers(TOPICS, size=shape)]
    )
    routes = np.argsort(-logits, axis=-1)[..., :top_k]
    chosen = np.exp(np.take_along_axis(logits, routes, axis=-1))
    return TokenRoutes(routes.astype(np.uint16), chosen / chosen.sum(axis=-1, keepdims=True))


class NextToTheFirst:
    """Experts in the order of the tokens that they have in common with expert 0."""

    name = "next-to-the-first"

    def experts_in_order(self, tokens: NDArray[np.int64], seed: int) -> Sequence[int]:
        raise ValueError(f"{self.name} needs routes of single tokens: set gating.trace")

    def experts_by_coactivation(self, pairs: Pairs, ranks: int, servers: int) -> Sequence[int]:
        others = np.argsort(-pairs[0, 1:], kind="stable") + 1
        return [0, *others.tolist()]
