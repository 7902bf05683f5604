"""Bench: PyTorch's all_to_all_single through agents against gloo, on loopback."""

import statistics
from pathlib import Path

import pytest

from tests.bench.recording import record
from tests.support.rank_lab import Agents, ExchangeLoop, ranks_on

pytest.importorskip("torch", reason="nightly: needs PyTorch: packaging/setup all")

from tests.support import rank_functions as functions

MEGABYTES = 8
SERVERS = ["s0", "s1", "s2", "s3"]


@pytest.mark.timeout(240)
def test_throughput_against_gloo(tmp_path: Path) -> None:
    """Four ranks on four servers, 8 MB a rank; both backends in turn, in one run."""
    agents = Agents(tmp_path, SERVERS)
    loop = ExchangeLoop(agents.fleet)
    loop.start()
    try:
        with ranks_on([agents.rank_socket(server) for server in SERVERS]) as ranks:
            ranks.run(functions.init)
            times = ranks.run(functions.timed_exchanges, MEGABYTES * 1_000_000, 15)
    finally:
        loop.stop()
        agents.close()
    ours, gloo = (
        [max(by_rank) for by_rank in zip(*column, strict=True)]
        for column in zip(*times, strict=True)
    )
    for name, seconds in (("moefabric", ours), ("gloo", gloo)):
        middle = statistics.median(seconds)
        print(
            f"{name}: {1e3 * middle:.1f} ms in the median, {1e3 * min(seconds):.1f} ms at best, "
            f"{MEGABYTES / middle:.0f} MB/s a rank"
        )
    ratio = statistics.median(ours) / statistics.median(gloo)
    print(f"moefabric takes {ratio:.2f} times as long as gloo")
    record(
        "PyTorch's all_to_all_single of 8 MB among 4 servers, time relative to gloo",
        "",
        ratio,
        n=len(ours),
        at_most=4,
    )
    assert ratio < 4
