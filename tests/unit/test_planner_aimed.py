"""Circuits for a deadline, and the deadline that nobody meets: against every choice of circuits there is, where they are few."""

from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.planner import aimed, water
from controller.planner.water import Array, EpsLinks

Ints = np.ndarray


def links(budget: Array) -> EpsLinks:
    """A non-blocking EPS to which each server has so many bytes a second each way."""
    n = len(budget)
    return EpsLinks(np.ones((1, n)), np.zeros((0, n)), np.zeros((n, n), dtype=bool), np.tile(budget, 2))


@st.composite
def owings(draw: st.DrawFn, most: int = 4) -> tuple[Array, Ints, Array]:
    """What two servers or more owe, their ports, and their bytes a second to the EPS; a circuit carries one byte a second."""
    servers = draw(st.integers(2, most))
    cells = st.one_of(st.just(0.0), st.floats(0.01, 100))
    owed = np.array(draw(st.lists(cells, min_size=servers**2, max_size=servers**2))).reshape(servers, servers)
    np.fill_diagonal(owed, 0.0)
    ports = np.array(draw(st.lists(st.integers(0, 2), min_size=servers, max_size=servers)))
    budget = np.array(draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=servers, max_size=servers)))
    return owed, ports, budget


def ends(owed: Array, lit: Ints, budget: Array) -> float:
    eps = links(budget)
    return max(water.seconds(way, lit.astype(float), eps) for way in (owed, owed.T))


def least(owed: Array, ports: Ints, budget: Array) -> float:
    """By trying all circuits."""
    n, best = len(owed), inf
    pairs = [(i, j) for i in range(n) for j in range(i)]
    for chosen in product(range(3), repeat=len(pairs)):
        lit = np.zeros((n, n), dtype=int)
        for (i, j), count in zip(pairs, chosen, strict=True):
            lit[i, j] = lit[j, i] = count
        if (lit.sum(axis=1) <= ports).all():
            best = min(best, ends(owed, lit, budget))
    return best


@given(owings())
@settings(max_examples=25, deadline=None)
def test_nothing_ends_sooner_than_the_soonest(case: tuple[Array, Ints, Array]) -> None:
    owed, ports, budget = case
    optimum = least(owed, ports, budget)
    low = aimed.soonest(owed, ports, 1.0, np.tile(budget, 2), inf, 1e-6)
    assert low <= optimum * (1 + 1e-9)
    nics = (ports + budget)[None, :]
    busiest = float((np.array([owed.sum(axis=0), owed.sum(axis=1)]) / nics).max())
    assert low >= busiest * (1 - 1e-9)


@given(owings(6), st.floats(0.1, 300))
@settings(max_examples=60, deadline=None)
def test_circuits_are_symmetric_and_no_server_has_more_than_ports(
    case: tuple[Array, Ints, Array], time: float
) -> None:
    owed, ports, budget = case
    lit = aimed.circuits(owed, ports, 1.0, np.tile(budget, 2), time)
    assert (lit == lit.T).all()
    assert (lit.sum(axis=1) <= ports).all()
    assert not lit.diagonal().any()
    assert ((owed + owed.T)[lit > 0] > 0).all()


def test_one_hot_server_that_many_owe_a_little_fills_few_circuits() -> None:
    """Ten owe it 1 each: three circuits carry 1 each, the EPS of a tenth of their rate the other 7, in 70 s."""
    owed = np.zeros((11, 11))
    owed[1:, 0] = 1.0
    ports, budget = np.full(11, 3), np.full(22, 0.1)
    low = aimed.soonest(owed, ports, 1.0, budget, inf, 1e-6)
    assert low == pytest.approx(70.0, rel=1e-5)
    lit = aimed.circuits(owed, ports, 1.0, budget, low)
    assert lit[0].sum() == 3
    assert ends(owed, lit, budget[:11]) == pytest.approx(70.0)


def test_the_late_come_first() -> None:
    """Two owe the same server, and one of them has three times the NICs to the EPS."""
    owed = np.zeros((3, 3))
    owed[0, 2] = owed[1, 2] = 10.0
    lit = aimed.circuits(owed, np.array([1, 1, 1]), 1.0, np.tile([1.0, 3.0, 9.0], 2), 4.0)
    assert lit.tolist() == [[0, 0, 1], [0, 0, 0], [1, 0, 0]]


def test_a_server_that_owes_and_has_no_nic_never_ends() -> None:
    owed = np.array([[0.0, 1.0], [0.0, 0.0]])
    assert aimed.soonest(owed, np.array([0, 1]), 1.0, np.array([0.0, 1, 0, 1]), inf, 1e-3) == inf


def test_nothing_owed_ends_at_once_and_lights_nothing() -> None:
    owed, ports, budget = np.zeros((3, 3)), np.full(3, 2), np.full(6, 1.0)
    assert aimed.soonest(owed, ports, 1.0, budget, 0.0, 1e-3) == 0.0
    assert not aimed.circuits(owed, ports, 1.0, budget, 0.0).any()
