"""Circuits and split chosen together: better where Algorithm 1 is far from the bound, and never worse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from controller.planner import aimed, mixnet, water
from controller.planner.joint import Joint, best
from controller.planner.plan import POLICIES, plan
from controller.planner.policy import counts
from controller.planner.water import Array, EpsLinks
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.topology import Eps, Fabric, Ocs, Region

PATIENT = Joint(budget_s=20.0, proof_s=0.0)
"""A budget that no machine exhausts on these, and every doubt proven."""


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


@st.composite
def searches(draw: st.DrawFn) -> tuple[Array, NDArray[np.int64], EpsLinks]:
    """What servers owe, the ports of each, and an EPS with or without narrow uplinks; a circuit carries one byte a second."""
    servers = draw(st.integers(2, 9))
    cells = st.one_of(st.just(0.0), st.floats(0.001, 1000), st.sampled_from([1.0, 7.0]))
    owed = np.array(draw(st.lists(cells, min_size=servers**2, max_size=servers**2))).reshape(servers, servers)
    np.fill_diagonal(owed, 0.0)
    ports = np.array(draw(st.lists(st.integers(0, 4), min_size=servers, max_size=servers)))
    names = tuple(f"s{i}" for i in range(servers))
    eps = Eps(draw(st.integers(1, 4)), draw(st.integers(0, 2)), draw(st.sampled_from([1.0, 3.0])))
    wired = Fabric("f", (Region("r0", 0, names, None),), 8, 0, draw(st.integers(1, 3)), 8.0, eps)
    return owed, ports, EpsLinks.of(wired, names)


@given(searches(), st.sampled_from([0.0, 0.005, 0.05]))
@settings(max_examples=60, deadline=None)
def test_it_is_never_later_than_algorithm_1_either_way_and_never_exceeds_a_port(
    case: tuple[Array, NDArray[np.int64], EpsLinks], budget_s: float
) -> None:
    owed, ports, links = case
    greedy = np.array(counts(len(owed), mixnet.order(owed + owed.T, ports.tolist())), dtype=float)
    chosen = best(owed, ports, 1.0, links, budget_s)
    assert (chosen == chosen.T).all()
    assert (chosen.sum(axis=1) <= ports).all()
    assert not chosen.diagonal().any()
    for way in (owed, owed.T):
        assert water.seconds(way, chosen.astype(float), links) <= water.seconds(way, greedy, links) * (
            1 + 1e-8
        )


@pytest.mark.parametrize(("servers", "seed"), [(32, 1), (64, 2), (128, 3)])
def test_many_servers_get_light_within_a_twentieth_of_what_any_light_could_do(
    servers: int, seed: int
) -> None:
    """Some servers are hot for all, as gating has them: the mixed-integer program finds nothing in time here."""
    draw = np.random.default_rng(seed)
    owed = draw.dirichlet(np.full(servers, 2.0)) * draw.lognormal(0, 0.2, (servers, servers))
    np.fill_diagonal(owed, 0.0)
    names = tuple(f"s{i}" for i in range(servers))
    links = EpsLinks.of(Fabric("f", (Region("r0", 0, names, None),), 8, 0, 2, 8.0, Eps(servers)), names)
    rate, ports = links.budget[0] / 2, np.full(servers, 6)
    light = best(owed, ports, rate, links, 0.0).astype(float) * rate
    ends = water.seconds(owed, light, links)
    assert ends <= 1.05 * aimed.soonest(owed, ports, rate, links.budget, ends, 1e-3)


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


@pytest.mark.parametrize(
    ("settle_ms", "gigabytes", "more", "stays"),
    [
        pytest.param(25, 0.1, 1.01, True, id="moving-would-take-longer-than-it-gains"),
        pytest.param(0, 0.1, 1.01, False, id="moving-takes-nothing"),
        pytest.param(25, 100, 1.01, False, id="so-much-is-owed-that-it-gains-more"),
        pytest.param(25, 0.1, 1.1, False, id="it-is-slower-by-more-than-a-hundredth"),
    ],
)
def test_light_stays_where_moving_it_is_not_worth_while(
    settle_ms: int, gigabytes: float, more: float, stays: bool
) -> None:
    """Two servers owe the third, which has light for one of them: for the one that owes a little less."""
    names = ("s0", "s1", "s2")
    region = Region("r0", 0, names, Ocs("ocs0", 3, settle_ms * 1_000_000))
    made = Fabric("f", (region,), 8, 1, 1, 100e9, Eps(4))
    rows = np.zeros((3, 3))
    rows[:2, 2] = gigabytes * 1e9 * more, gigabytes * 1e9
    lit = CircuitSet.of(["s1/o0~s2/o0"])
    assert (PATIENT.circuits(made, region, DemandMatrix(names, rows), lit) == lit) == stays


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
