"""Maximum-weight matchings, and the policies of Helios and TopoOpt that are made of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.planner.arrays import Array
from moefabric.planner.matching import helios_order, max_weight_matching
from moefabric.planner.pair_order import Pair
from moefabric.planner.topoopt import TopoOpt, matching_order
from tests.support.planner_cases import fabric


@st.composite
def weight_matrices(draw: st.DrawFn) -> Array:
    """Weights of pairs, above the diagonal; whole numbers, so that sums are exact."""
    servers = draw(st.integers(2, 6))
    flat = draw(st.lists(st.integers(0, 50), min_size=servers**2, max_size=servers**2))
    return np.triu(np.array(flat, dtype=np.float64).reshape(servers, servers), 1)


def greatest_weight(weights: Array) -> float:
    """Try every matching."""

    def greatest(servers: tuple[int, ...]) -> float:
        if len(servers) < 2:
            return 0.0
        first, rest = servers[0], servers[1:]
        paired = (
            weights[first, other] + greatest(tuple(o for o in rest if o != other)) for other in rest
        )
        return float(max(greatest(rest), *paired))

    return greatest(tuple(range(len(weights))))


@given(weight_matrices())
def test_max_weight_matching_is_a_matching_of_greatest_weight(weights: Array) -> None:
    matched = max_weight_matching(weights)
    ends = [server for pair in matched for server in pair]
    assert len(set(ends)) == len(ends)
    assert all(i < j and weights[i, j] > 0 for i, j in matched)
    assert sum(weights[pair] for pair in matched) == greatest_weight(weights)


def symmetric_demand(servers: int, pairs: dict[Pair, float]) -> Array:
    demand = np.zeros((servers, servers))
    for (i, j), owed in pairs.items():
        demand[i, j] = demand[j, i] = owed
    return demand


@pytest.mark.parametrize(
    ("pairs", "degree", "order"),
    [
        pytest.param(
            {(0, 1): 6, (1, 2): 9, (2, 3): 6},
            1,
            [(0, 1), (2, 3)],
            id="two-pairs-outweigh-the-hottest",
        ),
        pytest.param(
            {(0, 1): 9, (0, 2): 1}, 2, [(0, 1), (0, 1)], id="a-circuit-carries-half-of-the-busiest"
        ),
        pytest.param(
            {(0, 1): 5, (0, 2): 5}, 2, [(0, 1), (0, 2)], id="carried-demand-is-subtracted"
        ),
        pytest.param({}, 3, [], id="no-demand-no-circuit"),
    ],
)
def test_helios_order(pairs: dict[Pair, float], degree: int, order: list[Pair]) -> None:
    assert sorted(helios_order(symmetric_demand(4, pairs), [degree] * 4)) == order


def test_topoopt_halves_the_worth_of_another_circuit() -> None:
    demand = symmetric_demand(3, {(0, 1): 9, (0, 2): 4, (1, 2): 1}) + 99 * np.eye(3)
    assert matching_order(demand, 3) == [(0, 1), (0, 1), (0, 2)]


def test_topoopt_keeps_circuits_once_set() -> None:
    wired = fabric(1, 4, optical=2, electrical=1)
    region = wired.regions[0]
    first, other = (
        DemandMatrix(wired.servers, np.random.default_rng(seed).pareto(1.0, (4, 4)))
        for seed in (1, 2)
    )
    lit = TopoOpt().circuits(wired, region, first, CircuitSet())
    assert TopoOpt().circuits(wired, region, other, CircuitSet()) != lit
    assert TopoOpt().circuits(wired, region, other, lit) == lit


@pytest.mark.parametrize(
    ("servers", "optical", "pairs", "lit"),
    [
        pytest.param(4, 2, {(0, 1): 9, (2, 3): 9}, "01 03 12 23", id="ring-of-all-nics"),
        pytest.param(4, 3, {(0, 1): 9, (2, 3): 9}, "01 01 03 12 23 23", id="ring-and-a-matching"),
        pytest.param(3, 2, {(0, 1): 9}, "01 02 12", id="ring-of-three"),
        pytest.param(2, 2, {}, "01", id="two-servers-need-no-way-back"),
        pytest.param(4, 1, {(0, 1): 9}, "01", id="one-nic-makes-no-ring"),
        pytest.param(
            4, 2, {(0, 1): 6, (1, 2): 9, (2, 3): 6}, "01 12 23", id="matchings-connect-all"
        ),
    ],
)
def test_topoopt_ring_connects_what_matchings_leave_apart_on_a_patch_panel(
    servers: int, optical: int, pairs: dict[Pair, float], lit: str
) -> None:
    wired = replace(fabric(1, servers, optical, 0), eps=None, patch_panel=True)
    demand = DemandMatrix(wired.servers, symmetric_demand(servers, pairs))
    chosen = TopoOpt().circuits(wired, wired.regions[0], demand, CircuitSet())
    joined = (sorted(end.removeprefix("s") for end in circuit.pair) for circuit in chosen)
    assert " ".join(sorted(map("".join, joined))) == lit


def test_topoopt_needs_no_ring_where_an_eps_connects_servers() -> None:
    wired = fabric(1, 4, optical=2, electrical=1)
    demand = DemandMatrix(wired.servers, symmetric_demand(4, {(0, 1): 9, (2, 3): 9}))
    chosen = TopoOpt().circuits(wired, wired.regions[0], demand, CircuitSet())
    assert sorted(circuit.pair for circuit in chosen) == [("s0", "s1")] * 2 + [("s2", "s3")] * 2
