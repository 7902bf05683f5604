"""The game of pairs against links: small games solved by hand, and the programs of random ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import csc_array

from moefabric.planner.arrays import Array
from moefabric.planner.relay_paths import Indices
from moefabric.planner.relay_prices import Game


def game(
    load: list[list[float]],
    capacity: list[float],
    pair: list[int],
    due: list[float],
    forwards: list[int] | None = None,
) -> Game:
    """Return the game of paths [link, path] and bytes of the pair of each path."""
    hops = np.array(forwards or [0] * len(pair), dtype=np.float64)
    return Game(csc_array(np.array(load)), np.array(capacity), np.array(pair), np.array(due), hops)


def slow_and_fast() -> Game:
    """Return a game of 4 bytes over links of 1 and 3 bytes a second: all are there in 1 s."""
    return game([[1, 0], [0, 1]], [1, 3], [7, 7], [4, 4])


def shared() -> Game:
    """Return a game of two pairs and three links of 1 byte a second, the middle one in common.

    The first pair owes 2 bytes and the second owes 1, so that the second leaves the middle link to
    the first and all are there in 1 s.
    """
    return game([[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]], [1, 1, 1], [2, 2, 5, 5], [2, 2, 1, 1])


@pytest.mark.parametrize(
    ("played", "shares", "seconds"),
    [
        pytest.param(slow_and_fast(), [1 / 4, 3 / 4], 1, id="slow-and-fast-link"),
        pytest.param(shared(), [1 / 2, 1 / 2, 0, 1], 1, id="shared-link"),
        pytest.param(game([[1, 2]], [1], [0, 0], [3, 3]), [1, 0], 3, id="detour"),
        pytest.param(game([[1, 1]], [1], [0, 1], [3, 9]), [1, 1], 12, id="no-choice"),
    ],
)
def test_play_approaches_the_optimum(played: Game, shares: list[float], seconds: float) -> None:
    found, weights = played.play()
    assert found == pytest.approx(np.array(shares), abs=0.01)
    assert played.bound(weights) == pytest.approx(seconds, rel=0.01)


def test_of_equal_paths_the_one_that_is_forwarded_least_is_used() -> None:
    played = game([[1, 1]], [1], [0, 0], [3, 3], forwards=[2, 1])
    shares, _ = played.play()
    assert shares == pytest.approx(np.array([0.0, 1.0]), abs=0.01)
    assert played.cheapest(np.ones(1)).tolist() == [False, True]


@pytest.mark.parametrize(
    ("weights", "bound", "cheapest"),
    [
        # A byte of the slow link costs its weight, one of the fast link a third of its weight.
        pytest.param([1.0, 3.0], 4 * 1 / 4, [True, True], id="optimal-weights"),
        pytest.param([1.0, 1.0], 4 * 1 / 3 / 2, [False, True], id="equal-weights"),
        pytest.param([0.1, 0.9], 4 * 0.1 / 1, [True, False], id="fast-link-too-dear"),
        pytest.param([-1.0, 6.0], 0.0, [True, False], id="negative-weight-counts-as-none"),
        pytest.param([0.0, 0.0], 0.0, [True, True], id="no-weights"),
    ],
)
def test_bound_and_cheapest_paths_follow_from_weights(
    weights: list[float], bound: float, cheapest: list[bool]
) -> None:
    given_weights = np.array(weights)
    assert slow_and_fast().bound(given_weights) == pytest.approx(bound)
    assert slow_and_fast().cheapest(given_weights).tolist() == cheapest


def test_forwarding_is_cheap_beside_links() -> None:
    # Forwarding twice costs 2 thousandths of the average price of the links.
    played = game([[1, 0], [0, 1]], [1, 1], [0, 0], [3, 3], forwards=[2, 0])
    assert played.cheapest(np.array([1.0, 1.005])).tolist() == [True, False]
    assert played.cheapest(np.array([1.0, 1.001])).tolist() == [False, True]


def test_bound_adds_the_cheapest_path_of_every_pair() -> None:
    # 2 bytes for 1 and 1 byte for 2, of a weight of 1 + 4 + 2.
    assert shared().bound(np.array([1.0, 4.0, 2.0])) == pytest.approx((2 * 1 + 1 * 2) / 7)
    assert shared().cheapest(np.array([1.0, 4.0, 2.0])).tolist() == [True, False, False, True]


@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(2, 5))
def test_bound_and_shares_enclose_the_optimum(seed: int, links: int, pairs: int) -> None:
    """The reference is a linear program for the bytes over each path and the time."""
    draw = np.random.default_rng(seed)
    paths = 3 * pairs
    pair = np.repeat(np.arange(pairs), 3)
    load = (draw.random((links, paths)) < 0.4).astype(np.float64)
    load[draw.integers(links, size=paths), np.arange(paths)] = 1.0
    capacity, due = draw.uniform(1.0, 4.0, links), draw.uniform(1.0, 9.0, pairs)
    played = Game(csc_array(load), capacity, pair, due[pair], np.zeros(paths))
    optimum_s = least_s(load / capacity[:, None], pair, due)
    shares, weights = played.play()
    assert np.bincount(pair, shares) == pytest.approx(np.ones(pairs))
    busiest_s = float((load / capacity[:, None] @ (shares * due[pair])).max())
    assert optimum_s * (1 - 1e-9) <= busiest_s <= optimum_s * 1.03
    assert optimum_s * 0.97 <= played.bound(weights) <= optimum_s * (1 + 1e-9)
    assert played.bound(draw.random(links)) <= optimum_s * (1 + 1e-9)


def least_s(load: Array, pair: Indices, due: Array) -> float:
    """Return the least time of bytes over paths with these seconds a byte [link, path]."""
    one = (np.arange(len(due))[:, None] == pair).astype(np.float64)
    solution = linprog(
        np.append(np.zeros(len(pair)), 1.0),
        A_ub=np.hstack([load, -np.ones((len(load), 1))]),
        b_ub=np.zeros(len(load)),
        A_eq=np.hstack([one, np.zeros((len(due), 1))]),
        b_eq=due,
        method="highs",
    )
    return float(solution.fun)
