"""Noise of gating is seeded, has the stated size and keeps the number of tokens."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from moefabric.workload.gating.traces import add_noise
from tests.support.paths import EXAMPLES

GATING = np.array(
    json.loads((EXAMPLES / "data/gating-8x8.json").read_text())["num_global_tokens_per_expert"]
)


def moved(a: NDArray[np.int64], b: NDArray[np.int64]) -> float:
    """The share of a row's tokens that go to other experts: total variation, mean over the rows."""
    return float(
        np.abs(a / a.sum(1, keepdims=True) - b / b.sum(1, keepdims=True)).sum(1).mean() / 2
    )


def test_zero_sigma_changes_nothing() -> None:
    assert add_noise(GATING, 0.0, 1, (0, 0, 0)) is GATING


def test_noise_depends_on_seed_and_place() -> None:
    first = add_noise(GATING, 0.1, 1, (0, 0, 0))
    assert np.array_equal(first, add_noise(GATING, 0.1, 1, (0, 0, 0)))
    others = [add_noise(GATING, 0.1, 2, (0, 0, 0))] + [
        add_noise(GATING, 0.1, 1, place) for place in ((1, 0, 0), (0, 1, 0), (0, 0, 1))
    ]
    assert not any(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize(("sigma", "least", "most"), [(0.05, 0.03, 0.04), (0.1, 0.06, 0.08)])
def test_noise_is_as_large_as_between_two_training_steps(
    sigma: float, least: float, most: float
) -> None:
    matrices = [add_noise(GATING, sigma, 1, (0, 0, region)) for region in range(40)]
    assert least < np.mean([moved(a, b) for a, b in itertools.pairwise(matrices)]) < most


@given(
    arrays.arrays(np.int64, (4, 6), elements=st.integers(0, 10_000)),
    st.floats(0.01, 1.0),
    st.integers(0, 99),
)
def test_noise_keeps_each_ranks_tokens(gating: NDArray[np.int64], sigma: float, seed: int) -> None:
    noisy = add_noise(gating, sigma, seed, (0, 0, 0))
    assert (noisy >= 0).all()
    assert np.abs(noisy.sum(axis=1) - gating.sum(axis=1)).max() <= gating.shape[1], (
        "to within rounding"
    )
    assert not noisy[gating == 0].any(), "an expert that gets nothing still gets nothing"
