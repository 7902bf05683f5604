"""Programs that know nothing of the fabric: iperf3, OpenMPI and PyTorch's gloo, faster by light."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moefabric import Lab, RankFailedError, load_fabric
from moefabric.core.paths import dscp
from moefabric.core.port_counts import SENT, counted_nics
from moefabric.testbed.testbed import port_counters
from tests.support.fabrics import MESH
from tests.support.namespaces import must
from tests.support.paths import EXAMPLES

pytestmark = [pytest.mark.usefixtures("own_machine"), pytest.mark.slow]
MINIMUM_GAIN = 1.5
"""Three circuits and one electrical NIC: 3 if programs and machine cost nothing."""
MPI_PYTHON = "/usr/bin/python3"
MPI_ALL_TO_ALL = """
import sys, time
from mpi4py import MPI
world = MPI.COMM_WORLD
rank, ranks, size = world.Get_rank(), world.Get_size(), int(sys.argv[1])
sent = b"".join(bytes([16 * rank + peer]) * size for peer in range(ranks))
received, best_s = bytearray(ranks * size), 1e9
for _ in range(3):
    world.Barrier()
    begun_s = time.monotonic()
    world.Alltoall(sent, received)
    world.Barrier()
    best_s = min(best_s, time.monotonic() - begun_s)
    assert received == b"".join(bytes([16 * peer + rank]) * size for peer in range(ranks))
if rank == 0:
    print("seconds", best_s, MPI.Get_processor_name())
