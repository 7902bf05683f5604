"""The engine's goodput with every byte compared, beside iperf3's, on an unshaped veth pair."""

import json
import subprocess
from pathlib import Path
from statistics import median

import pytest

from moefabric.agents.fleet.fleet import DataPath, Fleet
from tests.support.agents_lab import fleet_on, paced_flow
from tests.support.namespaces import Island, island, must

RUNS = 20
SIZE = 1 << 28

pytestmark = pytest.mark.kernel


def iperf3_bps(where: Island) -> float:
    """Return the rate of one iperf3 flow from s0 to s1 at its receiver."""
    server = subprocess.Popen(
        where.inside("s1", "iperf3", "-s", "-1", "--forceflush"), stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        while b"listening" not in server.stdout.readline():
            pass
        report = json.loads(
            must(
                *where.inside(
                    "s0",
                    "iperf3",
                    "-c",
                    where.addresses["s1"],
                    "-n",
                    str(SIZE),
                    "-C",
                    "cubic",
                    "-J",
                )
            )
        )
        server.communicate(timeout=10)
    finally:
        server.kill()
        server.wait()
    return float(report["end"]["sum_received"]["bits_per_second"])


def engine_bps(fleet: Fleet, collective: int) -> float:
    """Return our rate: payload bits over the time from first byte sent to last byte verified."""
    (record,) = fleet.run(collective, [paced_flow("s0", "s1", SIZE)], deadline_s=30)
    assert record.ok, record.why
    return 8e9 * SIZE / (record.last_received_ns - record.first_sent_ns)


def test_engine_reaches_two_thirds_of_iperf3(tmp_path: Path) -> None:
    """Where iperf3 discards what it has received, the engine compares each byte.

    The comparison reads the block a second time, from caches that other programs on the two cores
    use as well: medians were 0.70 to 1.21 of iperf3's, which varies as much by itself.
    """
    with island("s0", "s1") as where, fleet_on(where, tmp_path) as fleet:
        fleet.connect([DataPath("s0", "s1", "o0", where.addresses["s1"])])
        engine_bps(fleet, 0)
        rates = []
        for run in range(1, RUNS + 1):
            rates.append((engine_bps(fleet, run), iperf3_bps(where)))
            print(f"engine {rates[-1][0] / 1e9:5.1f} Gb/s  iperf3 {rates[-1][1] / 1e9:5.1f} Gb/s")
    ours, theirs = (median(run[i] for run in rates) for i in (0, 1))
    print(
        f"median: engine {ours / 1e9:.1f} Gb/s, iperf3 {theirs / 1e9:.1f} Gb/s, "
        f"ratio {ours / theirs:.2f}"
    )
    assert ours >= 0.65 * theirs
