"""Algorithm 1 in both readings, against circuits that were computed independently of this project."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.planner import htsim, mixnet, static
from controller.planner.policy import counts
from moefabric.demand import DemandMatrix, Placement

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "golden/algorithm1_vectors.json").read_text()
)
CASES = [name for name in VECTORS if name != "note"]
READINGS = {"paper_skip_exhausted": mixnet.order, "htsim": htsim.order}


def demand(rows: list[list[float]]) -> Any:
    return DemandMatrix(tuple(f"s{i}" for i in range(len(rows))), rows).symmetric()


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("case", CASES)
def test_the_published_circuits_come_out_in_their_order(case: str, reading: str) -> None:
    vector = VECTORS[case]
    servers, expected = len(vector["demand_tokens"]), vector[reading]
    lit = READINGS[reading](demand(vector["demand_tokens"]), [vector["alpha"]] * servers)
    assert [list(pair) for pair in lit] == expected["order"]
    assert [list(row) for row in counts(servers, lit)] == expected["C"]
    assert [vector["alpha"] - sum(row) for row in counts(servers, lit)] == expected["leftover"]


def test_the_measured_gating_matrix_folds_into_the_testbed_case() -> None:
    gating = VECTORS["mixtral8x22B_tp8_8servers_alpha6"]["demand_tokens"]
    folded = Placement(("s0", "s1", "s2", "s3"), 8, 8).tokens(gating)
    assert folded.tolist() == VECTORS["testbed_mixtral8x7B_4servers_alpha3"]["demand_tokens"]


@pytest.mark.parametrize(
    ("rows", "ports", "lit"),
    [
        pytest.param([[7, 0], [0, 7]], [2, 2], [], id="own-experts-need-none"),
        pytest.param([[0, 0], [0, 0]], [2, 2], [], id="no-demand-lights-nothing"),
        pytest.param([[0, 1], [0, 0]], [3, 3], [(0, 1)] * 3, id="leftover-ports-go-where-any-demand-is-left"),
        pytest.param(
            [[0, 1, 0], [0, 0, 0], [2, 0, 0]], [1, 1, 1], [(0, 2)], id="the-way-back-counts-as-well"
        ),
        pytest.param(
            [[0, 10, 8], [0, 0, 0], [0, 0, 0]],
            [2, 2, 2],
            [(0, 1), (0, 2)],
            id="a-pair-with-light-waits-behind-one-without",
        ),
        pytest.param(
            [[0, 9, 9, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]],
            [1, 1, 2, 1],
            [(0, 1), (2, 3)],
            id="a-server-without-ports-is-skipped-and-ties-go-to-the-first-pair",
        ),
        pytest.param(
            [[0, 1, 1], [0, 0, 1], [0, 0, 0]], [0, 1, 1], [(1, 2)], id="a-server-of-no-ports-gets-none"
        ),
    ],
)
def test_the_paper_lights(rows: list[list[float]], ports: list[int], lit: list[tuple[int, int]]) -> None:
    assert mixnet.order(demand(rows), ports) == lit


@pytest.mark.parametrize(
    ("rows", "ports", "lit"),
    [
        pytest.param(
            [[0, 101, 1], [0, 0, 0], [0, 0, 0]],
            [2, 2, 2],
            [(0, 1), (0, 1)],
            id="a-hundredfold-pair-goes-twice-first",
        ),
        pytest.param(
            [[0, 99, 1], [0, 0, 0], [0, 0, 0]], [2, 2, 2], [(0, 1), (0, 2)], id="a-lesser-one-does-not"
        ),
        pytest.param(
            [[0, 30_000, 1], [0, 0, 0], [0, 0, 0]], [3, 3, 3], [(0, 1), (0, 1), (0, 1)], id="damping-adds-up"
        ),
        pytest.param(
            [[0, 19_000, 1], [0, 0, 0], [0, 0, 0]],
            [3, 3, 3],
            [(0, 1), (0, 1), (0, 2)],
            id="a-third-circuit-asks-for-20000",
        ),
    ],
)
def test_the_simulator_lights(rows: list[list[float]], ports: list[int], lit: list[tuple[int, int]]) -> None:
    assert htsim.order(demand(rows), ports) == lit


@pytest.mark.parametrize(
    ("ports", "lit"),
    [
        pytest.param([3] * 4, [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (1, 3)], id="a-full-mesh-of-four"),
        pytest.param(
            [4] * 4,
            [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (1, 3), (0, 1), (2, 3)],
            id="opposite-servers-once-a-round",
        ),
        pytest.param([1] * 4, [(0, 1), (2, 3)], id="one-port-each-pairs-neighbours"),
        pytest.param([2, 2], [(0, 1), (0, 1)], id="two-servers-share-all"),
        pytest.param([5], [], id="one-server-has-nobody"),
    ],
)
def test_static_light_is_spread_evenly(ports: list[int], lit: list[tuple[int, int]]) -> None:
    assert static.order(ports) == lit


@pytest.mark.parametrize("servers", [3, 5, 8, 16])
@pytest.mark.parametrize("degree", [1, 2, 3, 6])
def test_static_light_prefers_no_server(servers: int, degree: int) -> None:
    used = np.sum(counts(servers, static.order([degree] * servers)), axis=1)
    assert used.max() - used.min() <= 1
    assert used.sum() >= servers * degree - 1


def test_ties_among_many_servers_go_row_by_row() -> None:
    servers = 12
    rows = [[1.0] * servers for _ in range(servers)]
    assert mixnet.order(demand(rows), [2] * servers)[:4] == [(0, 1), (0, 2), (1, 2), (3, 4)]
