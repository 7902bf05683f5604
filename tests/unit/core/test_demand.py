"""Tokens become bytes between servers, and none is lost."""

import json

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from moefabric.core.demand import DemandMatrix, Placement
from tests.support.paths import EXAMPLES

GATING = EXAMPLES / "data/gating-8x8.json"
matrices = st.integers(1, 6).flatmap(
    lambda n: arrays.arrays(np.float64, (n, n), elements=st.integers(0, 10**9).map(float))
)


def names(count: int) -> tuple[str, ...]:
    return tuple(f"s{i}" for i in range(count))


@st.composite
def placed(draw: st.DrawFn) -> tuple[Placement, NDArray[np.int64]]:
    n, ranks, experts = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    shape = (n * ranks, n * experts)
    return Placement(names(n), *shape), draw(
        arrays.arrays(np.int64, shape, elements=st.integers(0, 10**6))
    )


@given(placed())
def test_placement_conserves_tokens(case: tuple[Placement, NDArray[np.int64]]) -> None:
    placement, gating = case
    tokens = placement.server_tokens(gating)
    assert tokens.sum() == gating.sum()
    per_server = gating.sum(axis=1).reshape(len(placement.servers), -1).sum(axis=1)
    assert tokens.sum(axis=1).tolist() == per_server.tolist(), (
        "a server sends what its own ranks hold"
    )


def test_placement_fills_servers_in_order() -> None:
    placement = Placement(names(2), ranks=2, experts=4)
    assert placement.server_tokens([[1, 2, 10, 20], [100, 200, 1000, 2000]]).tolist() == [
        [3, 30],
        [300, 3000],
    ]


def test_placement_folds_the_measured_matrix_on_four_servers() -> None:
    gating = json.loads(GATING.read_text())["num_global_tokens_per_expert"]
    assert Placement(names(4), 8, 8).server_tokens(gating).tolist() == [
        [30708, 8834, 13180, 12814],
        [32375, 6878, 13902, 12381],
        [28619, 8821, 14692, 13404],
        [30707, 9510, 14214, 11105],
    ]


