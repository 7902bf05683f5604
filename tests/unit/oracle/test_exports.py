"""Demands as htsim's connection matrices and LogGOPSim's GOAL: golden files, limits, faults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from moefabric.cli.main import main
from moefabric.core.demand import DemandMatrix
from moefabric.core.errors import SpecError
from moefabric.oracle.connection_matrix import (
    MAX_BYTES,
    connection_matrix_demand,
    connection_matrix_text,
)
from moefabric.oracle.goal import goal_demand, goal_text
from moefabric.oracle.golden_results import golden_matrix
from tests.support.paths import EXAMPLES, GOLDEN

CASES = ("uniform8", "pairskew8")
SERVERS = tuple(f"s{n}" for n in range(8))


@pytest.mark.parametrize("case", CASES)
def test_goal_of_a_demand_is_what_loggopsim_was_given(case: str) -> None:
    given = (GOLDEN / "simulators" / f"{case}.goal").read_text()
    demand = DemandMatrix(SERVERS, golden_matrix(case))
    assert goal_text(demand) == given
    assert goal_demand(given) == demand


@pytest.mark.parametrize("case", CASES)
def test_connection_matrix_of_a_demand_is_what_htsim_was_given(case: str) -> None:
    given = (GOLDEN / "simulators" / f"{case}.cm").read_text()
    demand = DemandMatrix(SERVERS, golden_matrix(case))
    assert connection_matrix_text(demand, nodes=16) == given
    assert np.array_equal(connection_matrix_demand(given).array[:8, :8], demand.array)


def test_connection_matrix_divides_what_exceeds_htsims_largest_flow() -> None:
    demand = DemandMatrix(("s0", "s1"), [[5, MAX_BYTES + 7], [0, 0]])
    assert connection_matrix_text(demand).splitlines() == [
        "Nodes 2",
        "Connections 2",
        f"0->1 id 1 start 0 size {MAX_BYTES}",
        "0->1 id 2 start 0 size 7",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Nodes 2\nConnections 1\n", "Connections: 1 connections are announced, 0 given"),
        ("Nodes 2\nConnections 1\n0->2 start 0 size 9\n", "0->2: there are 2 nodes only"),
        (
            "Nodes 2\nConnections 1\n0->1 trigger 1 size 9\n",
            (
                "line 3: '0->1 trigger 1 size 9' is not a flow that starts at 0, "
                "such as '0->1 start 0 size 9'"
            ),
        ),
    ],
)
def test_wrong_connection_matrix_is_refused_in_place(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        connection_matrix_demand(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_ranks 2\nrank 0 {\nl1: sends 9b\n}", "line 3: 'l1: sends 9b' is not GOAL"),
        ("num_ranks 2\nrank 0 {\nl1: send 9b to 5 tag 1\n}", "line 3: there is no rank 5"),
        (
            "num_ranks 2\nrank 0 {\nl1: send 9b to 1 tag 1\n}\nrank 1 {\n}",
            "rank 0: rank 0 sends 9 bytes to 1, which receives 0",
        ),
    ],
)
def test_wrong_goal_is_refused_in_place(text: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        goal_demand(text)
    assert str(caught.value) == message


def test_goal_with_computation_dependencies_and_comments_is_read() -> None:
    text = (
        "num_ranks 2\n\nrank 0 {\nl1: calc 1500 // ps\nl2: send 9b to 1 tag 0\nl2 requires l1\n}\n"
        "rank 1 {\nl1: recv 9b from 0 tag 0\n}\n"
    )
    assert goal_demand(text).array.tolist() == [[0, 9], [0, 0]]


@pytest.mark.parametrize(("kind", "first"), [("cm", "Nodes 4"), ("goal", "num_ranks 4")])
def test_command_exports_the_same_demand_of_experiment_and_file(
    kind: str, first: str, tmp_path: Path
) -> None:
    outputs = []
    for name in ("prototype.yaml", "data/demand-4x4.json"):
        out = tmp_path / "out"
        arguments = ["trace", "export", str(EXAMPLES / name), "--format", kind, "-o", str(out)]
        assert CliRunner().invoke(main, arguments).exit_code == 0
        outputs.append(out.read_text())
    assert outputs[0] == outputs[1]
    assert outputs[0].splitlines()[0] == first


def test_command_exports_the_combine_with_rows_and_columns_exchanged(tmp_path: Path) -> None:
    matrices = []
    for collective in ("dispatch", "combine"):
        out = tmp_path / collective
        arguments = ["trace", "export", str(EXAMPLES / "prototype.yaml"), "--format", "cm"]
        arguments += ["--collective", collective, "-o", str(out)]
        assert CliRunner().invoke(main, arguments).exit_code == 0
        matrices.append(connection_matrix_demand(out.read_text()))
    assert np.array_equal(matrices[1].array, matrices[0].array.T)


def test_command_refuses_a_layer_that_the_model_lacks() -> None:
    arguments = ["trace", "export", str(EXAMPLES / "prototype.yaml"), "--format", "cm"]
    result = CliRunner().invoke(main, [*arguments, "--layer", "7"])
    assert result.exit_code == 1
    assert "--layer: there are 7, numbered from 0" in result.output
