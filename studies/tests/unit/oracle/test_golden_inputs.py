"""Inputs that LogGOPSim and htsim were given are those that the testbed writes."""

import numpy as np
import pytest
from moefabric_studies.oracle.golden_results import golden_matrix

from moefabric.core.demand import DemandMatrix
from moefabric.traces.connection_matrix import matrix_text
from moefabric.traces.goal import goal_graph, goal_text
from moefabric.traces.messages import demand_graph
from tests.support.graph_bytes import message_bytes
from tests.support.paths import GOLDEN

CASES = ("uniform8", "pairskew8")


@pytest.mark.parametrize("case", CASES)
def test_matrix_of_a_demand_is_what_htsim_was_given(case: str) -> None:
    given = (GOLDEN / "simulators" / f"{case}.cm").read_text()
    demand = DemandMatrix([f"s{n}" for n in range(8)], golden_matrix(case))
    assert matrix_text(demand, nodes=16) == given


@pytest.mark.parametrize("case", CASES)
def test_program_of_a_demand_is_what_loggopsim_was_given(case: str) -> None:
    given = (GOLDEN / "simulators" / f"{case}.goal").read_text()
    demand = DemandMatrix([f"s{n}" for n in range(8)], golden_matrix(case))
    assert goal_text(demand_graph(demand)) == given
    assert goal_text(goal_graph(given)) == given
    assert np.array_equal(message_bytes(goal_graph(given)), demand.array)
