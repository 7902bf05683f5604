"""How near `joint` comes to the optimum of a mixed-integer program, and that `spill` never wins.

The optima of 500 demands are on file; `tests/bench/bench_joint.py` computes all of them, and these
tests some.
"""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.planner.joint import Joint
from moefabric.planner.mixnet import SPILL
from tests.support.joint_cases import CASES, OPTIMA, JointCase, joint_cases
from tests.support.planner_cases import fabric

ALMOST = 1 + 1e-9


def joint_s(case: JointCase) -> float:
    region = case.wired.regions[0]
    return case.end_s(Joint().circuits(case.wired, region, case.demand, case.lit))


def spill_s(case: JointCase) -> float:
    region = case.wired.regions[0]
    return case.end_s(SPILL.circuits(case.wired, region, case.demand, case.lit))


@pytest.mark.parametrize(
    "numbers", [range(0, CASES, 7), pytest.param(range(CASES), marks=pytest.mark.nightly)]
)
def test_joint_is_within_a_hundredth_of_500_optima_and_never_later_than_spill(
    numbers: range,
) -> None:
    optima = json.loads(OPTIMA.read_text())
    assert len(optima) == CASES
    far, late = [], []
    for case in joint_cases(numbers):
        end_s, optimum_s = joint_s(case), optima[case.number]
        assert end_s * 1.0001 >= optimum_s, f"case {case.number} ends before its optimum"
        if end_s > 1.01 * optimum_s:
            far.append((case.number, case.split, case.shape, end_s / optimum_s))
        if end_s > spill_s(case) * ALMOST:
            late.append(case.number)
    assert (far, late) == ([], [])


def test_optima_on_file_are_those_of_the_program() -> None:
    optima = json.loads(OPTIMA.read_text())
    numbers = range(7, CASES, 20)
    for case in joint_cases(numbers):
        assert case.optimum_s() == pytest.approx(optima[case.number], rel=2e-4)


def test_joint_finds_the_optimum_where_it_gains_less_than_30_ms() -> None:
    wired = fabric(1, 4, 3, 1)
    rows = np.array([[0, 3, 3, 5], [3, 0, 2, 1], [0, 8, 0, 0], [1, 1, 3, 0]]) * 25e6
    demand = DemandMatrix(wired.servers, rows)
    case = JointCase(0, "digits", wired, demand, CircuitSet())
    assert case.optimum_s() == pytest.approx(6.27e-3, rel=1e-3)
    assert joint_s(case) <= 1.001 * case.optimum_s()


@given(st.integers(CASES, 2**31))
def test_joint_never_ends_later_than_spill_whatever_is_lit(number: int) -> None:
    """Current circuits that `joint` keeps may be Algorithm 1's, or better ones."""
    for case in joint_cases(range(number, number + 1)):
        assert joint_s(case) <= spill_s(case) * ALMOST
