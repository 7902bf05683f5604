"""Generated routes of tokens."""

import numpy as np

from moefabric.workload.gating.token_routes import TokenRoutes

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
