"""Round trip, goodput and idle CPU of fabrics with 4 and with 128 servers.

The fabrics run with controllers, OCSes and agents; only two servers send, over the EPS. The goodput
is that of a path without shaping, so that the switches limit it.
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

from moefabric.controller.client import wait_for_controllers
from moefabric.core.eps import Eps
from moefabric.core.ocs import Ocs
from moefabric.core.topology import Fabric, Region
from moefabric.core.units import Scale
from moefabric.emulator.fabric import lifecycle, node_commands
from moefabric.emulator.linux import namespaces
from moefabric.emulator.linux.marked_processes import marked_pids
from moefabric.runtime.waiting import Deadline
from moefabric.testbed.fabric_processes import fabric_processes
from tests.bench.recording import record

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(180)]
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
        Region(
            f"r{r}",
            r,
            tuple(f"s{r * servers + i}" for i in range(servers)),
            Ocs(f"ocs{r}", 6 * servers),
        )
        for r in range(regions)
    ]
    return Fabric(
        "scale", tuple(made), 8, 6, 2, 100e9, Eps(16, 4 if regions > 1 else 1), Scale(20_000)
    )


def bring_up(made: Fabric) -> None:
    """Bring a fabric up and wait for its controllers, which answer over the loopback."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    wanted = lifecycle.wanted(made, "bpf")
    wait_for_controllers(lifecycle.up(wanted, fabric_processes, 90.0), 60.0)


@contextmanager
def running(made: Fabric) -> Iterator[str]:
    """Yield the path of an isolated namespace in which the fabric runs."""
    folder = tempfile.mkdtemp(prefix="mf", dir="/tmp")
    with (
        pytest.MonkeyPatch.context() as environment,
        subprocess.Popen(["unshare", "-n", "sleep", "600"]) as machine,
    ):
        environment.setenv("MOEFABRIC_RUN_DIR", folder)
        isolated, own = Path(namespaces.path_of(machine.pid)), Path("/proc/self/ns/net")
        Deadline.after(5).wait_for(lambda: isolated.readlink() != own.readlink(), "namespace")
        try:
            namespaces.run_in(str(isolated), partial(bring_up, made), timeout_s=100)
            yield str(isolated)
        finally:
            namespaces.run_in(str(isolated), partial(lifecycle.down, made.name), timeout_s=60)
            machine.kill()
            shutil.rmtree(folder)


def between(name: str, answer: str, ask: str, to: str, number: int) -> tuple[str, str]:
    """Return the outputs of a server program on s1 and of its client on s0."""
    serving = node_commands.exec_argv(name, "s1", [sys.executable, "-c", answer, to])
    with subprocess.Popen(serving, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "listening\n"
        asking = node_commands.exec_argv(name, "s0", [sys.executable, "-c", ask, to, str(number)])
        told = subprocess.run(asking, capture_output=True, text=True, timeout=60, check=True).stdout
        return server.communicate(timeout=20)[0], told


def unshape(name: str) -> None:
    """Remove the shaping of the electrical NICs of s0 and s1, at both ends."""
    switches = next(
        p["pid"] for p in lifecycle.inspect(name)["processes"] if p["name"] == "switches"
    )
    ends = [f"s{server}-e{nic}" for server in (0, 1) for nic in (0, 1)]
    shown = subprocess.run(
        ["nsenter", "-t", str(switches), "-n", "ip", "-o", "link"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    leaf = [line.split(": ")[1].split("@") for line in shown.splitlines() if "leaf0-p" in line]
    far = [own for own, peer in leaf if peer in ends] + [peer for own, peer in leaf if own in ends]
    for end in {*ends, *far}:
        words = ["tc", "qdisc", "del", "dev", end, "root"]
        subprocess.run(["nsenter", "-t", str(switches), "-n", *words], check=True)


def cpu_s(name: str) -> float:
    """Return the CPU seconds of the fabric's processes so far."""
    ticks = 0
    for pid in marked_pids(name):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def idle_share(name: str) -> float:
    """Return the share of the machine that the processes of an idle fabric leave free."""
    before, start_s = cpu_s(name), time.monotonic()
    subprocess.run(["sleep", str(_REST_S)], check=True)
    return 1 - (cpu_s(name) - before) / (time.monotonic() - start_s) / (os.cpu_count() or 1)


def measure(made: Fabric) -> tuple[float, float, float]:
    """Return the best round trip in µs, the best goodput in b/s, and the idle share."""
    to = made.addressing.addresses("s1")[0]
    with running(made):
        idle = idle_share(made.name)
        trips = [
            float(between(made.name, ANSWERER, ASKER, to, EXCHANGES)[1]) for _ in range(ROUNDS)
        ]
        unshape(made.name)
        rates = [float(between(made.name, TAKER, GIVER, to, SENT_BYTES)[0]) for _ in range(ROUNDS)]
    return min(trips), max(rates), idle


def test_round_trip_and_goodput_do_not_depend_on_fabric_size() -> None:
    small_us, small_bps, small_idle = measure(fabric(1, 4))
    large_us, large_bps, large_idle = measure(fabric(16, 8))
    for servers, us, bps, idle in (
        (4, small_us, small_bps, small_idle),
        (128, large_us, large_bps, large_idle),
    ):
        print(
            f"{servers} servers: RTT {us:.0f} µs, one flow {bps / 1e9:.1f} Gb/s, "
            f"idle at rest {idle:.1%}"
        )
        record(f"round trip of a byte over the EPS: {servers} servers", "µs", us / 1e6, n=ROUNDS)
        record(f"goodput of one unshaped flow: {servers} servers", "Gb/s", bps, n=ROUNDS)
        record(f"idle share of the CPU at rest: {servers} servers", "%", idle, at_least=0.97)
    what = "128 servers relative to 4"
    record(f"{what}: round trip", "", large_us / small_us, n=ROUNDS, at_most=1.2)
    record(f"{what}: goodput", "", large_bps / small_bps, n=ROUNDS, at_least=0.8)
    print(f"128 / 4: round trip {large_us / small_us:.2f}, goodput {large_bps / small_bps:.2f}")
    assert large_us / small_us < 1.2
    assert large_bps / small_bps > 0.8
    assert min(small_idle, large_idle) >= 0.97
