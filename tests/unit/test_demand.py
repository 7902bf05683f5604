"""Tokens become bytes between servers; none is made or lost on the way."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from moefabric.demand import DemandMatrix, Placement

GATING = Path(__file__).parents[2] / "examples/data/gating-8x8.json"
matrices = st.integers(1, 6).flatmap(
    lambda n: arrays.arrays(np.float64, (n, n), elements=st.integers(0, 10**9).map(float))
)


def names(count: int) -> tuple[str, ...]:
    return tuple(f"s{i}" for i in range(count))


@st.composite
def placed(draw: st.DrawFn) -> tuple[Placement, NDArray[np.int64]]:
    n, ranks, experts = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    shape = (n * ranks, n * experts)
    return Placement(names(n), *shape), draw(arrays.arrays(np.int64, shape, elements=st.integers(0, 10**6)))


@given(placed())
def test_placement_conserves_tokens(case: tuple[Placement, NDArray[np.int64]]) -> None:
    placement, gating = case
    tokens = placement.tokens(gating)
    assert tokens.sum() == gating.sum()
    per_server = gating.sum(axis=1).reshape(len(placement.servers), -1).sum(axis=1)
    assert tokens.sum(axis=1).tolist() == per_server.tolist(), "a server sends what its own ranks hold"


def test_ranks_and_experts_fill_the_servers_in_order() -> None:
    placement = Placement(names(2), ranks=2, experts=4)
    assert placement.tokens([[1, 2, 10, 20], [100, 200, 1000, 2000]]).tolist() == [[3, 30], [300, 3000]]


def test_the_measured_matrix_on_four_servers() -> None:
    gating = json.loads(GATING.read_text())["num_global_tokens_per_expert"]
    assert Placement(names(4), 8, 8).tokens(gating).tolist() == [
        [30708, 8834, 13180, 12814],
        [32375, 6878, 13902, 12381],
        [28619, 8821, 14692, 13404],
        [30707, 9510, 14214, 11105],
    ]


@pytest.mark.parametrize(
    ("ranks", "experts", "said"),
    [(7, 8, "7 ranks don't fill 4 servers evenly"), (8, 9, "9 experts don't fill 4 servers evenly")],
)
def test_servers_are_filled_evenly_or_not_at_all(ranks: int, experts: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Placement(names(4), ranks, experts)


def test_a_gating_matrix_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a gating matrix of 8 ranks x 8 experts is needed, not \(4, 8\)"):
        Placement(names(4), 8, 8).tokens(np.zeros((4, 8)))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        pytest.param([[0, 1]], r"2 servers need a 2x2 matrix, not \(1, 2\)", id="not-square"),
        pytest.param([[0, -1], [0, 0]], r"\[0\]\[1\]: -1 is not a number of bytes", id="negative"),
        pytest.param([[0, 0], [float("nan"), 0]], r"\[1\]\[0\]: nan is not a number of bytes", id="nan"),
        pytest.param([[0, 0], [0, float("inf")]], r"\[1\]\[1\]: inf is not a number of bytes", id="infinite"),
    ],
)
def test_an_impossible_demand_is_refused_by_its_place(rows: list[list[float]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DemandMatrix(names(2), rows)


def test_a_demand_keeps_its_numbers_whatever_its_maker_does_later() -> None:
    mine = np.array([[0.0, 7.0], [1.0, 0.0]])
    demand = DemandMatrix(["s0", "s1"], mine)
    mine[0, 1] = 99
    assert demand.array.tolist() == [[0, 7], [1, 0]]
    with pytest.raises(ValueError, match="read-only"):
        demand.array[0, 1] = 5


@given(matrices)
def test_the_way_back_of_the_way_back_is_the_way_there(matrix: NDArray[np.float64]) -> None:
    demand = DemandMatrix(names(len(matrix)), matrix)
    assert demand.combine().combine() == demand
    assert demand.combine().total_bytes == demand.total_bytes
    assert demand.combine().busiest_bytes == demand.busiest_bytes


@given(matrices)
def test_pairs_hold_all_that_leaves_a_server(matrix: NDArray[np.float64]) -> None:
    demand = DemandMatrix(names(len(matrix)), matrix)
    listed = list(demand.pairs())
    assert sum(owed for _, _, owed in listed) == demand.total_bytes
    assert all(a != b and owed > 0 for a, b, owed in listed)


def test_bytes_that_stay_are_free_and_both_ways_share_a_circuit() -> None:
    demand = DemandMatrix(names(3), [[100, 1, 2], [4, 100, 8], [16, 32, 100]])
    assert demand.combine().array.tolist() == [[100, 4, 16], [1, 100, 32], [2, 8, 100]]
    assert demand.symmetric().tolist() == [[0, 5, 18], [5, 0, 40], [18, 40, 0]]
    assert demand.total_bytes == 63
    assert demand.busiest_bytes == 48, "s2 sends 16 + 32"
    assert demand.combine().busiest_bytes == 48


def test_equal_demands_are_equal_and_others_are_not() -> None:
    demand = DemandMatrix(names(2), [[0, 1], [2, 0]])
    assert demand == DemandMatrix(("s0", "s1"), [[0.0, 1.0], [2.0, 0.0]])
    assert hash(demand) == hash(DemandMatrix(names(2), [[0, 1], [2, 0]]))
    assert demand != DemandMatrix(names(2), [[0, 1], [3, 0]])
    assert demand != DemandMatrix(("s0", "s2"), [[0, 1], [2, 0]])
