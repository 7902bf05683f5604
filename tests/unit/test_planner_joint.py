"""Circuits and split chosen together: better where Algorithm 1 is far from the bound, and never worse."""

import numpy as np
import pytest

from controller.planner import mixnet, water
from controller.planner.joint import Joint, best
from controller.planner.plan import POLICIES, plan
from controller.planner.policy import counts
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.topology import Eps, Fabric, Ocs, Region

PATIENT = Joint(budget_s=20.0)
"""A budget that no machine exhausts on these."""


def fabric(servers: int, optical: int, electrical: int) -> Fabric:
    names = tuple(f"s{i}" for i in range(servers))
    region = Region("r0", 0, names, Ocs("ocs0", servers * optical))
    return Fabric("f", (region,), 8, optical, electrical, 100e9, Eps(servers))


def predicted(made: Fabric, owed: DemandMatrix, name: str | Joint) -> float:
    policy = POLICIES[name] if isinstance(name, str) else name
    return plan(made, made.regions[0], owed, policy, CircuitSet()).predicted_s


def test_even_demand_isolates_no_server() -> None:
    """Algorithm 1 lights seven of eight servers with each other, and leaves the one that owes least in the dark."""
    made = fabric(8, 6, 2)
    rows = np.full((8, 8), 1e9)
    rows[7, :] = rows[:, 7] = 0.99e9
    owed = DemandMatrix(made.servers, rows)
    assert predicted(made, owed, "spill") > 2 * predicted(made, owed, PATIENT)
    assert predicted(made, owed, PATIENT) == pytest.approx(7e9 * 8 / (800e9 * 1448 / 1514), rel=2e-3)


def test_a_hot_pair_gets_the_circuits_that_it_deserves() -> None:
    """Algorithm 1 gives every pair its first circuit before any its second."""
    made = fabric(4, 3, 1)
    rows = np.full((4, 4), 1e8)
    rows[0, 1] = 20e9
    owed = DemandMatrix(made.servers, rows)
    chosen = plan(made, made.regions[0], owed, PATIENT, CircuitSet())
    assert chosen.counts[0][1] == 3
    assert chosen.predicted_s < 0.6 * predicted(made, owed, "spill")


@pytest.mark.parametrize("seed", range(6))
def test_it_is_never_worse_than_the_greedy_answer_either_way(seed: int) -> None:
    draw = np.random.default_rng(seed)
    made = fabric(6, 3, 1)
    owed = DemandMatrix(made.servers, draw.pareto(1.2, (6, 6)) * 1e9)
    for way in (owed, owed.combine()):
        assert predicted(made, way, Joint()) <= predicted(made, way, "spill") * (1 + 1e-9)


def test_even_demand_isolates_no_server_even_where_there_is_no_time_to_look() -> None:
    made = fabric(8, 6, 2)
    rows = np.full((8, 8), 1e9)
    rows[7, :] = rows[:, 7] = 0.99e9
    hurried = predicted(made, DemandMatrix(made.servers, rows), Joint(budget_s=1e-6))
    assert hurried < 1.2 * 7e9 * 8 / (800e9 * 1448 / 1514)


def test_light_that_is_as_good_stays() -> None:
    """Algorithm 1 would leave the other two servers dark; they are lit, and cost nothing."""
    made = fabric(4, 2, 2)
    rows = np.zeros((4, 4))
    rows[0, 1] = 9e9
    owed = DemandMatrix(made.servers, rows)
    lit = CircuitSet.of(["s0/o1~s1/o0", "s0/o0~s1/o1", "s2/o1~s3/o0"])
    assert PATIENT.circuits(made, made.regions[0], owed, lit) == lit


def test_nothing_owed_lights_what_algorithm_1_lights() -> None:
    links = water.EpsLinks.of(fabric(3, 2, 1), ("s0", "s1", "s2"))
    assert best(np.zeros((3, 3)), np.full(3, 2), 1.0, links, 1.0).tolist() == np.zeros((3, 3)).tolist()


def test_without_an_eps_it_lights_what_algorithm_1_lights() -> None:
    names = ("s0", "s1", "s2")
    bare = Fabric("f", (Region("r0", 0, names, Ocs("ocs0", 6)),), 8, 2, 0, 100e9, None)
    owed = DemandMatrix(names, [[0, 5, 1], [1, 0, 1], [2, 1, 0]])
    lit = PATIENT.circuits(bare, bare.regions[0], owed, CircuitSet())
    expected = counts(3, mixnet.order(owed.symmetric(), [2, 2, 2]))
    assert plan(bare, bare.regions[0], owed, PATIENT, CircuitSet()).counts == expected
    assert len(lit) == 3


def test_a_server_with_fewer_ports_gets_fewer_circuits() -> None:
    links = water.EpsLinks.of(fabric(3, 2, 1), ("s0", "s1", "s2"))
    owed = np.array([[0.0, 9, 9], [0, 0, 9], [0, 0, 0]])
    assert best(owed, np.array([2, 1, 1]), 1.0, links, 5.0).sum(axis=1).tolist() == [2, 1, 1]
