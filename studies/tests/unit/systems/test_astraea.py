"""Study of Astraea: measures of fairness, and the training's model of flows at a queue."""

import numpy as np
import pytest
from moefabric_studies.systems.astraea.study import convergence_s, deviation, jain, late_rates

BIN_S = 0.1


def test_jain_is_one_for_equal_shares_and_one_third_for_one_of_three() -> None:
    assert jain(np.array([5.0, 5.0, 5.0])) == pytest.approx(1)
    assert jain(np.array([9.0, 0.0, 0.0])) == pytest.approx(1 / 3)
    assert jain(np.zeros(3)) == 0


def test_late_rates_leave_the_start_out() -> None:
    rates = np.concatenate([np.full((2, 50), 99.0), np.full((2, 50), [[3.0], [5.0]])], axis=1)
    assert late_rates(rates, BIN_S).tolist() == [3.0, 5.0]


def test_flow_converges_at_the_end_of_its_first_second_near_its_share() -> None:
    rates = np.concatenate([np.zeros(20), np.full(30, 5.0), np.full(50, 9.0)])
    # Of a second, 8 of 10 bins at 9 and 2 at 5 have a mean of 8.2; 9 and 1 of 8.6.
    assert convergence_s(rates, BIN_S, 2.0, 10.0) == pytest.approx(3.9)
    assert convergence_s(rates, BIN_S, 2.0, 20.0) is None
    assert convergence_s(rates, BIN_S, 9.5, 9.0) is None


def test_deviation_is_that_of_half_seconds() -> None:
    fast = np.tile([0.0, 2.0] * 5, 10)[None]  # within half a second
    slow = np.tile([0.0] * 5 + [2.0] * 5, 10)[None]
    assert deviation(np.tile([[4.0]], (1, 100)), BIN_S) == 0
    assert deviation(slow, BIN_S) == pytest.approx(1)
    assert deviation(fast, BIN_S) == pytest.approx(0.2, abs=0.01)
