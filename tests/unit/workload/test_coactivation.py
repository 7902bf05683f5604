"""Co-activation: tokens that pairs of experts have in common."""

import numpy as np

from moefabric.workload.gating.token_routes import coactivation


def test_pairs_are_tokens_in_common() -> None:
    pairs = coactivation(np.array([[0, 1, 2], [0, 1, 3]]), 5)
    assert pairs[0, 1] == pairs[1, 0] == 2
    assert pairs[0].tolist() == [0, 2, 1, 1, 0]
    assert pairs.sum() == 2 * 3 * 2
