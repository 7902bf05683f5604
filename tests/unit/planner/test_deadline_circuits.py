"""Circuits for a deadline and the bound on deadlines, against every choice of circuits."""

from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.planner.arrays import Array, Ints
from moefabric.planner.deadline_circuits import deadline_bound_s, deadline_circuits
from moefabric.planner.joint import best_circuits
from moefabric.planner.waterfill import EpsLinks, Rates, completion_s, pair_rates
from tests.support.planner_cases import demand_matrix

Problem = tuple[Array, Ints, Array]
RATES = np.array([1.0, 0.5, 2.0, 1.0])
"""Bytes per second of a NIC of servers that differ."""


@st.composite
def problems(draw: st.DrawFn, most: int = 4) -> Problem:
    """Demand, ports, and bytes per second to the EPS; a circuit carries one byte per second."""
    servers = draw(st.integers(2, most))
    cells = st.one_of(st.just(0.0), st.floats(0.01, 100))
    flat = draw(st.lists(cells, min_size=servers**2, max_size=servers**2))
    owed = np.array(flat).reshape(servers, servers)
    np.fill_diagonal(owed, 0.0)
    ports = draw(st.lists(st.integers(0, 2), min_size=servers, max_size=servers))
    budget = draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=servers, max_size=servers))
    return owed, np.array(ports), np.array(budget)


def end_s(owed: Array, counts: Ints, budget: Array, rates: Rates = 1.0) -> float:
    """When demand and its transpose have ended, over a non-blocking EPS."""
    eps, light = EpsLinks.one_leaf(budget), pair_rates(rates, len(owed)) * counts
    return max(completion_s(direction, light, eps) for direction in (owed, owed.T))


def least_end_s(owed: Array, ports: Ints, budget: Array, rates: Rates = 1.0) -> float:
    """Try all circuits."""
    n, best = len(owed), inf
    pairs = [(i, j) for i in range(n) for j in range(i)]
    for chosen in product(range(3), repeat=len(pairs)):
        counts = np.zeros((n, n), dtype=int)
        for (i, j), count in zip(pairs, chosen, strict=True):
            counts[i, j] = counts[j, i] = count
        if (counts.sum(axis=1) <= ports).all():
            best = min(best, end_s(owed, counts, budget, rates))
    return best


@given(problems())
def test_no_circuits_end_before_the_deadline_bound(problem: Problem) -> None:
    owed, ports, budget = problem
    bound = deadline_bound_s(owed, ports, 1.0, EpsLinks.one_leaf(budget), inf, 1e-6)
    assert bound <= least_end_s(owed, ports, budget) * (1 + 1e-9)
    nics = (ports + budget)[None, :]
    busiest = float((np.array([owed.sum(axis=0), owed.sum(axis=1)]) / nics).max())
    assert bound >= busiest * (1 - 1e-9)


@given(problems(3))
def test_no_circuits_of_nics_of_several_rates_end_before_the_deadline_bound(
    problem: Problem,
) -> None:
    owed, ports, budget = problem
    rates = RATES[: len(ports)]
    bound = deadline_bound_s(owed, ports, rates, EpsLinks.one_leaf(budget), inf, 1e-6)
    least_s = least_end_s(owed, ports, budget, rates)
    assert bound <= least_s * (1 + 1e-9)
    circuits = best_circuits(owed, ports, rates, EpsLinks.one_leaf(budget))
    assert (circuits.sum(axis=1) <= ports).all()
    assert end_s(owed, circuits, budget, rates) >= least_s * (1 - 1e-9)


def test_server_of_slow_nics_gets_more_circuits() -> None:
    owed = np.zeros((3, 3))
    owed[0, 1] = owed[1, 0] = 12.0
    owed[0, 2] = owed[2, 0] = 8.0
    links, ports = EpsLinks.one_leaf(np.array([5.0, 1.0, 1.0])), np.array([2, 2, 2])
    even = best_circuits(owed, ports, 4.0, links)
    assert even[0].tolist() == [0, 1, 1]
    slow = best_circuits(owed, ports, np.array([4.0, 0.25, 4.0]), links)
    assert slow[0].tolist() == [0, 2, 0]


@given(problems(6), st.floats(0.1, 300))
def test_deadline_circuits_are_symmetric_and_fit_the_ports(problem: Problem, time: float) -> None:
    owed, ports, budget = problem
    counts = deadline_circuits(owed, ports, 1.0, EpsLinks.one_leaf(budget), time)
    assert (counts == counts.T).all()
    assert (counts.sum(axis=1) <= ports).all()
    assert not counts.diagonal().any()
    assert ((owed + owed.T)[counts > 0] > 0).all()


def test_a_hot_server_to_which_many_owe_a_little_fills_few_circuits() -> None:
    """Ten owe it 1 each: three circuits carry 1 each, the EPS (0.1 per second) 7, in 70 s."""
    owed = np.zeros((11, 11))
    owed[1:, 0] = 1.0
    ports, budget = np.full(11, 3), np.full(11, 0.1)
    links = EpsLinks.one_leaf(budget)
    bound = deadline_bound_s(owed, ports, 1.0, links, inf, 1e-6)
    assert bound == pytest.approx(70.0, rel=1e-5)
    counts = deadline_circuits(owed, ports, 1.0, links, bound)
    assert counts[0].sum() == 3
    assert end_s(owed, counts, budget) == pytest.approx(70.0)


def test_server_whose_circuits_have_to_be_fuller_comes_first() -> None:
    """Two servers owe as much too much; one of them has one NIC left for it, the other two."""
    owed = np.zeros((3, 3))
    owed[0, 2] = owed[1, 2] = 5.0
    counts = deadline_circuits(
        owed, np.array([2, 1, 1]), 1.0, EpsLinks.one_leaf(np.ones(3)), time=1.0
    )
    assert counts.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize("seed", range(20))
def test_demand_and_its_transpose_have_the_same_deadline_circuits(seed: int) -> None:
    owed = demand_matrix(6, seed, "pareto") / 1e8
    nics = np.random.default_rng(seed).uniform(0.5, 2.0, 6)
    of, transposed = (
        deadline_circuits(each, np.arange(1, 7) // 2, nics, EpsLinks.one_leaf(nics[::-1]), 1.0)
        for each in (owed, owed.T)
    )
    assert of.tolist() == transposed.tolist()


def test_deadline_circuits_prefer_servers_that_would_be_late() -> None:
    """Two owe the same server, and one of them has three times the NICs to the EPS."""
    owed = np.zeros((3, 3))
    owed[0, 2] = owed[1, 2] = 10.0
    links = EpsLinks.one_leaf(np.array([1.0, 3.0, 9.0]))
    counts = deadline_circuits(owed, np.array([1, 1, 1]), 1.0, links, 4.0)
    assert counts.tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]


def test_deadline_bound_is_infinite_if_a_server_that_owes_has_no_nic() -> None:
    owed = np.array([[0.0, 1.0], [0.0, 0.0]])
    links = EpsLinks.one_leaf(np.array([0.0, 1.0]))
    assert deadline_bound_s(owed, np.array([0, 1]), 1.0, links, inf, 1e-3) == inf


def test_no_demand_ends_at_once_and_needs_no_circuits() -> None:
    owed, ports, links = np.zeros((3, 3)), np.full(3, 2), EpsLinks.one_leaf(np.ones(3))
    assert deadline_bound_s(owed, ports, 1.0, links, 0.0, 1e-3) == 0.0
    assert not deadline_circuits(owed, ports, 1.0, links, 0.0).any()
