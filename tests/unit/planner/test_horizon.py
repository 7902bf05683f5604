"""When circuits move: what a reconfiguration takes against what it saves in the rest of a job."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.topology import Fabric
from moefabric.planner.even_circuits import EVEN
from moefabric.planner.horizon import Horizon
from moefabric.planner.joint import Joint
from moefabric.planner.joint_multihop import JointMultihop
from moefabric.planner.plan import Plan
from moefabric.planner.policy import Policy
from tests.support.fabrics import fabric
from tests.support.paths import EXAMPLES
from tests.support.planner_cases import demand_matrix
from tests.support.policies import POLICIES

TRACE = EXAMPLES / "data/training-1200-steps.npz"
ALIKE = 2
"""All-to-alls between two reconfigurations of a region with several layers."""


@pytest.mark.parametrize(
    ("horizon", "times", "choice"),
    [
        pytest.param(Horizon(), (5, 4, 3, 0), "best", id="moving-takes-no-time"),
        pytest.param(Horizon(), (3, 3, 3, 0), "lit", id="equal-circuits-stay"),
        pytest.param(Horizon(4, 4), (5, 4, 3, 7), "best", id="one-move-saves-eight"),
        pytest.param(Horizon(4, 4), (5, 4, 3, 9), "lit", id="one-move-costs-more-than-it-saves"),
        pytest.param(Horizon(2, 20), (5, 4, 3, 3), "even", id="one-move-to-even-ones-saves-most"),
        pytest.param(Horizon(2, 20), (5, 4, 3, 1), "best", id="moves-for-every-demand-save-most"),
        pytest.param(Horizon(2, 2), (5, 4, 3, 3), "best", id="the-job-ends-before-a-second-move"),
        pytest.param(Horizon(20, 20), (5, 4, 3, 3), "best", id="the-demand-stays-to-the-end"),
        pytest.param(Horizon(1, 20), (5, 4, 3, 1.5), "even", id="a-move-for-every-all-to-all"),
        pytest.param(Horizon(0, 0), (5, 4, 3, 1), "best", id="one-all-to-all-is-left-at-least"),
        pytest.param(Horizon(0, 0), (5, 4, 3, 2), "lit", id="as-long-with-a-move-as-without"),
    ],
)
def test_choice_has_the_least_total(
    horizon: Horizon, times: tuple[float, float, float, float], choice: str
) -> None:
    """Seconds over lit, even and best circuits, and of a reconfiguration."""
    assert horizon.choice(*times) == choice


@pytest.mark.parametrize(
    ("horizon", "times", "stays"),
    [
        pytest.param(Horizon(2, 10), (3, 2, 10), True, id="ten-save-what-a-move-takes"),
        pytest.param(Horizon(2, 10), (3, 2, 9.9), False, id="ten-save-more-than-a-move-takes"),
        pytest.param(Horizon(10, 2), (3, 2, 9.9), False, id="the-present-demand-is-left"),
        pytest.param(Horizon(0, 0), (3, 2, 1), True, id="one-is-left-at-least"),
        pytest.param(Horizon(0, 0), (3, 2, 0.9), False, id="one-saves-more-than-a-move-takes"),
        pytest.param(Horizon(), (0, 0, 0), True, id="nothing-is-owed"),
    ],
)
def test_circuits_stay_if_no_others_could_save_the_time_of_a_move(
    horizon: Horizon, times: tuple[float, float, float], stays: bool
) -> None:
    """Seconds over lit circuits, of the bound, and of a reconfiguration."""
    assert horizon.stays(*times) == stays


def test_no_circuits_are_no_choice() -> None:
    assert Horizon().choice(1.0, 3.0, 2.0, 100.0, lit=False) == "best"


@cache
def layer_demands(layers: int, iterations: int) -> tuple[DemandMatrix, ...]:
    """Return the demands of a job's requests for circuits: layers forward, then backward."""
    counts = np.load(TRACE)["counts"].astype(np.float64)
    order = [*range(layers), *reversed(range(layers - 1))]
    names = fabric(7, 1, regions=(8,)).servers
    owed = [
        counts[100 * iteration, layer % counts.shape[1]].reshape(8, 8, 2).sum(axis=2)
        for iteration in range(iterations)
        for layer in order
    ]
    # About 100 MB from each server, as in Mixtral 8x22B.
    return tuple(DemandMatrix(names, tokens / tokens.sum() * 8e8) for tokens in owed)


