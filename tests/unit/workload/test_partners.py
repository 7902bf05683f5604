"""The made-up gating of `examples/moving-light.yaml`."""

import numpy as np

from tests.support.paths import EXAMPLES

PARTNERS = (1, 2, 3)
TOKENS, PART = 8192, 0.75


def test_three_quarters_of_the_tokens_go_to_another_partner_in_each_layer() -> None:
    expected = np.full((1, len(PARTNERS), 8, 8), round((1 - PART) / 8 * TOKENS))
    for layer, partner in enumerate(PARTNERS):
        for rank in range(8):
            first = 2 * (rank // 2 ^ partner)
            expected[0, layer, rank, first : first + 2] += round(PART / 2 * TOKENS)
    with np.load(EXAMPLES / "data/partners-8x8.npz") as archive:
        assert np.array_equal(archive["counts"], expected)
