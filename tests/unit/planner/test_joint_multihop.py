"""Circuits for the split in which servers forward: the candidates, and when they are lit."""

from dataclasses import replace

import numpy as np
import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.topology import Fabric
from moefabric.planner.arrays import Array, Ints
from moefabric.planner.even_circuits import EVEN, even_order
from moefabric.planner.horizon import Horizon
from moefabric.planner.joint_multihop import JointMultihop, _Forwarded
from moefabric.planner.multihop import least_s
from tests.support.fabrics import fabric
from tests.support.planner_cases import demand_matrix
from tests.support.policies import POLICIES


def forwarding(servers: int, optical: int, electrical: int, settle_ns: int = 0) -> Fabric:
    wired = fabric(optical, electrical, regions=(servers,), settle_ns=settle_ns)
    return replace(wired, forwarding=True)


def candidates(wired: Fabric, owed: Array) -> list[Ints]:
    return list(_Forwarded.of(wired, wired.regions[0], owed)._demand_driven())


@pytest.mark.parametrize(
    ("optical", "spread"),
    [(1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (4, [0, 1, 2, 3]), (6, [0, 1, 2, 5])],
)
def test_candidates_spread_some_nics_evenly(optical: int, spread: list[int]) -> None:
    """Without demand, the other NICs stay dark."""
    found = candidates(forwarding(6, optical, 0), np.zeros((6, 6)))
    assert [counts.sum(axis=1).tolist() for counts in found] == [[nics] * 6 for nics in spread]


@pytest.mark.parametrize(
    ("joined", "apart", "circuits"),
    [
        # A server with 2 NICs sends x + y at best in (x + y) / 2, in which an even circuit carries
        # x + y of the 2 x that a pair owes in both directions: x - y are left, beside 2 y.
        pytest.param(4e9, 1e9, 2, id="more-is-left-than-the-other-pair-owes"),
        pytest.param(2e9, 1e9, 1, id="the-other-pair-owes-more"),
    ],
)
def test_other_nics_go_to_the_pairs_of_which_even_circuits_leave_most(
    joined: float, apart: float, circuits: int
) -> None:
    ((a, b), _) = even_order([1] * 4)
    other = next(server for server in range(4) if server not in {a, b})
    owed = np.zeros((4, 4))
    owed[a, b] = owed[b, a] = joined
    owed[a, other] = owed[other, a] = apart
    counts = candidates(forwarding(4, 2, 0), owed)[1]
    assert (counts[a, b], counts[a, other]) == (circuits, 2 - circuits)


@pytest.mark.parametrize("policy", ["joint", "joint-multihop"])
def test_first_circuits_are_lit_however_little_is_owed(policy: str) -> None:
    wired = forwarding(4, 3, 1, settle_ns=10**9)
    demand = DemandMatrix(wired.servers, 1.0 - np.eye(4))
    assert POLICIES[policy].circuits(wired, wired.regions[0], demand, CircuitSet())


@pytest.mark.parametrize("seed", [7, 11, 24])
def test_circuits_move_if_the_best_save_more_than_moving_takes(seed: int) -> None:
    demand = DemandMatrix(forwarding(6, 2, 1).servers, demand_matrix(6, seed, "pareto"))
    policy = JointMultihop(horizon=Horizon(1, 1))

    def moved(settle_s: float) -> CircuitSet:
        wired = forwarding(6, 2, 1, settle_ns=round(settle_s * 1e9))
        return policy.circuits(wired, wired.regions[0], demand, even)

    wired = forwarding(6, 2, 1)
    even = EVEN.circuits(wired, wired.regions[0], demand, CircuitSet())
    best = moved(0.0)
    saved_s = least_s(wired, demand, even) - least_s(wired, demand, best)
    assert saved_s > 0
    assert moved(0.95 * saved_s) == best
    assert moved(1.05 * saved_s) == even
