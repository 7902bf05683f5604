"""Head-room is judged where packets fly."""

import pytest

from moefabric.experiment.cpu import CpuSample, CpuSampler, idle_while

HALF = 500_000_000


def sample(number: int, idle: float) -> CpuSample:
    return CpuSample(number * HALF, (number + 1) * HALF, idle)


@pytest.mark.parametrize(
    ("windows", "seen"),
    [
        pytest.param([(0, 3 * HALF)], [0.1, 0.2, 0.3], id="all of it"),
        pytest.param([(HALF, 2 * HALF)], [0.2], id="one sample"),
        pytest.param([(HALF // 2, HALF)], [0.1], id="half of one"),
        pytest.param([(HALF // 2 + 1, HALF)], [], id="less than half"),
        pytest.param([(0, HALF // 4), (HALF // 2, HALF // 2 + HALF // 4)], [0.1], id="two quarters"),
        pytest.param([], [], id="nothing flew"),
    ],
)
def test_a_sample_counts_where_packets_flew_in_half_of_it(
    windows: list[tuple[int, int]], seen: list[float]
) -> None:
    assert idle_while([sample(0, 0.1), sample(1, 0.2), sample(2, 0.3)], windows) == seen


def test_samples_follow_each_other_and_are_shares() -> None:
    with CpuSampler(every_s=0.05) as cpu:
        while len(cpu.samples) < 2:
            pass
    assert all(0 <= sample.idle <= 1 for sample in cpu.samples)
    assert cpu.samples[0].ended_ns == cpu.samples[1].began_ns
