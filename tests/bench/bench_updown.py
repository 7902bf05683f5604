"""Times of up and down of a fabric with controllers, OCSes and agents, and their memory.

Two fabrics: the paper's prototype (4 servers with 3 optical and 1 electrical NICs) and 1,024 GPUs
(128 servers with 6 and 2 NICs, 16 regions). Each time is also estimated for an idle machine: the
bench measures how other processes slow the cores down.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from moefabric.agents.fleet.channel import connect_local
from moefabric.agents.fleet.fleet import Fleet
from moefabric.controller.client import wait_for_controllers
from moefabric.core.eps import Eps
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region
from moefabric.emulator.fabric import lifecycle
from moefabric.emulator.fabric.datapath import bpf_refusal
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.command import run
from moefabric.emulator.linux.marked_processes import marked_pids
from moefabric.emulator.linux.namespace_holders import NamespaceHolders
from moefabric.emulator.linux.processes import ChildProcesses, ProcessRole
from moefabric.runtime.run_directory import FabricWiring, ManagementNetwork, RunDirectory
from moefabric.runtime.waiting import Deadline
from moefabric.testbed.fabric_processes import fabric_processes
from tests.bench.recording import record

pytestmark = pytest.mark.kernel
ROUNDS = 3
UP_LIMIT_S = 280.0
MAX_SERVERS_WITHOUT_BPF = 16
AGENTS_READY_S, AGENTS_MB = 2.0, 256
_TICKS = os.sysconf("SC_CLK_TCK")
_SPIN = "import time; t = time.process_time()\nwhile time.process_time() - t < 0.2: pass"


def prototype() -> Fabric:
    servers = ("s0", "s1", "s2", "s3")
    return Fabric(
        "bench", (Region("r0", 0, servers, Ocs("ocs0", 12, 25_000_000)),), 8, 3, 1, 50e6, Eps(16)
    )


def paper_scale() -> Fabric:
    regions = tuple(
        Region(f"r{r}", r, tuple(f"s{8 * r + i}" for i in range(8)), Ocs(f"ocs{r}", 48, 25_000_000))
        for r in range(16)
    )
    return Fabric("bench", regions, 8, 6, 2, 5e6, Eps(8, spines=2))


@pytest.fixture
def outer() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="mf", dir="/tmp")
    before = os.environ.get("MOEFABRIC_RUN_DIR")
    os.environ["MOEFABRIC_RUN_DIR"] = folder
    with subprocess.Popen(["unshare", "-n", "sleep", "600"]) as machine:
        isolated, own = Path(namespaces.path_of(machine.pid)), Path("/proc/self/ns/net")
        Deadline.after(5).wait_for(lambda: isolated.readlink() != own.readlink(), "namespace")
        namespaces.run_in(str(isolated), lambda: run(["ip", "link", "set", "lo", "up"]))
        try:
            yield str(isolated)
        finally:
            namespaces.run_in(str(isolated), partial(lifecycle.down, "bench"))
            machine.kill()
            shutil.rmtree(folder)
            os.environ.pop("MOEFABRIC_RUN_DIR")
            if before:
                os.environ["MOEFABRIC_RUN_DIR"] = before


def slowdown() -> float:
    """Return how many times longer two busy processes take than on two idle cores."""
    start_s = time.monotonic()
    for process in [subprocess.Popen([sys.executable, "-S", "-c", _SPIN]) for _ in range(2)]:
        process.wait()
    return max(1.0, (time.monotonic() - start_s) / 0.22)


def cpu_s(name: str) -> float:
    """Return the CPU seconds of the fabric's processes so far."""
    ticks = 0
    for pid in marked_pids(name):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / _TICKS


def pss_mb(pids: Iterable[int]) -> float:
    """Return the memory of processes; shared pages count once (proc(5), smaps_rollup)."""
    files = (Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() for pid in pids)
    return (
        sum(int(line.split()[1]) for lines in files for line in lines if line.startswith("Pss:"))
        / 1024
    )


@dataclass
class Cycle:
    """Times of up (until all rules are installed) and down; measured, and for idle cores.

    `memory_mb` is that of the processes, `taken_mb` what the machine has less, kernel included.
    `up_cpu_s` is the CPU time of `up`, of all cores together.
    """

    up_s: float
    down_s: float
    idle_up_s: float
    idle_down_s: float
    memory_mb: float
    taken_mb: float
    up_cpu_s: float


