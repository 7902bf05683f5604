"""Generated routes of tokens whose experts depend on the token's topic.

How strongly they do decides how much a placement by co-activation can gain.
"""

import numpy as np

from moefabric.workload.token_routes import TokenRoutes


def topic_routes(
    experts: int,
    top_k: int,
    shape: tuple[int, int, int, int],
    *,
    strength: float,
    topics: int = 16,
    seed: int = 1,
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
        topics: Number of topics.
        seed: Seed of the random numbers.
    """
    random = np.random.default_rng(seed)
    layers = shape[1]
    preferences = random.normal(size=(layers, topics, experts))
    logits = random.gumbel(size=(*shape, experts))
    topic = random.integers(topics, size=shape)
    layer = np.arange(layers)[None, :, None, None]
    logits += strength * preferences[layer, topic]
    routes = np.argsort(-logits, axis=-1)[..., :top_k]
    chosen = np.exp(np.take_along_axis(logits, routes, axis=-1))
    scores = chosen / chosen.sum(axis=-1, keepdims=True)
    return TokenRoutes(routes.astype(np.uint16), scores)
