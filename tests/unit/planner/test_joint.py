"""The joint policy: better where Algorithm 1 is far from the bound, and never worse."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.eps import Eps
from moefabric.core.ocs import Ocs, RandomTime
from moefabric.core.topology import Fabric, Region
from moefabric.core.units import Scale
from moefabric.planner.arrays import Array, Ints, circuit_counts
from moefabric.planner.deadline_circuits import deadline_bound_s
from moefabric.planner.joint import Joint, best_circuits
from moefabric.planner.mixnet import algorithm1_order
from moefabric.planner.moving_circuits import moving_s
from moefabric.planner.plan import plan
from moefabric.planner.policy import Policy
from moefabric.planner.waterfill import EpsLinks
from tests.support.joint_cases import end_s
from tests.support.planner_cases import fabric
from tests.support.policies import POLICIES


def predicted_s(wired: Fabric, demand: DemandMatrix, policy: Policy) -> float:
    return plan(wired, wired.regions[0], demand, policy, CircuitSet()).predicted_s


def nearly_even_demand(wired: Fabric) -> DemandMatrix:
    """The last of eight servers owes a hundredth less: Algorithm 1 leaves it without circuits."""
    rows = np.full((8, 8), 1e9)
    rows[7, :] = rows[:, 7] = 0.99e9
    return DemandMatrix(wired.servers, rows)


def test_joint_isolates_no_server_of_even_demand() -> None:
    wired = fabric(1, 8)
    demand = nearly_even_demand(wired)
    joint_s = predicted_s(wired, demand, Joint())
    assert predicted_s(wired, demand, POLICIES["spill"]) > 2 * joint_s
    assert joint_s == pytest.approx(7e9 * 8 / (800e9 * 1448 / 1514), rel=2e-3)


def test_joint_gives_a_hot_pair_several_circuits() -> None:
    """Algorithm 1 gives every pair its first circuit before any its second."""
    wired = fabric(1, 4, 3, 1)
    rows = np.full((4, 4), 1e8)
    rows[0, 1] = 20e9
    demand = DemandMatrix(wired.servers, rows)
    chosen = plan(wired, wired.regions[0], demand, Joint(), CircuitSet())
    assert chosen.counts[0][1] == 3
    assert chosen.predicted_s < 0.6 * predicted_s(wired, demand, POLICIES["spill"])


@pytest.mark.parametrize("seed", range(6))
def test_joint_is_never_worse_than_spill_in_either_direction(seed: int) -> None:
    wired = fabric(1, 6, 3, 1)
    rows = np.random.default_rng(seed).pareto(1.2, (6, 6)) * 1e9
    demand = DemandMatrix(wired.servers, rows)
    for direction in (demand, demand.combine()):
        spill_s = predicted_s(wired, direction, POLICIES["spill"])
        assert predicted_s(wired, direction, Joint()) <= spill_s * (1 + 1e-9)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Array, Ints, EpsLinks]:
    """Demand, ports, and an EPS with or without narrow uplinks; a circuit carries 1 byte/s."""
    servers = draw(st.integers(2, 9))
    cells = st.one_of(st.just(0.0), st.floats(0.001, 1000), st.sampled_from([1.0, 7.0]))
    flat = draw(st.lists(cells, min_size=servers**2, max_size=servers**2))
    owed = np.array(flat).reshape(servers, servers)
    np.fill_diagonal(owed, 0.0)
    ports = np.array(draw(st.lists(st.integers(0, 4), min_size=servers, max_size=servers)))
    names = tuple(f"s{i}" for i in range(servers))
    eps = Eps(draw(st.integers(1, 4)), draw(st.integers(0, 2)), draw(st.sampled_from([1.0, 3.0])))
    wired = Fabric("f", (Region("r0", 0, names, None),), 8, 0, draw(st.integers(1, 3)), 8.0, eps)
    return owed, ports, EpsLinks.of(wired, names)


@given(problems())
def test_best_circuits_fit_the_ports_and_end_no_later_than_algorithm1(
    problem: tuple[Array, Ints, EpsLinks],
) -> None:
    owed, ports, links = problem
    greedy = circuit_counts(len(owed), algorithm1_order(owed + owed.T, ports.tolist()))
    counts = best_circuits(owed, ports, 1.0, links)
    assert (counts == counts.T).all()
    assert (counts.sum(axis=1) <= ports).all()
    assert not counts.diagonal().any()
    assert (counts == best_circuits(owed.T, ports, 1.0, links)).all()
    for direction in (owed, owed.T):
        assert end_s(direction, counts, 1.0, links) <= end_s(owed, greedy, 1.0, links) * (1 + 1e-8)


@pytest.mark.parametrize(("servers", "seed"), [(32, 1), (64, 2), (128, 3)])
def test_search_brings_many_servers_within_a_hundredth_of_the_bound(
    servers: int, seed: int
) -> None:
    """Some servers are hot for all, as gating has them."""
    draw = np.random.default_rng(seed)
    owed = draw.dirichlet(np.full(servers, 2.0)) * draw.lognormal(0, 0.2, (servers, servers))
    np.fill_diagonal(owed, 0.0)
    names = tuple(f"s{i}" for i in range(servers))
    wired = Fabric("f", (Region("r0", 0, names, None),), 8, 0, 2, 8.0, Eps(servers))
    links = EpsLinks.of(wired, names)
    rate, ports = float(links.budget[0] / 2), np.full(servers, 6)
    joint_s = end_s(owed, best_circuits(owed, ports, rate, links), rate, links)
    assert joint_s <= 1.01 * deadline_bound_s(owed, ports, rate, links, joint_s, 1e-3)


def test_joint_keeps_circuits_that_are_as_good() -> None:
    """Algorithm 1 would leave the other two servers dark; they are lit, and cost nothing."""
    wired = fabric(1, 4, 2, 2)
    rows = np.zeros((4, 4))
    rows[0, 1] = 9e9
    demand = DemandMatrix(wired.servers, rows)
    lit = CircuitSet.of(["s0/o1~s1/o0", "s0/o0~s1/o1", "s2/o1~s3/o0"])
    assert Joint().circuits(wired, wired.regions[0], demand, lit) == lit


@pytest.mark.parametrize(
    ("settle_ms", "gigabytes", "ratio", "stays"),
    [
        pytest.param(25, 0.1, 1.006, True, id="moving-takes-longer-than-it-gains"),
        pytest.param(0, 0.1, 1.006, False, id="moving-takes-no-time"),
        pytest.param(25, 100, 1.006, False, id="so-much-is-owed-that-moving-gains-more"),
        pytest.param(25, 0.1, 1.01, True, id="a-hundredth-of-little-is-little"),
        pytest.param(25, 1, 2.0, False, id="current-circuits-are-much-slower"),
    ],
)
def test_joint_keeps_circuits_if_moving_takes_longer_than_it_gains(
    settle_ms: int, gigabytes: float, ratio: float, stays: bool
) -> None:
    """Two servers owe the third, which has a circuit to the one that owes a little less.

    Algorithm 1 prefers a fourth server, which owes in both directions.
    """
    names = ("s0", "s1", "s2", "s3")
    region = Region("r0", 0, names, Ocs("ocs0", 4, settle_ms * 1_000_000))
    wired = Fabric("f", (region,), 8, 1, 1, 100e9, Eps(4))
    rows = np.zeros((4, 4))
    rows[:2, 2] = gigabytes * 1e9 * ratio, gigabytes * 1e9
    rows[2, 3] = rows[3, 2] = gigabytes * 0.6e9
    lit = CircuitSet.of(["s1/o0~s2/o0"])
    chosen = Joint().circuits(wired, region, DemandMatrix(names, rows), lit)
    assert (chosen == lit) == stays


def test_circuits_that_move_are_dark_until_their_links_are_up() -> None:
    wired = fabric(1, 4)
    ocs = Ocs("ocs0", 24, settle_ns=2 * 10**9, link_up=RandomTime(10**9))
    region = replace(wired.regions[0], ocs=ocs)
    assert moving_s(wired, region) == 3.0
    assert moving_s(replace(wired, scale=Scale(dilation=4.0)), region) == 0.75
    assert moving_s(wired, replace(region, ocs=None)) == 0.0


def test_best_circuits_of_no_demand_are_none() -> None:
    links = EpsLinks.of(fabric(1, 3, 2, 1), ("s0", "s1", "s2"))
    assert not best_circuits(np.zeros((3, 3)), np.full(3, 2), 1.0, links).any()


def test_joint_without_an_eps_is_algorithm1() -> None:
    names = ("s0", "s1", "s2")
    wired = Fabric("f", (Region("r0", 0, names, Ocs("ocs0", 6)),), 8, 2, 0, 100e9, None)
    demand = DemandMatrix(names, [[0, 5, 1], [1, 0, 1], [2, 1, 0]])
    chosen = plan(wired, wired.regions[0], demand, Joint(), CircuitSet())
    expected = circuit_counts(3, algorithm1_order(demand.symmetric(), [2, 2, 2]))
    assert np.array_equal(chosen.counts, expected)
    assert len(chosen.circuits) == 3


def test_best_circuits_respect_unequal_ports() -> None:
    links = EpsLinks.of(fabric(1, 3, 2, 1), ("s0", "s1", "s2"))
    owed = np.array([[0.0, 9, 9], [0, 0, 9], [0, 0, 0]])
    counts = best_circuits(owed, np.array([2, 1, 1]), 1.0, links)
    assert counts.sum(axis=1).tolist() == [2, 1, 1]