def available_mb() -> float:
    """Return the memory that programs could still take (proc(5), meminfo)."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 1024


def run_cycle(
    fabric: Fabric, outer: str, use: Callable[[FabricWiring], object] = lambda _: None
) -> Cycle:
    """Bring a fabric up, use it in the outer namespace, and take it down."""
    stages: list[str] = []
    wirings: list[FabricWiring] = []
    available_before_mb = available_mb()
    slowdown_up, start_s = slowdown(), time.monotonic()

    def note(stage: str) -> None:
        stages.append(f"{time.monotonic() - start_s:.2f} {stage}")

    def up() -> None:
        wiring = lifecycle.up(fabric, fabric_processes, UP_LIMIT_S, on_stage=note)
        note("rules")
        wait_for_controllers(wiring, UP_LIMIT_S)
        wirings.append(wiring)

    namespaces.run_in(outer, up, timeout_s=2 * UP_LIMIT_S)
    up_s = time.monotonic() - start_s
    used_s, memory_mb = cpu_s(fabric.name), pss_mb(marked_pids(fabric.name))
    taken_mb = available_before_mb - available_mb()
    namespaces.run_in(outer, partial(use, *wirings), timeout_s=UP_LIMIT_S)
    slowdown_down, start_s = slowdown(), time.monotonic()
    assert namespaces.run_in(outer, partial(lifecycle.down, fabric.name), timeout_s=UP_LIMIT_S)
    down_s = time.monotonic() - start_s
    cycle = Cycle(
        up_s,
        down_s,
        up_s / min(slowdown_up, slowdown_down),
        down_s / slowdown_down,
        memory_mb,
        taken_mb,
        used_s,
    )
    print(
        f"{len(fabric.servers)} servers: up {up_s:.2f} s "
        f"({used_s:.2f} s of CPU, {memory_mb:.0f} MB of processes, {taken_mb:.0f} MB in all), "
        f"down {down_s:.2f} s; "
        f"machine slowed {slowdown_up:.1f}- and {slowdown_down:.1f}-fold: "
        f"{cycle.idle_up_s:.2f} s and {cycle.idle_down_s:.2f} s if idle; "
        f"stages from (s) {', '.join(stages)}"
    )
    return cycle


@pytest.mark.parametrize(
    ("fabric", "up_s", "down_s"),
    [
        pytest.param(prototype(), 1.5, 0.8, id="4-servers"),
        pytest.param(paper_scale(), 8.0, 4.0, id="128-servers"),
    ],
)
def test_up_and_down_stay_within_bounds(
    outer: str, fabric: Fabric, up_s: float, down_s: float
) -> None:
    if len(fabric.servers) > MAX_SERVERS_WITHOUT_BPF and (reason := bpf_refusal()):
        pytest.skip(f"needs switches in eBPF: {reason}")
    cycles = [run_cycle(fabric, outer) for _ in range(ROUNDS)]
    ups, downs = [cycle.idle_up_s for cycle in cycles], [cycle.idle_down_s for cycle in cycles]
    end = f"{len(fabric.servers)} servers"
    record(
        f"`up` until all rules are installed, as on idle cores, best: {end}",
        "s",
        min(ups),
        samples=ups,
        at_most=up_s,
    )
    record(f"`down`, as on idle cores, best: {end}", "s", min(downs), samples=downs, at_most=down_s)
    assert min(ups) <= up_s
    assert min(downs) <= down_s


def test_128_agents_start_quickly_and_share_memory() -> None:
    servers = paper_scale().servers
    run_dir = RunDirectory(Path(tempfile.mkdtemp(prefix="mf", dir="/tmp")))
    for folder in (run_dir.log_folder, run_dir.agent_socket("any").parent):
        folder.mkdir()
    processes = ChildProcesses(run_dir)
    wiring = FabricWiring(paper_scale(), ManagementNetwork("198.18.0.0/24"))
    specs = fabric_processes(wiring, run_dir)
    agents = [spec for spec in specs if spec.role is ProcessRole.AGENT]
    factor = slowdown()
    with NamespaceHolders(servers, run_dir.name) as holders:
        pids = holders.pids(Deadline.after(20))
        start_s = time.monotonic()
        try:
            processes.start_all((agent, pids[agent.node]) for agent in agents)
            processes.wait_forked(Deadline.after(60))
            with Fleet(
                [connect_local(server, run_dir.agent_socket(server), 30) for server in servers]
            ) as fleet:
                ready_s = time.monotonic() - start_s
                memory_mb = pss_mb({fact["pid"] for fact in fleet.facts.values()})
        finally:
            processes.stop(grace_s=1)
            shutil.rmtree(run_dir.path)
    print(
        f"128 agents: ready in {ready_s:.2f} s ({ready_s / factor:.2f} s on idle cores), "
        f"{memory_mb:.0f} MB together"
    )
    record("128 agents ready, as on idle cores", "s", ready_s / factor, at_most=AGENTS_READY_S)
    record("memory of 128 agents without connections", "MB", memory_mb, at_most=AGENTS_MB)
    assert ready_s / factor <= AGENTS_READY_S
    assert memory_mb <= AGENTS_MB
