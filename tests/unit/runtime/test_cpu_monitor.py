"""CPU headroom during collectives."""

import pytest

from moefabric.runtime.cpu_monitor import CpuSample, CpuSampler, core_ticks, idle_shares

HALF = 500_000_000


def sample(number: int, idle: float) -> CpuSample:
    return CpuSample(number * HALF, (number + 1) * HALF, idle)


@pytest.mark.parametrize(
    ("windows", "idle"),
    [
        pytest.param([(0, 3 * HALF)], [0.1, 0.2, 0.3], id="all of it"),
        pytest.param([(HALF, 2 * HALF)], [0.2], id="one sample"),
        pytest.param([(HALF // 2, HALF)], [0.1], id="half of one"),
        pytest.param([(HALF // 2 + 1, HALF)], [], id="less than half"),
        pytest.param(
            [(0, HALF // 4), (HALF // 2, HALF // 2 + HALF // 4)], [0.1], id="two quarters"
        ),
        pytest.param([], [], id="no windows"),
    ],
)
def test_sample_counts_if_windows_cover_half_of_it(
    windows: list[tuple[int, int]], idle: list[float]
) -> None:
    assert idle_shares([sample(0, 0.1), sample(1, 0.2), sample(2, 0.3)], windows) == idle


def test_ticks_are_those_of_the_cores_that_a_run_has() -> None:
    stat = "cpu 9 9 9 9 9 9 9 9 0 0\ncpu0 1 2 3 4 5 6 7 8 0 0\ncpu1 1 1 1 1 1 1 1 1 0 0\nctxt 7\n"
    assert core_ticks(stat, {0}) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert core_ticks(stat, {0, 1}) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert core_ticks(stat, {7}) == [9] * 8


def test_sampler_takes_consecutive_samples_of_shares() -> None:
    with CpuSampler(every_s=0.05) as cpu:
        while len(cpu.samples) < 2:
            pass
    assert all(0 <= sample.idle <= 1 for sample in cpu.samples)
    assert cpu.samples[0].end_ns == cpu.samples[1].start_ns


def test_busiest_machine_counts() -> None:
    ticks = [0, 0, 0, 0, 0, 0, 0, 0]

    def busy() -> dict[str, list[int]]:
        ticks[0] += 1000
        return {"m1": list(ticks)}

    with CpuSampler(every_s=0.01, other_ticks=busy) as cpu:
        while not cpu.samples:
            pass
    assert cpu.samples[0].idle == 0
