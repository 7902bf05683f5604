"""What the crossbar costs: its throughput against a bare veth pair, and the time to move a matching."""

import shutil
import statistics
import time

import pytest

from emulator.light import Light
from tests.kernel.iperf import gigabits_per_second
from tests.kernel.optical_bench import Wires, missing_for_kernel_tests

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(missing_for_kernel_tests() is not None, reason=missing_for_kernel_tests() or ""),
]

ROUNDS = 5


@pytest.mark.skipif(not shutil.which("iperf3"), reason="needs iperf3")
def test_the_crossbar_is_about_as_fast_as_a_bare_veth_pair() -> None:
    with Wires(2) as bare, Wires(2) as through:
        bare.pair(1, 2)
        through.crossbar().load({1: Light(4, 0), 2: Light(3, 0)})
        wire, crossbar = [], []
        for _ in range(ROUNDS):  # interleaved, so that the machine's moods hit both
            wire.append(gigabits_per_second(bare))
            crossbar.append(gigabits_per_second(through))
    ratio = statistics.median(crossbar) / statistics.median(wire)
    best = max(crossbar) / max(wire)
    print(
        f"\ncrossbar {statistics.median(crossbar):.1f} Gb/s, bare veth pair {statistics.median(wire):.1f} Gb/s: "
        f"ratio {ratio:.2f} (of the best runs {best:.2f})"
    )
    assert max(ratio, best) >= 0.9


def test_moving_a_matching_takes_microseconds() -> None:
    with Wires(12) as wires:
        crossbar = wires.crossbar()
        matchings = [{p: Light(13 + (p + shift) % 12, 0) for p in range(1, 13)} for shift in (0, 5)]
        took = []
        for turn in range(2000):
            started = time.perf_counter_ns()
            crossbar.load(matchings[turn % 2])
            took.append(time.perf_counter_ns() - started)
    p50, p99 = statistics.median(took) / 1e3, statistics.quantiles(took, n=100)[98] / 1e3
    print(f"\nmoving 12 cross-connects at once: p50 {p50:.1f} µs, p99 {p99:.1f} µs")
    assert p50 < 1000
