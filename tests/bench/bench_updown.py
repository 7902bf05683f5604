"""How long a fabric takes to come up and to go, with its controllers, OCSes and agents; and what they need of memory.

Two fabrics: the paper's prototype (4 servers of 3 optical and 1 electrical NICs) and 1,024 GPUs (128 servers of 6 and 2, 16 regions).
Times are told as they were and as they would have been on a machine to themselves: others' use of the cores is measured beside them.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from agents.channel import local
from agents.fleet import Fleet
from controller.client import await_controllers
from emulator import lifecycle, namespaces
from emulator.command import run
from emulator.datapath import bpf_refusal
from emulator.keeping import Keeping
from emulator.processes import Crew, Role, marked
from emulator.waiting import Deadline
from moefabric.experiment.programs import processes
from moefabric.management import Management, RunDir, Wiring
from moefabric.topology import Eps, Fabric, Ocs, Region

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
]
TRIES = 3
MOST_WITHOUT_BPF = 16
AGENTS_READY_S, AGENTS_MB = 4.0, 3072
_TICKS = os.sysconf("SC_CLK_TCK")
_SPIN = "import time; t = time.process_time()\nwhile time.process_time() - t < 0.2: pass"


def prototype() -> Fabric:
    servers = ("s0", "s1", "s2", "s3")
    return Fabric("bench", (Region("r0", 0, servers, Ocs("ocs0", 12, 25_000_000)),), 8, 3, 1, 50e6, Eps(16))


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
        there, here = Path(namespaces.of(machine.pid)), Path("/proc/self/ns/net")
        Deadline.after(5).until(lambda: there.readlink() != here.readlink(), "namespace")
        namespaces.within(str(there), lambda: run(["ip", "link", "set", "lo", "up"]))
        try:
            yield str(there)
        finally:
            namespaces.within(str(there), partial(lifecycle.down, "bench"))
            machine.kill()
            shutil.rmtree(folder)
            os.environ.pop("MOEFABRIC_RUN_DIR")
            if before:
                os.environ["MOEFABRIC_RUN_DIR"] = before


def crowding() -> float:
    """How many times longer two busy processes take here than on two cores of their own."""
    began = time.monotonic()
    for process in [subprocess.Popen([sys.executable, "-S", "-c", _SPIN]) for _ in range(2)]:
        process.wait()
    return max(1.0, (time.monotonic() - began) / 0.22)


def cpu_s(name: str) -> float:
    """What the fabric's processes have used of the cores so far."""
    used = 0
    for pid in marked(name):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        used += sum(int(ticks) for ticks in fields[11:15])
    return used / _TICKS


def pss_mb(pids: Iterable[int]) -> float:
    """The memory of processes together; what several share is counted once (proc(5), smaps_rollup)."""
    said = (Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() for pid in pids)
    return sum(int(line.split()[1]) for lines in said for line in lines if line.startswith("Pss:")) / 1024


@dataclass
class Turn:
    """A fabric's coming, until its controllers have put all rules in, and its going; as they were and on cores of its own."""

    up_s: float
    down_s: float
    up_alone_s: float
    down_alone_s: float
    memory_mb: float


def turn(fabric: Fabric, outer: str) -> Turn:
    stages: list[str] = []
    before, began = crowding(), time.monotonic()

    def note(stage: str) -> None:
        stages.append(f"{time.monotonic() - began:.2f} {stage}")

    def up() -> None:
        wiring = lifecycle.up(fabric, processes, 60, say=note)
        note("rules")
        await_controllers(wiring, 60)

    namespaces.within(outer, up, timeout_s=130)
    up_s, used_s, memory, between = (
        time.monotonic() - began,
        cpu_s(fabric.name),
        pss_mb(marked(fabric.name)),
        crowding(),
    )
    began = time.monotonic()
    assert namespaces.within(outer, partial(lifecycle.down, fabric.name), timeout_s=60)
    down_s = time.monotonic() - began
    seen = Turn(up_s, down_s, up_s / min(before, between), down_s / between, memory)
    print(
        f"{len(fabric.servers)} servers: up {up_s:.2f} s ({used_s:.2f} s of CPU and {memory:.0f} MB by its processes), down "
        f"{down_s:.2f} s; cores shared {before:.1f}- and {between:.1f}-fold: {seen.up_alone_s:.2f} s and {seen.down_alone_s:.2f} s "
        f"on cores of its own; began at (s) {', '.join(stages)}"
    )
    return seen


@pytest.mark.parametrize(
    ("fabric", "up_s", "down_s"),
    [
        pytest.param(prototype(), 1.5, 0.8, id="4-servers"),
        pytest.param(paper_scale(), 8.0, 4.0, id="128-servers"),
    ],
)
def test_a_fabric_comes_up_and_goes_in_time(outer: str, fabric: Fabric, up_s: float, down_s: float) -> None:
    if len(fabric.servers) > MOST_WITHOUT_BPF and (why := bpf_refusal()):
        pytest.skip(f"needs switches in eBPF: {why}")
    turns = [turn(fabric, outer) for _ in range(TRIES)]
    assert min(one.up_alone_s for one in turns) <= up_s
    assert min(one.down_alone_s for one in turns) <= down_s


def test_the_agents_of_128_servers_are_ready_soon_and_share_their_memory() -> None:
    servers = paper_scale().servers
    run_dir = RunDir(Path(tempfile.mkdtemp(prefix="mf", dir="/tmp")))
    for folder in (run_dir.log("any").parent, run_dir.agent("any").parent):
        folder.mkdir()
    crew = Crew(run_dir)
    wiring = Wiring(paper_scale(), Management("198.18.0.0/24"))
    agents = [one for one in processes(wiring, run_dir) if one.role is Role.AGENT]
    before = crowding()
    with Keeping(servers, run_dir.name) as keeping:
        pids = keeping.pids(Deadline.after(20))
        began = time.monotonic()
        try:
            crew.start_all((agent, pids[agent.where]) for agent in agents)
            crew.gather(Deadline.after(60))
            with Fleet([local(server, run_dir.agent(server), 30) for server in servers]) as fleet:
                ready_s = time.monotonic() - began
                memory = pss_mb(fact["pid"] for fact in fleet.facts.values())
        finally:
            crew.stop(grace_s=1)
            shutil.rmtree(run_dir.path)
    print(
        f"128 agents: ready in {ready_s:.2f} s ({ready_s / before:.2f} s on cores of their own), {memory:.0f} MB together"
    )
    assert ready_s / before <= AGENTS_READY_S
    assert memory <= AGENTS_MB
