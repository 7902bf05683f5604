"""Fabrics with 4 to 512 servers: what `up`, `down` and control cost.

Regions have 8 servers of 6 optical and 2 electrical NICs, an OCS and a controller. Every fabric is
checked with packets while it is up (`moefabric check`). `up` also has the CPU time of all cores
together, which other programs change less. Memory is that of the processes. The control loop lasts
from a demand to its last confirmed rule in one region, without settling; planning is a part of it.

`-k 512-servers` measures one size.
"""

import os
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
import pytest

from moefabric.controller.client import ControllerClient
from moefabric.core.eps import Eps
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region
from moefabric.emulator.fabric.datapath import bpf_refusal
from moefabric.runtime.run_directory import FabricWiring
from moefabric.testbed.fabric_check import FabricCheck, check_fabric
from tests.bench.bench_updown import Cycle, outer, run_cycle
from tests.bench.recording import record

__all__ = ["outer"]
"""A fixture, and with it the namespace in which fabrics come up."""

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(bpf_refusal()), reason=f"needs switches in eBPF: {bpf_refusal()}"),
]
SIZES: Final = (4, 8, 16, 32, 64, 128, 256, 512)
PER_REGION: Final = 8
CHANGES: Final = 21
UP_S, DOWN_S, MEMORY_MB = 25.0, 6.0, 6144.0
LOOP_S: Final = 0.010
"""Bounds that hold at every size; the times on an idle machine."""


@dataclass(frozen=True)
class Size:
    """What a fabric of this size costs."""

    servers: int
    cycle: Cycle
    loop_s: float
    plan_s: float
    check: FabricCheck


def sized(servers: int) -> Fabric:
    """A fabric of so many servers."""
    each = min(PER_REGION, servers)
    regions = tuple(
        Region(
            f"r{r}",
            r,
            tuple(f"s{each * r + i}" for i in range(each)),
            Ocs(f"ocs{r}", 6 * each, 25_000_000),
        )
        for r in range(servers // each)
    )
    return Fabric("bench", regions, 8, 6, 2, 5e6, Eps(16))


def control(wiring: FabricWiring) -> tuple[float, float]:
    """Return the median seconds of a control loop without settling, and of its planning."""
    region, draw = wiring.fabric.regions[-1], np.random.default_rng(1)
    with ControllerClient.of_region(wiring, region) as client:
        phases = [
            client.demand((1e9 * draw.random((len(region.servers),) * 2)).tolist())["phases"]
            for _ in range(CHANGES)
        ]
    loops = [phase["total_s"] - phase["settle_s"] for phase in phases]
    return median(loops), median(phase["plan_s"] for phase in phases)


def measured(servers: int, outer: str) -> Size:
    """Bring one size up, use it, and take it down."""
    seen: list[tuple[tuple[float, float], FabricCheck]] = []
    cycle = run_cycle(
        sized(servers), outer, lambda wiring: seen.append((control(wiring), check_fabric(wiring)))
    )
    [((loop_s, plan_s), check)] = seen
    print("\n".join(check.lines()))
    return Size(servers, cycle, loop_s, plan_s, check)


@pytest.mark.parametrize("servers", SIZES, ids=lambda servers: f"{servers}-servers")
def test_cost_stays_within_bounds(outer: str, servers: int) -> None:
    size, end = measured(servers, outer), f"{servers} servers"
    cycle = size.cycle
    up_s = max(cycle.idle_up_s, cycle.up_cpu_s / (os.cpu_count() or 1))
    record(f"`up`: {end}", "s", cycle.up_s)
    record(f"`up` as on idle cores: {end}", "s", up_s, at_most=UP_S)
    record(f"CPU of `up`, all cores: {end}", "s", cycle.up_cpu_s)
    record(f"`down`: {end}", "s", cycle.down_s)
    record(f"`down` as on idle cores: {end}", "s", cycle.idle_down_s, at_most=DOWN_S)
    record(f"memory of processes: {end}", "MB", cycle.memory_mb, at_most=MEMORY_MB)
    record(f"memory of processes and the kernel's objects: {end}", "MB", cycle.taken_mb)
    record(f"control loop of a region, p50: {end}", "ms", size.loop_s, n=CHANGES, at_most=LOOP_S)
    record(f"planning in it, p50: {end}", "ms", size.plan_s, n=CHANGES)
    assert size.check.passed
    assert size.loop_s <= LOOP_S
    assert up_s <= UP_S
    assert cycle.idle_down_s <= DOWN_S
    assert cycle.memory_mb <= MEMORY_MB
