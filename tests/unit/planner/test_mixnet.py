"""Algorithm 1 in both readings, against circuits computed independently of this project."""

import json
from typing import Any

import pytest

from moefabric.core.demand import DemandMatrix, Placement
from moefabric.planner.arrays import circuit_counts
from moefabric.planner.mixnet import algorithm1_order, htsim_order
from moefabric.planner.pair_order import Pair
from tests.support.paths import GOLDEN

VECTORS: dict[str, Any] = json.loads((GOLDEN / "algorithm1_vectors.json").read_text())
CASES = [name for name in VECTORS if name != "note"]
ORDERS = {"paper_skip_exhausted": algorithm1_order, "htsim": htsim_order}


def symmetric_demand(rows: list[list[float]]) -> Any:
    return DemandMatrix(tuple(f"s{i}" for i in range(len(rows))), rows).symmetric()


@pytest.mark.parametrize("reading", ORDERS)
@pytest.mark.parametrize("case", CASES)
def test_orders_match_golden_vectors(case: str, reading: str) -> None:
    vector = VECTORS[case]
    servers, alpha = len(vector["demand_tokens"]), vector["alpha"]
    pairs = ORDERS[reading](symmetric_demand(vector["demand_tokens"]), [alpha] * servers)
    counts = circuit_counts(servers, pairs)
    assert [list(pair) for pair in pairs] == vector[reading]["order"]
    assert counts.tolist() == vector[reading]["C"]
    assert (alpha - counts.sum(axis=1)).tolist() == vector[reading]["leftover"]


def test_placement_folds_measured_gating_matrix_into_testbed_case() -> None:
    gating = VECTORS["mixtral8x22B_tp8_8servers_alpha6"]["demand_tokens"]
    tokens = Placement(("s0", "s1", "s2", "s3"), 8, 8).server_tokens(gating)
    assert tokens.tolist() == VECTORS["testbed_mixtral8x7B_4servers_alpha3"]["demand_tokens"]


@pytest.mark.parametrize(
    ("rows", "ports", "pairs"),
    [
        pytest.param([[7, 0], [0, 7]], [2, 2], [], id="local-experts-need-no-circuit"),
        pytest.param([[0, 0], [0, 0]], [2, 2], [], id="no-demand-no-circuit"),
        pytest.param(
            [[0, 1], [0, 0]], [3, 3], [(0, 1)] * 3, id="leftover-ports-go-where-demand-is-left"
        ),
        pytest.param(
            [[0, 1, 0], [0, 0, 0], [2, 0, 0]],
            [1, 1, 1],
            [(0, 2)],
            id="the-opposite-direction-counts-as-well",
        ),
        pytest.param(
            [[0, 10, 8], [0, 0, 0], [0, 0, 0]],
            [2, 2, 2],
            [(0, 1), (0, 2)],
            id="a-pair-with-a-circuit-waits-behind-a-pair-without",
        ),
        pytest.param(
            [[0, 9, 9, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]],
            [1, 1, 2, 1],
            [(0, 1), (2, 3)],
            id="a-server-without-ports-is-skipped-and-ties-go-to-the-first-pair",
        ),
        pytest.param(
            [[0, 1, 1], [0, 0, 1], [0, 0, 0]],
            [0, 1, 1],
            [(1, 2)],
            id="a-server-of-no-ports-gets-no-circuit",
        ),
    ],
)
def test_algorithm1_orders_pairs(
    rows: list[list[float]], ports: list[int], pairs: list[Pair]
) -> None:
    assert algorithm1_order(symmetric_demand(rows), ports) == pairs


@pytest.mark.parametrize(
    ("demand", "degree", "pairs"),
    [
        pytest.param(101, 2, [(0, 1), (0, 1)], id="a-hundredfold-pair-goes-twice-first"),
        pytest.param(99, 2, [(0, 1), (0, 2)], id="a-lesser-pair-does-not"),
        pytest.param(30_000, 3, [(0, 1), (0, 1), (0, 1)], id="damping-accumulates"),
        pytest.param(19_000, 3, [(0, 1), (0, 1), (0, 2)], id="a-third-circuit-needs-20000"),
        # 100 x 200 x 300
        pytest.param(6_100_000, 4, [(0, 1)] * 4, id="a-fourth-circuit-needs-6-million"),
        pytest.param(5_900_000, 4, [(0, 1)] * 3 + [(0, 2)], id="less-does-not-suffice"),
    ],
)
def test_htsim_order_damps_demand_of_joined_pairs(
    demand: float, degree: int, pairs: list[Pair]
) -> None:
    rows = symmetric_demand([[0, demand, 1], [0, 0, 0], [0, 0, 0]])
    assert htsim_order(rows, [degree] * 3) == pairs


def test_algorithm1_breaks_ties_of_many_servers_row_by_row() -> None:
    servers = 12
    rows = symmetric_demand([[1.0] * servers for _ in range(servers)])
    assert algorithm1_order(rows, [2] * servers)[:4] == [(0, 1), (0, 2), (1, 2), (3, 4)]
