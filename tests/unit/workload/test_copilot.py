"""Copilot: fits are optimal, expansion keeps its sums, predictions beat random ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from moefabric.workload.gating.copilot import (
    Array,
    Copilot,
    expand_load,
    expert_loads,
    fit_transition,
    iteration_weights,
    project_onto_simplex,
    top_k_hits,
    weighted_loss,
)
from tests.support.paths import EXAMPLES

TRACE = EXAMPLES / "data/training-1200-steps.npz"


def loads(draw: np.random.Generator, iterations: int, experts: int) -> Array:
    loads: Array = draw.dirichlet(np.full(experts, 3.0), iterations)
    return loads


def slsqp(before: Array, after: Array, weighed: Array) -> float:
    """The least loss, as the paper's solver finds it."""
    experts = after.shape[1]
    scale = 1 / weighted_loss(np.full((experts, experts), 1 / experts), before, after, weighed)
    sums = np.tile(np.eye(experts), (1, experts))
    solution = minimize(
        lambda flat: scale * weighted_loss(flat.reshape(experts, experts), before, after, weighed),
        np.full(experts**2, 1 / experts),
        method="SLSQP",
        bounds=[(0, 1)] * experts**2,
        constraints={"type": "eq", "fun": lambda flat: sums @ flat - 1, "jac": lambda _: sums},
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    return float(solution.fun) / scale


@pytest.mark.parametrize("seed", range(4))
def test_fit_is_as_good_as_slsqp(seed: int) -> None:
    draw = np.random.default_rng(seed)
    before, after = loads(draw, 20, 5), loads(draw, 20, 5)
    weighed = iteration_weights(20, 5.0)
    fit = fit_transition(before, after, weighed, tolerance=1e-7)
    optimum = slsqp(before, after, weighed)
    assert fit.loss == pytest.approx(optimum, rel=1e-5)
    assert fit.loss - fit.gap <= optimum * (1 + 1e-6)


@given(
    st.integers(0, 10**6), st.integers(2, 4), st.integers(1, 12), st.sampled_from([1.0, 4.0, 1e9])
)
def test_slsqp_fits_no_window_closer(
    seed: int, experts: int, window: int, half_life: float
) -> None:
    """Short windows, which many transitions explain, and long ones that none does."""
    draw = np.random.default_rng(seed)
    before, after, weighed = (
        loads(draw, window, experts),
        loads(draw, window, experts),
        iteration_weights(window, half_life),
    )
    nothing_known = weighted_loss(np.full((experts, experts), 1 / experts), before, after, weighed)
    fit = fit_transition(before, after, weighed, tolerance=1e-6)
    assert fit.loss <= slsqp(before, after, weighed) + 2e-6 * nothing_known
    assert -1e-15 <= fit.gap <= 1e-6 * nothing_known, "to within rounding"


def test_fit_recovers_the_true_transition() -> None:
    draw = np.random.default_rng(3)
    before, true = loads(draw, 200, 4), draw.dirichlet(np.full(4, 1.0), 4).T
    fit = fit_transition(before, before @ true.T, iteration_weights(200, 1e9), tolerance=1e-10)
    assert np.allclose(fit.transition, true, atol=1e-3)


@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 30))
def test_transition_columns_are_probabilities(seed: int, experts: int, window: int) -> None:
    draw = np.random.default_rng(seed)
    fit = fit_transition(
        loads(draw, window, experts),
        loads(draw, window, experts),
        iteration_weights(window, 4.0),
        tolerance=1e-3,
    )
    assert fit.transition.min() >= 0
    assert fit.transition.max() <= 1 + 1e-12
    assert np.allclose(fit.transition.sum(axis=0), 1.0)


def test_iteration_weights_halve_by_half_life() -> None:
    assert iteration_weights(3, 1.0) == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    before = np.array([[1.0, 0.0], [1.0, 0.0]])
    after = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert fit_transition(before, after, iteration_weights(2, 0.5)).transition[
        :, 0
    ] == pytest.approx([0.2, 0.8], abs=1e-3)


@given(st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=1, max_size=6))
def test_projection_is_the_nearest_point_of_the_simplex(rows: list[list[float]]) -> None:
    columns = np.array(rows).T
    nearest = project_onto_simplex(columns)
    assert nearest.min() >= 0
    assert np.allclose(nearest.sum(axis=0), 1.0)
    for corner in np.eye(3):
        # Nearest in a convex set: no corner lies on the far side.
        assert (((columns - nearest) * (corner[:, None] - nearest)).sum(axis=0) <= 1e-9).all()