"""
GLOO = """
import sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, ranks, size = dist.get_rank(), dist.get_world_size(), int(sys.argv[1])
sent = torch.full((ranks * size // 4,), float(rank))

def measure():
    received, best_s = torch.empty_like(sent), 1e9
    for _ in range(3):
        dist.barrier()
        begun_s = time.monotonic()
        dist.all_to_all_single(received, sent)
        dist.barrier()
        best_s = min(best_s, time.monotonic() - begun_s)
        assert received.view(ranks, -1)[:, 0].tolist() == list(map(float, range(ranks)))
    if rank == 0:
        print("seconds", best_s)

measure()
if rank == 0:
    open(sys.argv[2]).read()  # until the other end of the FIFO is closed: light has moved
dist.barrier()
measure()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
model(torch.full((1, 64), float(rank))).sum().backward()
assert torch.allclose(model.module.weight.grad, torch.full((64, 64), (ranks - 1) / 2))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with load_fabric(EXAMPLES / "fabric.yaml", fabric="programs", scale={"bytes": 2500}).up() as up:
        yield up


@pytest.fixture
def dark(lab: Lab) -> Lab:
    """The fabric without circuits."""
    if lab.circuits():
        lab.dark()
    return lab


def seconds(output: str) -> float:
    match = re.search(r"seconds ([0-9.]+)", output)
    assert match, output
    return float(match.group(1))


def iperf(lab: Lab, servers: list[str], *options: str) -> list[dict[str, object]]:
    """Return the reports of iperf3 from s0 to some servers at once."""
    receivers = [
        lab.popen(
            server.partition(".")[0], "iperf3 -s -1 --forceflush", stdout=subprocess.PIPE, text=True
        )
        for server in servers
    ]
    for receiver in receivers:
        assert receiver.stdout
        while "listening" not in receiver.stdout.readline():
            assert receiver.poll() is None, "iperf3 does not listen"
    clients = [
        lab.popen("s0", ["iperf3", "-J", "-c", server, *options], stdout=subprocess.PIPE)
        for server in servers
    ]
    reports = [json.loads(client.communicate(timeout=60)[0]) for client in clients]
    for receiver in receivers:
        receiver.communicate(timeout=10)
    assert not [report["error"] for report in reports if "error" in report]
    return [report["end"] for report in reports]


def received_bps(reports: list[dict[str, object]]) -> float:
    return sum(report["sum_received"]["bits_per_second"] for report in reports)  # type: ignore[index]


def test_iperf3_is_faster_by_light(dark: Lab) -> None:
    peers = ["s1", "s2.r0", "s3"]
    eps_bps = received_bps(iperf(dark, peers, "-t", "1"))
    dark.light(*MESH)
    assert received_bps(iperf(dark, peers, "-t", "1")) > MINIMUM_GAIN * eps_bps


@pytest.mark.nightly
@pytest.mark.skipif(
    shutil.which("mpirun") is None
    or subprocess.run([MPI_PYTHON, "-c", "import mpi4py"], check=False).returncode != 0,
    reason="needs OpenMPI: packaging/setup all",
)
def test_mpi_all_to_all_is_faster_by_light(dark: Lab, tmp_path: Path) -> None:
    program = tmp_path / "all_to_all.py"
    program.write_text(MPI_ALL_TO_ALL)

    def run() -> float:
        result = dark.mpirun(
            [MPI_PYTHON, str(program), "400000"], capture_output=True, text=True, timeout=60
        )
        assert result.returncode == 0, result.stderr
        assert "dropped" not in result.stderr
        assert "PMIX ERROR" not in result.stderr
        assert result.stdout.endswith(" s0\n")  # ranks know the names of their servers
        return seconds(result.stdout)

    eps_s = run()
    dark.light(*MESH)
    assert run() < eps_s / MINIMUM_GAIN


@pytest.mark.nightly
def test_gloo_all_to_all_is_faster_by_light_and_ddp_is_right(dark: Lab, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="nightly: needs PyTorch: packaging/setup all")
    program, fifo = tmp_path / "gloo.py", tmp_path / "lit"
    program.write_text(GLOO)
    os.mkfifo(fifo)
    lines: list[tuple[str, str]] = []
    measured = threading.Event()

    def take(_rank: object, stream: str, line: str) -> None:
        lines.append((stream, line))
        if line.startswith("seconds"):
            measured.set()

    command = [sys.executable, str(program), "400000", str(fifo)]
    with dark.launch(command, on_line=take) as ranks:
        assert measured.wait(60)
        dark.light(*MESH)
        fifo.write_text("")
        assert ranks.wait(60)
    eps_s, light_s = (seconds(line) for _, line in lines if line.startswith("seconds"))
    assert light_s < eps_s / MINIMUM_GAIN
    assert not [line for stream, line in lines if stream == "stderr" and "hostname" in line]


def test_failed_rank_ends_the_others_and_is_named(lab: Lab) -> None:
    script = "if [ $RANK = 3 ]; then hostname >&2; exit 9; fi; exec sleep 600"
    with (
        lab.launch(["sh", "-c", script], servers=["s2", "s0"], ranks_per_server=2) as ranks,
        pytest.raises(RankFailedError, match="rank 3 on s0 exited 9, saying: s0"),
    ):
        ranks.wait(30)


# --- unmarked flows over light and the EPS -------------------------------------------------------


@pytest.fixture(scope="module")
def spread() -> Iterator[Lab]:
    """Two servers with one circuit and one electrical NIC, over which flows are spread."""
    small: dict[str, Any] = {
        "regions": [{"servers": 2, "ocs": {"settle": "25ms"}}],
        "nics": {"optical": 1, "electrical": 1},
        "scale": {"bytes": 2500},
        "unmarked": "spread",
    }
    with load_fabric(EXAMPLES / "fabric.yaml", fabric="spread", **small).up() as up:
        up.light("s0~s1")
        yield up


def sent_bytes(lab: Lab, *options: str) -> dict[str, float]:
    """Return the payload that each NIC of s0 sends during a run of iperf3 from s0 to s1."""
    with port_counters(lab.fabric) as counters:
        before = counters.read()
        iperf(lab, ["s1"], *options)
        sent = counters.read().payload_since(before)[:, SENT]
    by_nic = zip(counted_nics(lab.fabric), sent, strict=True)
    return {nic.path: float(size) for nic, size in by_nic if nic.server == "s0"}


def test_unmarked_flows_use_circuit_and_eps_and_marked_ones_their_nic(spread: Lab) -> None:
    # Marked flows come first: after their end, the others still have bytes in the NICs' queues.
    marked = sent_bytes(spread, "-P", "8", "-t", "1", "-S", str(4 * dscp(spread.fabric, "o0")))
    assert marked["e0"] < 0.02 * marked["o0"], marked
    sent = sent_bytes(spread, "-P", "32", "-t", "1")
    assert min(sent.values()) > 0.2 * sum(sent.values()), sent


def test_flows_move_to_the_eps_without_loss_when_their_circuit_goes(spread: Lab) -> None:
    reports: list[dict[str, object]] = []

    def send() -> None:
        reports.extend(iperf(spread, ["s1"], "-u", "-b", "1M", "-l", "500", "-P", "8", "-t", "2"))

    with port_counters(spread.fabric) as counters:
        sender = threading.Thread(target=send)
        sender.start()
        try:
            must("sleep", "1")
            spread.dark()
            before = counters.read()
            sender.join(30)
        finally:
            sender.join()
        sent = counters.read().payload_since(before)[:, SENT]
    streams = [stream["udp"] for stream in reports[0]["streams"]]  # type: ignore[attr-defined]
    assert [stream["lost_packets"] for stream in streams] == [0] * 8
    by_path = {nic.path: size for nic, size in zip(counted_nics(spread.fabric), sent, strict=True)}
    assert by_path["e0"] > 0
    spread.light("s0~s1")
