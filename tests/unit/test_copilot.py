"""Copilot: the fit is the least-squares optimum, proven and against SLSQP; expansion keeps its margins; predictions beat guessing."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from moefabric.copilot.expansion import expanded
from moefabric.copilot.predictor import Copilot, Window, normalised, top_k_hits
from moefabric.copilot.transition import Array, fitted, loss, onto_simplex, weights

TRACE = Path(__file__).parents[2] / "examples/data/training-1200-steps.npz"


def loads(draw: np.random.Generator, iterations: int, experts: int) -> Array:
    made: Array = draw.dirichlet(np.full(experts, 3.0), iterations)
    return made


def slsqp(before: Array, after: Array, weighed: Array) -> float:
    """The least loss, as the paper's solver finds it."""
    experts = after.shape[1]
    scale = 1 / loss(np.full((experts, experts), 1 / experts), before, after, weighed)
    sums = np.tile(np.eye(experts), (1, experts))
    done = minimize(
        lambda flat: scale * loss(flat.reshape(experts, experts), before, after, weighed),
        np.full(experts**2, 1 / experts),
        method="SLSQP",
        bounds=[(0, 1)] * experts**2,
        constraints={"type": "eq", "fun": lambda flat: sums @ flat - 1, "jac": lambda flat: sums},  # noqa: ARG005 - linear
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    return float(done.fun) / scale


@pytest.mark.parametrize("seed", range(4))
def test_the_fit_is_as_good_as_slsqps(seed: int) -> None:
    draw = np.random.default_rng(seed)
    before, after = loads(draw, 20, 5), loads(draw, 20, 5)
    weighed = weights(20, 5.0)
    fit = fitted(before, after, weighed, tolerance=1e-7)
    optimum = slsqp(before, after, weighed)
    assert fit.loss == pytest.approx(optimum, rel=1e-5)
    assert fit.loss - fit.gap <= optimum * (1 + 1e-6)


@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(1, 12), st.sampled_from([1.0, 4.0, 1e9]))
@settings(max_examples=25, deadline=None)
def test_no_window_is_fitted_closer_by_slsqp(seed: int, experts: int, window: int, half_life: float) -> None:
    """Short windows, which many transitions explain, and long ones that none does."""
    draw = np.random.default_rng(seed)
    before, after, weighed = (
        loads(draw, window, experts),
        loads(draw, window, experts),
        weights(window, half_life),
    )
    nothing_known = loss(np.full((experts, experts), 1 / experts), before, after, weighed)
    fit = fitted(before, after, weighed, tolerance=1e-6)
    assert fit.loss <= slsqp(before, after, weighed) + 2e-6 * nothing_known
    assert 0 <= fit.gap <= 1e-6 * nothing_known


def test_a_window_that_one_transition_explains_gives_that_transition() -> None:
    draw = np.random.default_rng(3)
    before, true = loads(draw, 200, 4), draw.dirichlet(np.full(4, 1.0), 4).T
    fit = fitted(before, before @ true.T, weights(200, 1e9), tolerance=1e-10)
    assert np.allclose(fit.transition, true, atol=1e-3)


@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 30))
@settings(max_examples=25, deadline=None)
def test_a_transition_is_probabilities(seed: int, experts: int, window: int) -> None:
    draw = np.random.default_rng(seed)
    fit = fitted(
        loads(draw, window, experts), loads(draw, window, experts), weights(window, 4.0), tolerance=1e-3
    )
    assert fit.transition.min() >= 0
    assert fit.transition.max() <= 1 + 1e-12
    assert np.allclose(fit.transition.sum(axis=0), 1.0)


def test_later_iterations_weigh_more() -> None:
    assert weights(3, 1.0) == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    before = np.array([[1.0, 0.0], [1.0, 0.0]])
    after = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert fitted(before, after, weights(2, 0.5)).transition[:, 0] == pytest.approx([0.2, 0.8], abs=1e-3)


@given(st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=1, max_size=6))
def test_nothing_on_the_simplex_is_nearer(rows: list[list[float]]) -> None:
    columns = np.array(rows).T
    nearest = onto_simplex(columns)
    assert nearest.min() >= 0
    assert np.allclose(nearest.sum(axis=0), 1.0)
    for corner in np.eye(3):
        # Nearest in a convex set: no corner lies on the far side.
        assert (((columns - nearest) * (corner[:, None] - nearest)).sum(axis=0) <= 1e-9).all()


