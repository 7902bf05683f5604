"""Starts, CPU and memory of agents that share processes, relative to one process for each server.

All servers send to their neighbour by 8 NICs at once; rounds of both kinds alternate.
"""

import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pytest

from moefabric.agents.fleet.fleet import Fleet
from moefabric.core.eps import Eps
from moefabric.core.flows import PacedFlow
from moefabric.core.topology import Fabric, Region
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.fabric.lifecycle import wanted
from moefabric.runtime.processes import process_usage
from moefabric.testbed.testbed import data_paths, running_testbed
from tests.bench.recording import record
from tests.support.namespaces import own_machine

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(900)]
NICS, COLLECTIVES = 8, 3
SECONDS = 0.9
"""Duration of a flow."""


class Figures(NamedTuple):
    """Figures of one round: when the last flow started, CPU for each Gbit, and memory."""

    last_start_ms: float
    cpu_s_per_gbit: float
    memory_mb: float


def fabric(servers: int, rate_bps: float) -> Fabric:
    """Regions of at most 8 servers on a leaf-spine that blocks nothing."""
    size = min(8, servers)
    regions = tuple(
        Region(f"r{r}", r, tuple(f"s{size * r + i}" for i in range(size)), None)
        for r in range(servers // size)
    )
    spines = NICS if servers > 16 else 1
    return Fabric(f"share{servers}", regions, 8, 0, NICS, rate_bps, Eps(16, spines))


def pss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def figures(made: Fabric, fleet: Fleet) -> Figures:
    """Run collectives, and return the median start of their last flows."""
    shown = lifecycle.inspect(made.name)["processes"]
    pids = [one["pid"] for one in shown if one["name"].startswith("agent")]

    def cpu_s() -> float:
        return sum(used.cpu_s for pid in pids if (used := process_usage(pid)))

    next_of = {
        pair
        for group in made.ep_groups.values()
        for pair in zip(group, (*group[1:], group[0]), strict=True)
    }
    size = round(made.nic_rate_bps * SECONDS / 8)
    flows = [
        PacedFlow(way.src, way.dst, way.path, size, made.nic_rate_bps)
        for way in data_paths(made)
        if (way.src, way.dst) in next_of
    ]
    memory_mb, before_s, last_ms = sum(map(pss_mb, pids)), cpu_s(), list[float]()
    for number in range(COLLECTIVES):
        start_ns = time.monotonic_ns() + fleet.lead_ns(fleet.channels)
        records = fleet.run(1000 + number, flows, start_ns)
        assert all(record.ok for record in records)
        last_ms.append(max(record.first_sent_ns - start_ns for record in records) / 1e6)
    gbit = COLLECTIVES * sum(flow.bytes for flow in flows) * 8 / 1e9
    return Figures(median(last_ms), (cpu_s() - before_s) / gbit, memory_mb)


def measured(made: Fabric, monkeypatch: pytest.MonkeyPatch, *, shared: bool) -> Figures:
    chosen = replace(wanted(made), shared_agents=shared)
    monkeypatch.setattr(lifecycle, "wanted", lambda _fabric: chosen)
    with own_machine(), running_testbed(made) as (_, fleet, _):
        return figures(made, fleet)


@pytest.mark.parametrize(
    ("servers", "rate_bps", "rounds"), [(4, 25e6, 2), (16, 10e6, 2), (64, 5e6, 1)]
)
def test_shared_agents_start_sooner_and_need_less(
    monkeypatch: pytest.MonkeyPatch, servers: int, rate_bps: float, rounds: int
) -> None:
    made = fabric(servers, rate_bps)
    pairs = [
        [measured(made, monkeypatch, shared=shared) for shared in (True, False)]
        for _ in range(rounds)
    ]
    shared, alone = (
        Figures(*map(median, zip(*kind, strict=True))) for kind in zip(*pairs, strict=True)
    )
    print(f"\n{servers} servers, {servers * NICS} flows: shared {shared}, separate {alone}")
    memory = 0.7 if servers == 4 else 0.4
    bounds = (0.6, 1.0, memory) if servers > 4 else (None, None, memory)
    names = "last of their flows to start", "CPU for a Gbit", "memory"
    for what, own, other, most in zip(names, shared, alone, bounds, strict=True):
        name = f"agents that share processes relative to one process each, {what}"
        record(f"{name}: {servers} servers", "", own / other, n=rounds, at_most=most)
    record(
        f"memory of agents that share processes: {servers} servers",
        "MB",
        shared.memory_mb,
        n=rounds,
    )
    assert shared.memory_mb <= memory * alone.memory_mb
    if servers > 4:
        assert shared.last_start_ms <= 0.6 * alone.last_start_ms
        assert shared.cpu_s_per_gbit <= alone.cpu_s_per_gbit
