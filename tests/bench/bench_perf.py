"""Uniform all-to-alls on a non-blocking EPS, relative to the port bound, and an all-reduce.

Ranks are on 4 and on 16 servers, and on 8 servers of 8 GPUs each. A measurement is the mean of some
iterations, and the best of several measurements counts: other work only delays them. 64 servers of
one GPU are printed without a bound: 4,032 connections end up to 8 % late on 2 cores.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.bench.recording import record
from tests.support.attempts import measurements
from tests.support.command_home import MOEFABRIC, NEEDS_COMMAND
from tests.support.namespaces import island

FABRIC: Final = """
fabric: benchperf
gpus_per_server: {gpus}
nic_rate: 100Gb/s
nics: {{optical: 0, electrical: 1}}
regions:
  - servers: {servers}
scale: {{bytes: {scale}}}
"""
BOUND: Final = 0.03

pytestmark = [*NEEDS_COMMAND, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("kind", "servers", "gpus", "scale", "seconds", "bound"),
    [
        pytest.param("alltoall", 4, 1, 500, 2, BOUND, id="4-ranks"),
        pytest.param("alltoall", 16, 1, 1000, 4, BOUND, id="16-ranks"),
        pytest.param("alltoall", 8, 8, 500, 8, BOUND, id="64-ranks"),
        pytest.param("alltoall", 64, 1, 5000, 12, None, id="64-servers"),
        pytest.param("allreduce", 16, 1, 1000, 4, 0.05, id="all-reduce-of-16-ranks"),
    ],
)
def test_time_is_that_of_the_ports(
    kind: str,
    servers: int,
    gpus: int,
    scale: int,
    seconds: float,
    bound: float | None,
    tmp_path: Path,
) -> None:
    spec = tmp_path / "fabric.yaml"
    spec.write_text(FABRIC.format(servers=servers, gpus=gpus, scale=scale))
    words = [MOEFABRIC, "perf", kind, "--spec", str(spec), "-b", "64M", "-e", "64M"]
    words += ["-n", "4", "-w", "1", "--seconds", str(seconds), "--json", "-"]

    def measure() -> dict[str, Any]:
        with island("home", "away") as where:
            process = subprocess.run(
                where.inside("home", *words),
                env={**os.environ, "MOEFABRIC_RUN_DIR": str(tmp_path / "run")},
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
        assert process.returncode in {0, 3}, process.stderr  # 3: far from the model
        (row,) = json.loads(process.stdout)["rows"]
        assert row["wrong"] == 0
        return dict(row)

    def excess(row: dict[str, Any]) -> float:
        return float(row["time_us"] / row["bound_us"] - 1)

    attempts = 1 if bound is None else 3
    rows = measurements(measure, lambda row: bound is None or excess(row) < bound, attempts)
    best = min(rows, key=excess)
    print(
        f"\n{kind} of {servers * gpus} ranks on {servers} servers: {best['time_us']:.0f} µs, "
        f"{best['busbw_gbs']:.2f} GB/s on the bus, {excess(best):+.1%} from the port bound; "
        f"all: {', '.join(f'{excess(row):+.1%}' for row in rows)}"
    )
    ranks = f"{kind} of 64 MiB among {servers * gpus} ranks on {servers} servers"
    record(f"time over the port bound: {ranks}", "%", excess(best), n=4, at_most=bound)
    record(f"time: {ranks}", "ms", best["time_us"] / 1e6, n=4)
    record(f"bandwidth of the bus: {ranks}", "GB/s", best["busbw_gbs"], n=4)
    assert best["wrong"] == 0
    assert excess(best) > -0.005
    assert bound is None or excess(best) < bound