@given(st.integers(0, 10**6))
@settings(max_examples=25)
def test_expansion_keeps_loads_and_rows(seed: int) -> None:
    draw = np.random.default_rng(seed)
    last, rows = draw.integers(0, 100, (4, 6)).astype(float), draw.integers(1, 900, 4).astype(float)
    load = draw.dirichlet(np.full(6, 2.0))
    made = expanded(load, rows, last)
    assert made.min() >= 0
    assert made.sum(axis=1) == pytest.approx(rows, rel=1e-6)
    assert made.sum(axis=0) / rows.sum() == pytest.approx(load, rel=1e-3, abs=1e-6)


def test_expansion_without_a_matrix_takes_ranks_to_be_alike() -> None:
    made = expanded(np.array([0.25, 0.75]), np.array([4.0, 8.0]))
    assert made.tolist() == [[1.0, 3.0], [2.0, 6.0]]


def test_expansion_keeps_who_prefers_whom() -> None:
    made = expanded(np.array([0.5, 0.5]), np.array([10.0, 10.0]), np.array([[9.0, 1.0], [1.0, 9.0]]))
    assert made[0, 0] > 8
    assert made[1, 1] > 8


def test_top_k_counts_the_busiest_that_were_found() -> None:
    assert top_k_hits(np.array([4.0, 3, 2, 1]), np.array([4.0, 1, 3, 2]), 2) == 0.5


def test_a_copilot_knows_nothing_before_an_iteration_is_over() -> None:
    assert Copilot(layers=2).next_load(0, np.array([0.5, 0.5])) is None


def test_a_copilot_learns_what_follows_what() -> None:
    copilot, draw = Copilot(layers=2, window=Window(16, 1e9)), np.random.default_rng(1)
    for load in loads(draw, 16, 3):
        copilot.learn(np.array([load, load[::-1]]))
    assert copilot.next_load(0, np.array([0.7, 0.2, 0.1])) == pytest.approx([0.1, 0.2, 0.7], abs=0.02)


def test_what_left_the_window_is_forgotten() -> None:
    """Sixteen iterations in which the busiest expert stays, then eight in which it changes places."""
    draw = np.random.default_rng(2)
    copilot = Copilot(layers=2, window=Window(8, 1e9))
    for load in loads(draw, 16, 3):
        copilot.learn(np.array([load, load]))
    assert copilot.next_load(0, np.array([0.7, 0.2, 0.1])) == pytest.approx([0.7, 0.2, 0.1], abs=0.02)
    for load in loads(draw, 8, 3):
        copilot.learn(np.array([load, load[::-1]]))
    assert copilot.next_load(0, np.array([0.7, 0.2, 0.1])) == pytest.approx([0.1, 0.2, 0.7], abs=0.02)


def test_each_pair_of_layers_has_a_transition_of_its_own() -> None:
    copilot, draw = Copilot(layers=3, window=Window(16, 1e9)), np.random.default_rng(3)
    for load in loads(draw, 16, 3):
        copilot.learn(np.array([load, load, load[::-1]]))
    seen = np.array([0.7, 0.2, 0.1])
    assert copilot.next_load(0, seen) == pytest.approx([0.7, 0.2, 0.1], abs=0.02)
    assert copilot.next_load(1, seen) == pytest.approx([0.1, 0.2, 0.7], abs=0.02)


def test_on_the_training_trace_it_beats_guessing_and_the_layer_before() -> None:
    """Every 100th step of the later half, first pair of layers: the busiest 4 of 16 experts."""
    seen = normalised(np.load(TRACE)["counts"].astype(float))
    found: dict[str, list[float]] = {"copilot": [], "unchanged": []}
    for step in range(600, 1200, 100):
        past = seen[step - 32 : step]
        fit = fitted(past[:, 0], past[:, 1], weights(32, 4.0), tolerance=1e-3)
        found["copilot"].append(top_k_hits(fit.transition @ seen[step, 0], seen[step, 1], 4))
        found["unchanged"].append(top_k_hits(seen[step, 0], seen[step, 1], 4))
    assert np.mean(found["copilot"]) > 2 * max(4 / 16, float(np.mean(found["unchanged"])))
