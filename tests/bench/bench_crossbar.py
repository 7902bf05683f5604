"""Cost of the crossbar: throughput compared with a bare veth pair, and time to load a matching."""

import shutil
import statistics
import time

import pytest

from tests.bench.recording import record
from tests.kernel.iperf import gigabits_per_second
from tests.kernel.optical_bench import HostNetwork

pytestmark = pytest.mark.kernel

ROUNDS = 5


@pytest.mark.skipif(not shutil.which("iperf3"), reason="needs iperf3")
def test_crossbar_throughput_compares_with_veth_pair() -> None:
    with HostNetwork(2) as bare, HostNetwork(2) as through:
        bare.pair(1, 2)
        through.crossbar().load({(1, 4): 0, (2, 3): 0})
        wire, crossbar = [], []
        for _ in range(ROUNDS):  # interleaved: other load slows both alike
            wire.append(gigabits_per_second(bare))
            crossbar.append(gigabits_per_second(through))
    ratio = statistics.median(crossbar) / statistics.median(wire)
    best = max(crossbar) / max(wire)
    print(
        f"\ncrossbar {statistics.median(crossbar):.1f} Gb/s, "
        f"bare veth pair {statistics.median(wire):.1f} Gb/s: "
        f"ratio {ratio:.2f} (of the best runs {best:.2f})"
    )
    name = "throughput of the crossbar relative to a bare veth pair, medians or best runs"
    record(name, "", max(ratio, best), n=ROUNDS, at_least=0.9)
    assert max(ratio, best) >= 0.9


def test_load_of_matching_takes_microseconds() -> None:
    with HostNetwork(12) as wires:
        crossbar = wires.crossbar()
        matchings = [{(p, 13 + (p + shift) % 12): 0 for p in range(1, 13)} for shift in (0, 5)]
        times_ns = []
        for turn in range(2000):
            start_ns = time.perf_counter_ns()
            crossbar.load(matchings[turn % 2])
            times_ns.append(time.perf_counter_ns() - start_ns)
    p50, p99 = statistics.median(times_ns) / 1e3, statistics.quantiles(times_ns, n=100)[98] / 1e3
    print(f"\nmoving 12 cross-connects at once: p50 {p50:.1f} µs, p99 {p99:.1f} µs")
    for name, value in (("p50", p50), ("p99", p99)):
        record(f"change of 12 cross-connects in the kernel: {name}", "µs", value / 1e6, n=2000)
    assert p50 < 1000
