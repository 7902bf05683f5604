"""Memory and cores of the parts of fabrics: the figures of `moefabric.core.resource_needs`.

Fabrics of different numbers of regions and servers come up, and the processes of each kind are
measured: memory as proportional set size, cores at rest.
"""

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from moefabric.controller.client import wait_for_controllers
from moefabric.core.eps import Eps
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region
from moefabric.core.units import Scale
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.linux.marked_processes import marked_pids
from moefabric.testbed.fabric_processes import fabric_processes
from tests.bench.recording import record
from tests.support.namespaces import own_machine

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(240)]
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_REST_S: Final = 5.0
_SHAPES: Final = ((1, 4), (1, 16), (4, 4))
"""Regions, and servers of each."""


@dataclass(frozen=True)
class Usage:
    """What the processes of a kind use together."""

    processes: int
    memory_mb: float
    cores: float


def shaped(regions: int, servers: int) -> Fabric:
    listed = tuple(
        Region(
            f"r{r}",
            r,
            tuple(f"s{r * servers + i}" for i in range(servers)),
            Ocs(f"ocs{r}", 3 * servers),
        )
        for r in range(regions)
    )
    return Fabric("needs", listed, 8, 3, 1, 100e9, Eps(16), Scale(1000))


@contextmanager
def running(fabric: Fabric) -> Iterator[None]:
    with own_machine():
        try:
            wait_for_controllers(lifecycle.up(fabric, fabric_processes, 90.0), 60.0)
            yield
        finally:
            lifecycle.down(fabric.name, force=True)


def kind(pid: int) -> str:
    """Return the module that a process runs, or else its program."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    modules = [word for word in words if word.startswith("moefabric.")]
    return modules[0] if modules else Path(f"/proc/{pid}/comm").read_text().strip()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6


def usage(fabric: Fabric) -> dict[str, Usage]:
    """Return what the processes of each kind use at rest."""
    with running(fabric):
        by_pid = {pid: kind(pid) for pid in marked_pids(fabric.name)}
        before, start_s = {pid: cpu_s(pid) for pid in by_pid}, time.monotonic()
        time.sleep(_REST_S)
        elapsed_s = time.monotonic() - start_s
        cores, memory = defaultdict[str, float](float), defaultdict[str, float](float)
        for pid, name in by_pid.items():
            cores[name] += (cpu_s(pid) - before[pid]) / elapsed_s
            memory[name] += memory_mb(pid)
        counts = Counter(by_pid.values())
    return {name: Usage(counts[name], memory[name], cores[name]) for name in sorted(counts)}


def test_memory_and_cores_of_parts() -> None:
    for regions, servers in _SHAPES:
        used = usage(shaped(regions, servers))
        total = sum(one.memory_mb for one in used.values())
        shape = f"{regions} x {servers} servers"
        print(f"{regions} regions of {servers} servers: {total:.0f} MB")
        record(f"memory of a fabric's processes: {shape}", "MB", total)
        for name, one in used.items():
            each_mb = one.memory_mb / one.processes
            record(f"memory of one `{name}`: {shape}", "MB", each_mb, n=one.processes)
            print(
                f"  {one.processes:3} {name:44} {one.memory_mb:7.1f} MB {one.cores:6.3f} cores, "
                f"each {each_mb:6.1f} MB"
            )