def job(wired: Fabric, policy: Policy, demands: tuple[DemandMatrix, ...]) -> tuple[float, int]:
    """Return the seconds of all all-to-alls and reconfigurations of a job, and how many moved."""
    region, ocs = wired.regions[0], wired.regions[0].ocs
    assert ocs is not None
    total, moves, lit = 0.0, 0, CircuitSet()
    for number, demand in enumerate(demands):
        if policy.reconfigures or not lit:
            if isinstance(policy, Joint | JointMultihop):
                left = ALIKE * (len(demands) - number)
                policy = replace(policy, horizon=Horizon(ALIKE, left))
            before, lit = lit, policy.circuits(wired, region, demand, lit)
            moves += before != lit
            total += ocs.settle_ns / 1e9 if before != lit else 0.0
        total += ALIKE * Plan(wired, region, demand, policy, lit).predicted_s
    return total, moves


@pytest.mark.parametrize("policy", ["joint", "joint-multihop"])
@pytest.mark.parametrize(("settle_ms", "most_moves"), [(25, 1), (5, 14), (0, 14)])
def test_circuits_move_only_where_a_job_ends_sooner(
    policy: str, settle_ms: int, most_moves: int
) -> None:
    """Beside circuits that stand, and beside the best circuits for each demand."""
    wired = fabric(7, 1, regions=(8,), settle_ns=settle_ms * 1_000_000)
    wired = replace(wired, forwarding=True)
    demands = layer_demands(layers=4, iterations=2)
    chosen_s, moves = job(wired, POLICIES[policy], demands)
    standing = {"joint": "uniform", "joint-multihop": "multihop"}[policy]
    standing_s, _ = job(wired, POLICIES[standing], demands)
    assert chosen_s <= standing_s * 1.002
    assert moves <= most_moves
    if not settle_ms and policy == "joint":
        assert moves > 1


def test_permutations_are_worth_moving_for() -> None:
    """Each server owes one other most: evenly spread circuits are far from what it needs."""
    wired = replace(fabric(6, 2, regions=(8,), settle_ns=25_000_000), forwarding=True)
    region = wired.regions[0]
    rows = np.roll(np.eye(8), 3, axis=1) * 4e9 + 4e7
    np.fill_diagonal(rows, 0.0)
    demand = DemandMatrix(wired.servers, rows)
    even = EVEN.circuits(wired, region, demand, CircuitSet())
    few, many = (JointMultihop(horizon=Horizon(count, count)) for count in (1, 1000))
    assert few.circuits(wired, region, DemandMatrix(wired.servers, rows / 100), even) == even
    moved = many.circuits(wired, region, demand, even)
    assert moved != even
    seconds = [Plan(wired, region, demand, many, lit).predicted_s for lit in (even, moved)]
    assert seconds[1] < 0.97 * seconds[0]


@pytest.mark.parametrize("seed", range(6))
def test_circuits_never_move_to_end_later(seed: int) -> None:
    """Pairs that owe most get parallel circuits, of which those that forward depend on the NICs."""
    wired = replace(fabric(7, 1, regions=(8,), settle_ns=0), forwarding=True)
    region, draw = wired.regions[0], np.random.default_rng(seed)
    rows = np.eye(8)[draw.permutation(8)] + 0.02 * draw.random((8, 8))
    np.fill_diagonal(rows, 0.0)
    demand = DemandMatrix(wired.servers, rows * 1e9)
    policy, even = POLICIES["joint-multihop"], EVEN.circuits(wired, region, demand, CircuitSet())
    moved = policy.circuits(wired, region, demand, even)
    before_s, after_s = (
        Plan(wired, region, demand, policy, lit).predicted_s for lit in (even, moved)
    )
    assert after_s <= before_s * 1.001


@given(
    st.integers(3, 8),
    st.integers(1, 5),
    st.integers(0, 2),
    st.integers(0, 10_000),
    st.sampled_from(["skewed", "pareto", "sparse"]),
)
def test_chosen_circuits_end_no_later_than_even_ones_or_those_of_joint(
    servers: int, optical: int, electrical: int, seed: int, shape: str
) -> None:
    wired = fabric(optical, electrical, regions=(servers,), settle_ns=0)
    wired = replace(wired, forwarding=True)
    region = wired.regions[0]
    demand = DemandMatrix(wired.servers, demand_matrix(servers, seed, shape))
    policy = POLICIES["joint-multihop"]
    lit = policy.circuits(wired, region, demand, CircuitSet())
    for others in (EVEN, POLICIES["joint"]) if electrical else (EVEN,):
        before = others.circuits(wired, region, demand, CircuitSet())
        predicted_s = Plan(wired, region, demand, policy, before).predicted_s
        assert Plan(wired, region, demand, policy, lit).predicted_s <= predicted_s * 1.004
    assert policy.circuits(wired, region, demand, lit) == lit
    assert policy.circuits(wired, region, demand.combine(), CircuitSet()) == lit
