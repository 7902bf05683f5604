"""Cost of reading all port counters, and its share of a run's wall time."""

import time
from pathlib import Path

import numpy as np
import pytest

from moefabric.core.circuits import CircuitSet
from moefabric.core.demand import DemandMatrix
from moefabric.core.protocols import PortCounters
from moefabric.core.units import Scale
from moefabric.emulator.fabric import lifecycle
from moefabric.execution.executor import Executor, Instruments
from moefabric.planner.policy import EpsOnly
from moefabric.testbed.testbed import port_counters, running_testbed
from moefabric.workload.iterations.iteration import Collective
from tests.bench.recording import record
from tests.kernel.fabric_lab import no_processes
from tests.support.fabrics import fabric

pytestmark = pytest.mark.kernel

READINGS = 300
COLLECTIVES = 20
BOUND_S = 0.02
"""Bound of the median: the least time in which agents prepare a collective."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("servers", [4, 32, 128])
def test_reading_takes_less_time_than_agents_need_to_prepare(
    servers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEFABRIC_RUN_DIR", str(tmp_path))
    wired = fabric(6, 2, regions=(min(8, servers),) * max(1, servers // 8), scale=Scale(10_000))
    lifecycle.up(wired, no_processes, 120.0)
    try:
        with port_counters(wired) as counters:
            times_s = [_reading_s(counters) for _ in range(READINGS)]
    finally:
        lifecycle.down(wired.name)
    p50, p95 = 1e3 * np.percentile(times_s, [50, 95])
    print(f"\n{servers} servers, {8 * servers} NICs: p50 {p50:.2f} ms, p95 {p95:.2f} ms a reading")
    for quantile, ms, most in (("p50", p50, BOUND_S), ("p95", p95, None)):
        name = f"reading of all port counters, {quantile}: {servers} servers"
        record(name, "ms", ms / 1e3, n=READINGS, at_most=most)
    assert p50 < 1e3 * BOUND_S


def _reading_s(counters: PortCounters) -> float:
    start_s = time.perf_counter()
    counters.read()
    return time.perf_counter() - start_s


@pytest.mark.timeout(300)
def test_wall_time_of_collectives_with_and_without_counters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEFABRIC_RUN_DIR", str(tmp_path))
    wired = fabric(0, 4, scale=Scale(1000))
    demand = DemandMatrix(wired.servers, 1e8 * (1 - np.eye(4)))
    operations = [Collective("dispatch", "forward", 0, demand)] * COLLECTIVES
    with running_testbed(wired) as (_, fleet, _controllers), port_counters(wired) as counters:
        for _ in range(3):
            for name, counted in (("without", None), ("with", counters)):
                executor = Executor(
                    wired,
                    EpsOnly(),
                    fleet,
                    {},
                    CircuitSet(),
                    instruments=Instruments(counters=counted),
                )
                start_s = time.perf_counter()
                executor.iteration(0, operations)
                wall_s = time.perf_counter() - start_s
                executor.close()
                print(f"{name} counters: {1e3 * wall_s / COLLECTIVES:.2f} ms a collective")
