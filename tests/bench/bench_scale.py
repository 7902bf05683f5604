"""What a packet sees of a fabric's size: round trip and goodput between two servers by the EPS, with 4 servers and with 128, and the CPU at rest.

All is up, with controllers, OCSes and agents; nobody else sends. The goodput is that of a path whose shaping was taken off, so
that the switches are its limit.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from controller.client import await_controllers
from emulator import lifecycle, namespaces
from emulator.processes import marked
from emulator.waiting import Deadline
from moefabric.experiment.programs import processes
from moefabric.topology import Eps, Fabric, Ocs, Region, Scale

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
]
_TICKS = os.sysconf("SC_CLK_TCK")
_REST_S = 5.0
ROUNDS, EXCHANGES = 3, 3000
ANSWERER = """
import socket, sys
with socket.create_server((sys.argv[1], 7)) as server:
    print("listening", flush=True)
    flow, _ = server.accept()
    flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while asked := flow.recv(64):
        flow.send(asked)
"""
ASKER = """
import socket, statistics, sys, time
flow = socket.create_connection((sys.argv[1], 7), 5)
flow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
took = []
for _ in range(int(sys.argv[2])):
    began = time.perf_counter_ns()
    flow.send(b"?")
    flow.recv(64)
    took.append(time.perf_counter_ns() - began)
print(statistics.median(took) / 1e3)
"""
SENT_BYTES = 3_000_000_000
TAKER = """
import socket, sys, time
with socket.create_server((sys.argv[1], 9)) as server:
    print("listening", flush=True)
    flow, _ = server.accept()
    room, began, got = bytearray(1 << 20), time.monotonic(), 0
    while part := flow.recv_into(room):
        got += part
    print(got * 8 / (time.monotonic() - began))
"""
GIVER = """
import os, socket, sys
flow = socket.create_connection((sys.argv[1], 9), 5)
left, room = int(sys.argv[2]), bytes(1 << 20)
while left > 0:
    left -= flow.send(room)
"""


def fabric(regions: int, servers: int) -> Fabric:
    """Regions of the paper: 6 optical and 2 electrical NICs a server."""
    made = [
        Region(f"r{r}", r, tuple(f"s{r * servers + i}" for i in range(servers)), Ocs(f"ocs{r}", 6 * servers))
        for r in range(regions)
    ]
    return Fabric("scale", tuple(made), 8, 6, 2, 100e9, Eps(16, 4 if regions > 1 else 1), Scale(20_000))


def brought_up(made: Fabric) -> None:
    """Up, with all controllers ready; these are asked by way of the loopback."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    await_controllers(lifecycle.up(made, processes, 90.0, switch="bpf"), 60.0)


@contextmanager
def running(made: Fabric) -> Iterator[str]:
    """The fabric, up in a namespace that stands for the machine; the path of that."""
    folder = tempfile.mkdtemp(prefix="mf", dir="/tmp")
    os.environ["MOEFABRIC_RUN_DIR"] = folder
    with subprocess.Popen(["unshare", "-n", "sleep", "600"]) as machine:
        there, here = Path(namespaces.of(machine.pid)), Path("/proc/self/ns/net")
        Deadline.after(5).until(lambda: there.readlink() != here.readlink(), "namespace")
        try:
            namespaces.within(str(there), partial(brought_up, made), timeout_s=100)
            yield str(there)
        finally:
            namespaces.within(str(there), partial(lifecycle.down, made.name), timeout_s=60)
            machine.kill()
            shutil.rmtree(folder)
            os.environ.pop("MOEFABRIC_RUN_DIR")


def between(name: str, answer: str, ask: str, to: str, number: int) -> tuple[str, str]:
    """What a program on s1 and one on s0 print that speak with each other."""
    serving = lifecycle.argv_on(name, "s1", [sys.executable, "-c", answer, to])
    with subprocess.Popen(serving, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "listening\n"
        asking = lifecycle.argv_on(name, "s0", [sys.executable, "-c", ask, to, str(number)])
        told = subprocess.run(asking, capture_output=True, text=True, timeout=60, check=True).stdout
        return server.communicate(timeout=20)[0], told


def unshape(name: str) -> None:
    """Take the shaping off the electrical NICs of s0 and s1, at both ends."""
    switches = next(p["pid"] for p in lifecycle.inspect(name)["processes"] if p["name"] == "switches")
    ends = [f"s{server}-e{nic}" for server in (0, 1) for nic in (0, 1)]
    shown = subprocess.run(
        ["nsenter", "-t", str(switches), "-n", "ip", "-o", "link"], capture_output=True, text=True, check=True
    ).stdout
    leaf = [line.split(": ")[1].split("@") for line in shown.splitlines() if "leaf0-p" in line]
    far = [own for own, peer in leaf if peer in ends] + [peer for own, peer in leaf if own in ends]
    for end in {*ends, *far}:
        words = ["tc", "qdisc", "del", "dev", end, "root"]
        subprocess.run(["nsenter", "-t", str(switches), "-n", *words], check=True)


def cpu_s(name: str) -> float:
    """What the fabric's processes have used of the cores so far."""
    used = 0
    for pid in marked(name):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        used += int(fields[11]) + int(fields[12])
    return used / _TICKS


def at_rest(name: str) -> float:
    """The share of the machine that the fabric's processes leave idle, while nothing is asked of it."""
    before, began = cpu_s(name), time.monotonic()
    subprocess.run(["sleep", str(_REST_S)], check=True)
    return 1 - (cpu_s(name) - before) / (time.monotonic() - began) / (os.cpu_count() or 1)


def seen(made: Fabric) -> tuple[float, float, float]:
    """Round trip in µs, goodput in bit/s (the better of some rounds each), idle share at rest."""
    to = made.addresses("s1")[0]
    with running(made):
        idle = at_rest(made.name)
        trips = [float(between(made.name, ANSWERER, ASKER, to, EXCHANGES)[1]) for _ in range(ROUNDS)]
        unshape(made.name)
        rates = [float(between(made.name, TAKER, GIVER, to, SENT_BYTES)[0]) for _ in range(ROUNDS)]
    return min(trips), max(rates), idle


def test_a_packet_does_not_see_how_large_the_fabric_is() -> None:
    small_us, small_bps, small_idle = seen(fabric(1, 4))
    large_us, large_bps, large_idle = seen(fabric(16, 8))
    for servers, us, bps, idle in (
        (4, small_us, small_bps, small_idle),
        (128, large_us, large_bps, large_idle),
    ):
        print(
            f"{servers} servers: round trip {us:.0f} µs, one flow {bps / 1e9:.1f} Gb/s, idle at rest {idle:.1%}"
        )
    print(f"128 / 4: round trip {large_us / small_us:.2f}, goodput {large_bps / small_bps:.2f}")
    assert large_us / small_us < 1.2
    assert large_bps / small_bps > 0.8
    assert min(small_idle, large_idle) >= 0.97