@given(st.integers(0, 10**6))
def test_expanded_load_keeps_loads_and_rank_tokens(seed: int) -> None:
    draw = np.random.default_rng(seed)
    last, rows = draw.integers(0, 100, (4, 6)).astype(float), draw.integers(1, 900, 4).astype(float)
    load = draw.dirichlet(np.full(6, 2.0))
    tokens = expand_load(load, rows, last)
    assert tokens.min() >= 0
    assert tokens.sum(axis=1) == pytest.approx(rows, rel=1e-6)
    assert tokens.sum(axis=0) / rows.sum() == pytest.approx(load, rel=1e-3, abs=1e-6)


def test_expanded_load_without_history_has_equal_ranks() -> None:
    tokens = expand_load(np.array([0.25, 0.75]), np.array([4.0, 8.0]))
    assert tokens.tolist() == [[1.0, 3.0], [2.0, 6.0]]


def test_expanded_load_keeps_preferences_of_ranks() -> None:
    tokens = expand_load(
        np.array([0.5, 0.5]), np.array([10.0, 10.0]), np.array([[9.0, 1.0], [1.0, 9.0]])
    )
    assert tokens[0, 0] > 8
    assert tokens[1, 1] > 8


def test_top_k_hits_count_predicted_busiest_experts() -> None:
    assert top_k_hits(np.array([4.0, 3, 2, 1]), np.array([4.0, 1, 3, 2]), 2) == 0.5


def test_copilot_predicts_nothing_before_an_iteration_is_over() -> None:
    assert Copilot(layers=2).next_load(0, np.array([0.5, 0.5])) is None


def test_copilot_learns_transitions() -> None:
    copilot, draw = Copilot(layers=2, window=16, half_life=1e9), np.random.default_rng(1)
    for load in loads(draw, 16, 3):
        copilot.learn(np.array([load, load[::-1]]))
    assert copilot.next_load(0, np.array([0.7, 0.2, 0.1])) == pytest.approx(
        [0.1, 0.2, 0.7], abs=0.02
    )


def test_copilot_forgets_iterations_outside_the_window() -> None:
    """Sixteen iterations in which the busiest expert stays, then eight in which it moves."""
    draw = np.random.default_rng(2)
    copilot = Copilot(layers=2, window=8, half_life=1e9)
    for load in loads(draw, 16, 3):
        copilot.learn(np.array([load, load]))
    assert copilot.next_load(0, np.array([0.7, 0.2, 0.1])) == pytest.approx(
        [0.7, 0.2, 0.1], abs=0.02
    )
    for load in loads(draw, 8, 3):
        copilot.learn(np.array([load, load[::-1]]))
    assert copilot.next_load(0, np.array([0.7, 0.2, 0.1])) == pytest.approx(
        [0.1, 0.2, 0.7], abs=0.02
    )


def test_copilot_fits_each_pair_of_layers() -> None:
    copilot, draw = Copilot(layers=3, window=16, half_life=1e9), np.random.default_rng(3)
    for load in loads(draw, 16, 3):
        copilot.learn(np.array([load, load, load[::-1]]))
    load = np.array([0.7, 0.2, 0.1])
    assert copilot.next_load(0, load) == pytest.approx([0.7, 0.2, 0.1], abs=0.02)
    assert copilot.next_load(1, load) == pytest.approx([0.1, 0.2, 0.7], abs=0.02)


def test_copilot_beats_random_and_persistence_on_the_training_trace() -> None:
    """Every 100th step of the later half, first pair of layers: the busiest 4 of 16 experts."""
    loads = expert_loads(np.load(TRACE)["counts"].astype(float))
    hits: dict[str, list[float]] = {"copilot": [], "unchanged": []}
    for step in range(600, 1200, 100):
        past = loads[step - 32 : step]
        fit = fit_transition(past[:, 0], past[:, 1], iteration_weights(32, 4.0), tolerance=1e-3)
        hits["copilot"].append(top_k_hits(fit.transition @ loads[step, 0], loads[step, 1], 4))
        hits["unchanged"].append(top_k_hits(loads[step, 0], loads[step, 1], 4))
    assert np.mean(hits["copilot"]) > 2 * max(4 / 16, float(np.mean(hits["unchanged"])))
