"""Circuits that are spread evenly: full meshes, expanders, and what is lit already."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.config.policies import policy_named
from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.planner.arrays import Ints, circuit_counts, circuit_matrix
from moefabric.planner.even_circuits import (
    EVEN,
    EXPANDER,
    UNIFORM,
    RandomCircuits,
    _random_graph,
    _second_eigenvalue,
    even_order,
    expander_order,
    uniform_order,
)
from moefabric.planner.nic_assignment import assign_nics
from moefabric.planner.pair_order import Pair
from moefabric.planner.policy import Policy
from moefabric.planner.static import ring_order
from tests.support.fabrics import fabric

PORTS = st.lists(st.integers(0, 7), min_size=0, max_size=12)


def second_eigenvalue(counts: Ints) -> float:
    """Return the second largest eigenvalue of a regular graph, divided by its degree."""
    return float(np.linalg.eigvalsh(counts.astype(np.float64))[-2] / counts.sum(axis=1).max())


@pytest.mark.parametrize(("servers", "nics"), [(8, 7), (5, 4), (2, 1), (4, 7), (7, 6), (3, 5)])
def test_uniform_circuits_join_every_two_servers_equally_often(servers: int, nics: int) -> None:
    counts = circuit_counts(servers, uniform_order([nics] * servers))
    between = counts[~np.eye(servers, dtype=bool)]
    assert between.min() == nics // (servers - 1)
    assert between.max() - between.min() <= 1
    assert (counts.sum(axis=1) >= nics - servers % 2).all()
    assert (counts.sum(axis=1) <= nics).all()


@pytest.mark.parametrize(("servers", "nics"), [(16, 7), (32, 7), (32, 6), (9, 3), (8, 6), (31, 4)])
def test_expanders_use_all_nics_and_join_no_two_servers_twice(servers: int, nics: int) -> None:
    counts = circuit_counts(servers, expander_order([nics] * servers))
    assert counts.max() == 1
    assert (counts.sum(axis=1) <= nics).all()
    assert counts.sum() == servers * nics - servers * nics % 2


@pytest.mark.parametrize("nics", range(2, 8))
def test_random_graphs_join_no_two_servers_twice(nics: int) -> None:
    for seed in range(10):
        assert _random_graph([nics] * 8, np.random.RandomState(seed)).max() == 1


@pytest.mark.parametrize(("servers", "nics"), [(16, 7), (32, 7), (32, 4)])
def test_expanders_have_a_wide_spectral_gap(servers: int, nics: int) -> None:
    """No graph is much below 2 * sqrt(d - 1) / d (Alon-Boppana); a ring-like one is near 1."""
    counts = circuit_counts(servers, expander_order([nics] * servers))
    rings = circuit_counts(servers, ring_order([nics] * servers))
    assert second_eigenvalue(counts) <= 2 * np.sqrt(nics - 1) / nics
    assert second_eigenvalue(counts) <= 0.8 * second_eigenvalue(rings)


@given(PORTS)
def test_circuits_fit_unequal_ports_and_leave_none_dark_that_could_be_lit(ports: list[int]) -> None:
    for order in (uniform_order, expander_order, even_order):
        counts = circuit_counts(len(ports), order(ports))
        assert not counts.diagonal().any()
        assert (counts.sum(axis=1) <= ports).all()
        assert order(ports) == order(list(ports))
        dark = np.array(ports) - counts.sum(axis=1)
        assert (dark > 0).sum() <= 1


@pytest.mark.parametrize(
    ("servers", "pairs", "eigenvalue"),
    [
        pytest.param(4, list(combinations(range(4), 2)), -1 / 3, id="mesh"),
        pytest.param(4, [(0, 1), (1, 2), (2, 3)], 1 / 2, id="line-of-unequal-degrees"),
        pytest.param(5, [(0, 1), (1, 3), (3, 4)], 1 / 2, id="dark-server-does-not-count"),
        pytest.param(4, [(0, 1), (2, 3)], 1, id="two-parts"),
        pytest.param(2, [(0, 1)], -1, id="one-pair"),
        pytest.param(3, [], 0, id="no-circuits"),
    ],
)
def test_second_eigenvalue_tells_how_well_a_graph_connects(
    servers: int, pairs: list[Pair], eigenvalue: float
) -> None:
    found = _second_eigenvalue(circuit_counts(servers, pairs))
    assert found == pytest.approx(eigenvalue, abs=1e-12)


@given(st.lists(st.integers(2, 4), min_size=1, max_size=8))
def test_expanders_connect_all_servers_if_each_has_two_circuits(ports: list[int]) -> None:
    counts = circuit_counts(len(ports), expander_order(ports))
    reached = np.linalg.matrix_power(counts + np.eye(len(ports), dtype=np.int64), len(ports))
    assert (reached > 0).all()


def test_random_circuits_are_regular_and_depend_on_the_seed_alone() -> None:
    wired = fabric(3, 1, regions=(8,))
    region = wired.regions[0]
    demands = [DemandMatrix(region.servers, np.full((8, 8), size)) for size in (1.0, 9.0)]
    chosen = [
        policy_named(name).circuits(wired, region, demand, CircuitSet())
        for name in ("random", "random(seed=1)", "random(seed=2)")
        for demand in demands
    ]
    assert chosen[0] == chosen[1] == chosen[2] == chosen[3] != chosen[4] == chosen[5]
    for circuits in chosen:
        assert circuit_matrix(region.servers, circuits).sum(axis=1).tolist() == [3] * 8


def test_even_circuits_are_a_mesh_if_there_are_enough_nics() -> None:
    assert even_order([7] * 8) == uniform_order([7] * 8)
    assert even_order([6] * 8) == expander_order([6] * 8)


@pytest.mark.parametrize(
    "policy", [UNIFORM, EXPANDER, RandomCircuits(), EVEN], ids=lambda policy: policy.name
)
def test_lit_circuits_stay_whatever_the_demand(policy: Policy) -> None:
    wired = fabric(3, 1)
    region = wired.regions[0]
    demands = [DemandMatrix(region.servers, np.full((4, 4), size)) for size in (1.0, 9.0)]
    first = policy.circuits(wired, region, demands[0], CircuitSet())
    assert circuit_matrix(region.servers, first).tolist() == (1 - np.eye(4)).tolist()
    assert policy.circuits(wired, region, demands[1], first) == first
    other = assign_nics(wired, region, circuit_counts(4, [(0, 1), (2, 3)]), CircuitSet())
    assert policy.circuits(wired, region, demands[1], other) == other
