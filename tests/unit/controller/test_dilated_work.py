"""Work on failures ends when that of the modelled cluster would."""

import pytest

from moefabric.controller.recovery.failure_events import DilatedWork
from tests.support.memory_ocs import VirtualClock


class Bench:
    """Work under a virtual clock."""

    def __init__(self, dilation: float, first_s: float = 0.005) -> None:
        self.clock = VirtualClock()
        self.work = DilatedWork(dilation, first_s, self.pass_, self.clock.now_s)

    def pass_(self, seconds: float) -> None:
        self.clock.wait_until(self.clock.now_s() + seconds)

    def take(self, seconds: float, since_s: float = 0.0, settle_s: float = 0.0) -> float:
        """Work for so long; return the model seconds from its cause to its end."""
        started_s = self.clock.now_s()
        with self.work.delayed(since_s, settle_s):
            self.pass_(seconds)
        return since_s + self.clock.now_s() - started_s


@pytest.mark.parametrize("dilation", [1, 2, 10, 25])
def test_work_and_its_delay_cost_model_time_one_to_one(dilation: float) -> None:
    bench = Bench(dilation)
    assert bench.take(0.005, since_s=0.002) == pytest.approx(0.007 * dilation)


def test_work_is_expected_to_take_as_long_as_the_last() -> None:
    bench = Bench(10)
    assert bench.take(0.009) == pytest.approx(9 * 0.005 + 0.009), "the first is expected to take 5"
    assert bench.take(0.009) == pytest.approx(0.090)
    assert bench.work.expected_s == pytest.approx(0.009)


def test_settling_is_dilated_already() -> None:
    bench = Bench(10)
    bench.take(0.250 + 0.020, settle_s=0.250)
    assert bench.work.expected_s == pytest.approx(0.020)


def test_failed_work_teaches_nothing() -> None:
    bench = Bench(2)
    with pytest.raises(ValueError, match="no"), bench.work.delayed():
        raise ValueError("no")
    assert bench.work.expected_s == 0.005
