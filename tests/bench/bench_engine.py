"""What the engine costs: its goodput, every byte compared, beside iperf3's, between two namespaces on an unshaped veth pair."""

import json
import subprocess
from pathlib import Path
from statistics import median

import pytest

from agents.fleet import Fleet, Way
from tests.agents_lab import Paced, fleet_on
from tests.namespaces import Island, island, must

RUNS = 20
SIZE = 1 << 28

pytestmark = pytest.mark.kernel


def iperf3_bps(where: Island) -> float:
    """One flow of iperf3 from s0 to s1, as its receiver saw it."""
    server = subprocess.Popen(
        where.inside("s1", "iperf3", "-s", "-1", "--forceflush"), stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        while b"listening" not in server.stdout.readline():
            pass
        said = json.loads(
            must(
                *where.inside(
                    "s0", "iperf3", "-c", where.addresses["s1"], "-n", str(SIZE), "-C", "cubic", "-J"
                )
            )
        )
        server.communicate(timeout=10)
    finally:
        server.kill()
        server.wait()
    return float(said["end"]["sum_received"]["bits_per_second"])


def engine_bps(fleet: Fleet, collective: int) -> float:
    """One flow of ours from s0 to s1: payload bits over first byte sent to last byte verified."""
    (record,) = fleet.run(collective, [Paced("s0", "s1", SIZE)], deadline_s=30)
    assert record.ok, record.why
    return 8e9 * SIZE / (record.last_received_ns - record.first_sent_ns)


def test_the_engine_carries_verified_bytes_at_four_fifths_of_iperf3s_rate(tmp_path: Path) -> None:
    with island("s0", "s1") as where, fleet_on(where, tmp_path) as fleet:
        fleet.wire([Way("s0", "s1", "o0", where.addresses["s1"])])
        engine_bps(fleet, 0)
        seen = []
        for run in range(1, RUNS + 1):
            seen.append((engine_bps(fleet, run), iperf3_bps(where)))
            print(f"engine {seen[-1][0] / 1e9:5.1f} Gb/s  iperf3 {seen[-1][1] / 1e9:5.1f} Gb/s")
    ours, theirs = (median(run[i] for run in seen) for i in (0, 1))
    print(f"median: engine {ours / 1e9:.1f} Gb/s, iperf3 {theirs / 1e9:.1f} Gb/s, ratio {ours / theirs:.2f}")
    assert ours >= 0.8 * theirs