@pytest.mark.parametrize(
    ("ranks", "experts", "message"),
    [
        (7, 8, "7 ranks don't fill 4 servers evenly"),
        (8, 9, "9 experts don't fill 4 servers evenly"),
    ],
)
def test_placement_refuses_uneven_servers(ranks: int, experts: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Placement(names(4), ranks, experts)


def test_placement_refuses_a_gating_matrix_of_another_size() -> None:
    with pytest.raises(
        ValueError, match=r"a gating matrix of 8 ranks x 8 experts is needed, not \(4, 8\)"
    ):
        Placement(names(4), 8, 8).server_tokens(np.zeros((4, 8)))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        pytest.param([[0, 1]], r"2 servers need a 2x2 matrix, not \(1, 2\)", id="not-square"),
        pytest.param([[0, -1], [0, 0]], r"\[0\]\[1\]: -1 is not a number of bytes", id="negative"),
        pytest.param(
            [[0, 0], [float("nan"), 0]], r"\[1\]\[0\]: nan is not a number of bytes", id="nan"
        ),
        pytest.param(
            [[0, 0], [0, float("inf")]], r"\[1\]\[1\]: inf is not a number of bytes", id="infinite"
        ),
    ],
)
def test_demand_matrix_names_the_wrong_cell(rows: list[list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DemandMatrix(names(2), rows)


def test_demand_matrix_copies_and_freezes_its_array() -> None:
    array = np.array([[0.0, 7.0], [1.0, 0.0]])
    demand = DemandMatrix(["s0", "s1"], array)
    array[0, 1] = 99
    assert demand.array.tolist() == [[0, 7], [1, 0]]
    with pytest.raises(ValueError, match="read-only"):
        demand.array[0, 1] = 5


@given(matrices)
def test_combine_is_its_own_inverse(matrix: NDArray[np.float64]) -> None:
    demand = DemandMatrix(names(len(matrix)), matrix)
    assert demand.combine().combine() == demand
    assert demand.combine().total_bytes == demand.total_bytes
    assert demand.combine().port_bytes.max() == demand.port_bytes.max()


@given(matrices)
def test_pairs_hold_all_bytes_that_leave_a_server(matrix: NDArray[np.float64]) -> None:
    demand = DemandMatrix(names(len(matrix)), matrix)
    listed = list(demand.pairs())
    assert sum(owed for _, _, owed in listed) == demand.total_bytes
    assert all(a != b and owed > 0 for a, b, owed in listed)


def test_symmetric_demand_adds_both_directions_without_the_diagonal() -> None:
    demand = DemandMatrix(names(3), [[100, 1, 2], [4, 100, 8], [16, 32, 100]])
    assert demand.combine().array.tolist() == [[100, 4, 16], [1, 100, 32], [2, 8, 100]]
    assert demand.symmetric().tolist() == [[0, 5, 18], [5, 0, 40], [18, 40, 0]]
    assert demand.total_bytes == 63
    assert demand.port_bytes.max() == 48, "s2 sends 16 + 32"
    assert demand.combine().port_bytes.max() == 48


def test_demand_matrices_compare_by_value() -> None:
    demand = DemandMatrix(names(2), [[0, 1], [2, 0]])
    assert demand == DemandMatrix(("s0", "s1"), [[0.0, 1.0], [2.0, 0.0]])
    assert hash(demand) == hash(DemandMatrix(names(2), [[0, 1], [2, 0]]))
    assert demand != DemandMatrix(names(2), [[0, 1], [3, 0]])
    assert demand != DemandMatrix(("s0", "s2"), [[0, 1], [2, 0]])


@given(placed())
def test_ranks_share_the_bytes_of_their_servers(case: tuple[Placement, NDArray[np.int64]]) -> None:
    placement, gating = case
    assume(placement.experts % placement.ranks == 0)
    tokens, n = gating.astype(np.float64), len(placement.servers)
    copies = placement.by_destination(tokens) / 2
    by_rank = placement.by_rank(tokens, copies)
    group = DemandMatrix(placement.servers, placement.by_source(copies), by_rank)
    joined = DemandMatrix.block_diagonal([DemandMatrix(["far"], [[1.0]]), group])
    demand = joined.submatrix(placement.servers)
    back = demand.combine(0.5)
    assert {(src, dst) for src, dst, _ in demand.pairs()} <= demand.rank_parts.keys()
    shape = n, placement.ranks // n, n, placement.ranks // n, -1
    for (src, dst), parts in demand.rank_parts.items():
        i, j = demand.index[src], demand.index[dst]
        owed = parts * demand.array[i, j]
        assert owed == pytest.approx(tokens.reshape(shape).sum(axis=4)[i, :, j] / 2)
        assert back.rank_parts[dst, src] == pytest.approx(parts.T)


def test_demands_differ_if_ranks_share_them_differently() -> None:
    placement = Placement(names(2), 4, 4)
    gatings = np.eye(4)[[2, 3, 0, 1]], np.eye(4)[[3, 2, 1, 0]]
    first, second = (
        DemandMatrix(names(2), [[0, 2], [2, 0]], placement.by_rank(g, placement.by_destination(g)))
        for g in gatings
    )
    assert first.array.tolist() == second.array.tolist()
    assert first != second


def test_lost_servers_owe_nothing() -> None:
    demand = DemandMatrix(("s0", "s2"), [[1, 5], [7, 2]])
    assert demand.within(("s0", "s1")).array.tolist() == [[1, 0], [0, 0]]
    whole = DemandMatrix(("s0", "s1", "s2"), [[0, 1, 9], [2, 0, 9], [9, 9, 9]])
    assert whole.within(("s0", "s1")) == DemandMatrix(("s0", "s1"), [[0, 1], [2, 0]])
