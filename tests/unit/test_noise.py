"""Noise in gating: seeded, of the size that is stated, and never a token too many."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from moefabric.experiment.noise import noisy

GATING = np.array(
    json.loads((Path(__file__).parents[2] / "examples/data/gating-8x8.json").read_text())[
        "num_global_tokens_per_expert"
    ]
)


def moved(a: NDArray[np.int64], b: NDArray[np.int64]) -> float:
    """The share of a row's tokens that go to other experts: total variation, mean over the rows."""
    return float(np.abs(a / a.sum(1, keepdims=True) - b / b.sum(1, keepdims=True)).sum(1).mean() / 2)


def test_without_noise_nothing_changes() -> None:
    assert noisy(GATING, 0.0, 1, (0, 0, 0)) is GATING


def test_the_same_seed_and_place_give_the_same_matrix_and_any_other_another() -> None:
    first = noisy(GATING, 0.1, 1, (0, 0, 0))
    assert np.array_equal(first, noisy(GATING, 0.1, 1, (0, 0, 0)))
    others = [noisy(GATING, 0.1, 2, (0, 0, 0))] + [
        noisy(GATING, 0.1, 1, place) for place in ((1, 0, 0), (0, 1, 0), (0, 0, 1))
    ]
    assert not any(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize(("sigma", "least", "most"), [(0.05, 0.03, 0.04), (0.1, 0.06, 0.08)])
def test_two_regions_differ_as_two_steps_of_training_do(sigma: float, least: float, most: float) -> None:
    made = [noisy(GATING, sigma, 1, (0, 0, region)) for region in range(40)]
    assert least < np.mean([moved(a, b) for a, b in itertools.pairwise(made)]) < most


@given(
    arrays.arrays(np.int64, (4, 6), elements=st.integers(0, 10_000)), st.floats(0.01, 1.0), st.integers(0, 99)
)
def test_every_rank_keeps_its_tokens(gating: NDArray[np.int64], sigma: float, seed: int) -> None:
    made = noisy(gating, sigma, seed, (0, 0, 0))
    assert (made >= 0).all()
    assert np.abs(made.sum(axis=1) - gating.sum(axis=1)).max() <= gating.shape[1], "to within rounding"
    assert not made[gating == 0].any(), "an expert that gets nothing still gets nothing"
