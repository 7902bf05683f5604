"""The rotation of RotorNet: every pair meets once a round, and slots follow each other."""

from itertools import chain, combinations, cycle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.planner.arrays import circuit_counts
from moefabric.planner.round_robin import RoundRobin, slots, tournament
from tests.support.planner_cases import fabric

FABRIC = fabric(1, 4, optical=1, electrical=1)
NO_DEMAND = DemandMatrix(FABRIC.servers, np.zeros((4, 4)))


@given(st.integers(2, 17))
def test_tournament_pairs_every_two_servers_once(servers: int) -> None:
    rounds = tournament(servers)
    assert sorted(pair for turn in rounds for pair in turn) == list(combinations(range(servers), 2))
    for turn in rounds:
        ends = [server for pair in turn for server in pair]
        assert len(set(ends)) == len(ends) == servers - servers % 2


def test_no_slot_without_optical_nics() -> None:
    assert slots(4, 0) == []


@given(st.integers(2, 9), st.integers(1, 6))
def test_slots_give_every_pair_as_many_circuits(servers: int, degree: int) -> None:
    counts = [circuit_counts(servers, pairs) for pairs in slots(servers, degree)]
    total = np.sum(counts, axis=0)[~np.eye(servers, dtype=bool)]
    assert total.min() == total.max() > 0
    assert all(slot.sum(axis=1).max() <= degree for slot in counts)


@given(st.integers(2, 9), st.integers(1, 6))
def test_slots_go_through_the_rounds_in_order(servers: int, degree: int) -> None:
    pairs = list(chain.from_iterable(slots(servers, degree)))
    rounds = chain.from_iterable(cycle(tournament(servers)))
    assert pairs == [pair for pair, _ in zip(rounds, pairs, strict=False)]


def test_round_robin_rotates_whatever_the_demand() -> None:
    lit, sequence = CircuitSet(), []
    for _ in range(4):
        lit = RoundRobin().circuits(FABRIC, FABRIC.regions[0], NO_DEMAND, lit)
        sequence.append(str(lit))
    assert sequence == [
        "s0/o0~s3/o0 s1/o0~s2/o0",
        "s0/o0~s1/o0 s2/o0~s3/o0",
        "s0/o0~s2/o0 s1/o0~s3/o0",
        "s0/o0~s3/o0 s1/o0~s2/o0",
    ]


def test_round_robin_starts_anew_from_circuits_that_are_no_slot() -> None:
    current = CircuitSet.of(["s0/o0~s1/o0"])
    lit = RoundRobin().circuits(FABRIC, FABRIC.regions[0], NO_DEMAND, current)
    assert sorted(slots(4, 1)[0]) == [(0, 3), (1, 2)]
    assert str(lit) == "s0/o0~s3/o0 s1/o0~s2/o0"
