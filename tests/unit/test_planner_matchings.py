"""Matchings, and the policies that are made of them: Helios's, TopoOpt's, RotorNet's."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.planner import matching, matchings, round_robin, topoopt
from controller.planner.policy import Pair, counts
from moefabric.circuits import CircuitSet
from moefabric.demand import DemandMatrix
from moefabric.topology import Eps, Fabric, Ocs, Region


def fabric(servers: int, optical: int) -> Fabric:
    names = tuple(f"s{i}" for i in range(servers))
    region = Region("r0", 0, names, Ocs("ocs0", servers * optical))
    return Fabric("f", (region,), 8, optical, 1, 100e9, Eps(servers))


@st.composite
def worths(draw: st.DrawFn) -> np.ndarray:
    """What pairs are worth, above the diagonal; whole numbers, so that sums are exact."""
    servers = draw(st.integers(2, 6))
    flat = draw(st.lists(st.integers(0, 50), min_size=servers**2, max_size=servers**2))
    return np.triu(np.array(flat, dtype=np.float64).reshape(servers, servers), 1)


def best_worth(worth: np.ndarray) -> float:
    """By trying every matching."""

    def most(left: tuple[int, ...]) -> float:
        if len(left) < 2:
            return 0.0
        first, rest = left[0], left[1:]
        alone = most(rest)
        with_one = (worth[first, other] + most(tuple(o for o in rest if o != other)) for other in rest)
        return float(max(alone, *with_one))

    return most(tuple(range(len(worth))))


@given(worths())
@settings(max_examples=40, deadline=None)
def test_the_heaviest_matching_is_a_matching_and_none_is_heavier(worth: np.ndarray) -> None:
    matched = matchings.heaviest(worth)
    ends = [server for pair in matched for server in pair]
    assert len(set(ends)) == len(ends)
    assert all(i < j and worth[i, j] > 0 for i, j in matched)
    assert sum(worth[pair] for pair in matched) == best_worth(worth)


def owed(servers: int, pairs: dict[Pair, float]) -> np.ndarray:
    made = np.zeros((servers, servers))
    for (i, j), each in pairs.items():
        made[i, j] = made[j, i] = each
    return made


@pytest.mark.parametrize(
    ("pairs", "degree", "lit"),
    [
        pytest.param(
            {(0, 1): 6, (1, 2): 9, (2, 3): 6}, 1, [(0, 1), (2, 3)], id="two-pairs-outweigh-the-hottest"
        ),
        pytest.param({(0, 1): 9, (0, 2): 1}, 2, [(0, 1), (0, 1)], id="a-circuit-carries-half-of-the-busiest"),
        pytest.param({(0, 1): 5, (0, 2): 5}, 2, [(0, 1), (0, 2)], id="what-is-carried-is-taken-off"),
        pytest.param({}, 3, [], id="no-demand-lights-nothing"),
    ],
)
def test_helios_lights(pairs: dict[Pair, float], degree: int, lit: list[Pair]) -> None:
    assert sorted(matching.order(owed(4, pairs), degree)) == lit


def test_topoopt_halves_what_another_circuit_is_worth() -> None:
    assert topoopt.order(owed(3, {(0, 1): 9, (0, 2): 4, (1, 2): 1}), 3) == [(0, 1), (0, 1), (0, 2)]


def test_topoopt_lights_once() -> None:
    made = fabric(4, 2)
    first, other = (
        DemandMatrix(made.servers, np.random.default_rng(seed).pareto(1.0, (4, 4))) for seed in (1, 2)
    )
    policy = topoopt.TopoOpt()
    lit = policy.circuits(made, made.regions[0], first, CircuitSet())
    assert policy.circuits(made, made.regions[0], other, CircuitSet()) != lit
    assert policy.circuits(made, made.regions[0], other, lit) == lit


@given(st.integers(2, 17))
def test_in_a_tournament_every_two_servers_meet_exactly_once(servers: int) -> None:
    each = round_robin.turns(servers)
    assert sorted(pair for turn in each for pair in turn) == list(combinations(range(servers), 2))
    for turn in each:
        ends = [server for pair in turn for server in pair]
        assert len(set(ends)) == len(ends) == servers - servers % 2


@given(st.integers(2, 9), st.integers(1, 6))
def test_a_cycle_gives_every_pair_as_much_light(servers: int, degree: int) -> None:
    total = np.sum(round_robin.slots(servers, degree), axis=0)
    apart = total[~np.eye(servers, dtype=bool)]
    assert apart.min() == apart.max() > 0
    assert all(np.sum(slot, axis=1).max() <= degree for slot in round_robin.slots(servers, degree))


def test_rotor_light_goes_round_whatever_is_owed() -> None:
    made, policy = fabric(4, 1), round_robin.RoundRobin()
    nothing = DemandMatrix(made.servers, np.zeros((4, 4)))
    lit, seen = CircuitSet(), []
    for _ in range(4):
        lit = policy.circuits(made, made.regions[0], nothing, lit)
        seen.append(str(lit))
    assert seen == [
        "s0/o0~s3/o0 s1/o0~s2/o0",
        "s0/o0~s1/o0 s2/o0~s3/o0",
        "s0/o0~s2/o0 s1/o0~s3/o0",
        "s0/o0~s3/o0 s1/o0~s2/o0",
    ]


def test_light_that_is_no_slot_starts_the_cycle_anew() -> None:
    made, policy = fabric(4, 1), round_robin.RoundRobin()
    nothing = DemandMatrix(made.servers, np.zeros((4, 4)))
    lit = policy.circuits(made, made.regions[0], nothing, CircuitSet.of(["s0/o0~s1/o0"]))
    assert np.array_equal(round_robin.slots(4, 1)[0], counts(4, [(0, 3), (1, 2)]))
    assert str(lit) == "s0/o0~s3/o0 s1/o0~s2/o0"
